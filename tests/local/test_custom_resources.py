"""Custom kinds: what their definitions promise is held."""

from typing import Any

from fairlead_local.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS
from fairlead_testing.local_api import LocalApi, eventually

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}


async def test_a_definition_is_served_at_once_and_says_so(http: Any, boats: str) -> None:
    definition = (await http("GET", f"{DEFINITIONS}/boats.harbour.test")).body
    assert {c["type"]: c["status"] for c in definition["status"]["conditions"]} == {
        "NamesAccepted": "True",
        "Established": "True",
    }
    assert definition["status"]["storedVersions"] == ["v1"]
    assert (await http("GET", boats)).body["kind"] == "BoatList"


async def test_a_definition_that_cannot_be_served_is_refused_with_every_reason(http: Any, boats: str) -> None:
    definition = (await http("GET", f"{DEFINITIONS}/boats.harbour.test")).body
    spec = definition["spec"]
    version = spec["versions"][0]
    schema = {"type": "object", "x-kubernetes-validations": [{"rule": "self.("}]}
    broken = {
        **version,
        "storage": False,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"scale": {"specReplicasPath": ".spec[0]", "statusReplicasPath": ".status.n"}},
        "additionalPrinterColumns": [{"name": "X", "type": "string", "jsonPath": "spec..x["}],
    }
    reply = await http("POST", DEFINITIONS, {"metadata": {"name": "x.test"}, "spec": {**spec, "versions": [broken]}})
    assert reply.status == 422
    fields = [cause["field"] for cause in reply.body["details"]["causes"]]
    assert fields[0] == "metadata.name"
    assert "spec.versions" in fields and "spec.versions[0].subresources.scale.specReplicasPath" in fields
    assert "spec.versions[0].additionalPrinterColumns[0].jsonPath" in fields
    assert any(field.endswith("x-kubernetes-validations") for field in fields)


async def test_defaults_are_filled_in_and_unknown_fields_pruned(http: Any, boats: str, boat: Any) -> None:
    boat["spec"]["sials"] = 1
    created = await http("POST", boats, boat)
    assert created.body["spec"] == {"sails": "gaff", "replicas": 1, "colour": "white"}
    assert created.body["metadata"]["generation"] == 1
    assert 'unknown field \\"spec.sials\\"' in created.headers["Warning"]


async def test_a_typo_is_refused_by_name_when_validation_is_strict(http: Any, boats: str, boat: Any) -> None:
    boat["spec"]["sials"] = 1
    refused = await http("POST", boats, boat, fieldValidation="Strict")
    assert refused.status == 400
    assert 'Boat in version "v1" cannot be handled as a Boat: strict decoding error' in refused.message
    assert 'unknown field "spec.sials"' in refused.message


async def test_everything_wrong_with_an_object_is_listed(http: Any, boats: str, boat: Any) -> None:
    boat["spec"] = {"sails": "junk", "replicas": -1, "minCrew": "many", "crew": [{"rank": "cook"}]}
    refused = await http("POST", boats, boat)
    assert (refused.status, refused.body["reason"]) == (422, "Invalid")
    fields = {cause["field"] for cause in refused.body["details"]["causes"]}
    assert fields == {"spec.sails", "spec.replicas", ".spec.replicas", "spec.minCrew", "spec.crew[0].name"}


async def test_a_definition_that_becomes_stricter_holds_nothing_against_what_an_update_leaves_alone(
    http: Any, boats: str, boat: Any
) -> None:
    boat["spec"] |= {"minCrew": 1, "crew": [{"name": "ann", "rank": "captain"}, {"name": "bob", "rank": "cook"}]}
    assert (await http("POST", boats, boat)).status == 201
    definition = (await http("GET", f"{DEFINITIONS}/boats.harbour.test")).body
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["colour"]["enum"] = ["red"]
    spec["properties"]["minCrew"] |= {"x-kubernetes-validations": [{"rule": "self > 1", "message": "too few"}]}
    spec["properties"]["crew"]["items"]["properties"]["rank"]["maxLength"] = 2
    spec["properties"]["keel"] = {"type": "string", "default": "long"}
    assert (await http("PUT", f"{DEFINITIONS}/boats.harbour.test", definition)).status == 200

    async def causes(**change: Any) -> list[str]:
        reply = await http("PATCH", f"{boats}/argo", {"spec": change}, type="application/merge-patch+json")
        assert reply.status in (200, 422)
        return [cause["field"] for cause in reply.body.get("details", {}).get("causes", [])]

    assert await causes(replicas=2) == []
    assert await causes(colour="blue") == ["spec.colour"]
    assert await causes(minCrew=0) == ["spec.minCrew"]
    assert await causes(crew=[{"name": "bob", "rank": "cook"}, {"name": "eve", "rank": "mate"}]) == [
        "spec.crew[1].rank"
    ]
    assert await causes(crew=[{"name": "bob", "rank": "cook"}]) == []
    status = {"status": {"replicas": 2}}
    reply = await http("PATCH", f"{boats}/argo/status", status, type="application/merge-patch+json")
    assert reply.status == 200
    again = {**boat, "metadata": {**boat["metadata"], "name": "two"}}
    assert (await http("POST", boats, again)).status == 422, "what is new is held to all of it"


async def test_a_rule_refuses_with_its_own_sentence(http: Any, boats: str, boat: Any) -> None:
    boat["spec"] |= {"minCrew": 4, "maxCrew": 2}
    refused = await http("POST", boats, boat)
    assert (refused.status, refused.message) == (
        422,
        'Boat.harbour.test "argo" is invalid: spec: Invalid value: minCrew must not be above maxCrew',
    )


async def test_rules_are_checked_beside_limits_but_not_beside_wrong_types(http: Any, boats: str, boat: Any) -> None:
    boat["spec"] |= {"minCrew": 4, "maxCrew": 2}

    async def fields(**spec: Any) -> set[str]:
        refused = await http("POST", boats, {**boat, "spec": boat["spec"] | spec})
        return {cause["field"] for cause in refused.body["details"]["causes"]}

    assert await fields(crew=[{"name": "jason"}, {"name": "jason"}]) == {"spec", "spec.crew[1]"}
    assert await fields(sails="junk") == {"spec.sails"}


async def test_counts_of_the_scale_are_whole_numbers_whatever_the_schema_says(http: Any, boats: str, boat: Any) -> None:
    boat["spec"]["replicas"] = 2.0
    refused = await http("POST", boats, boat)
    assert (refused.status, refused.body["details"]["causes"][0]["field"]) == (422, ".spec.replicas")
    assert "2.0 is of the type float64, expected int64" in refused.message
    boat["spec"]["replicas"] = 1
    assert (await http("POST", boats, boat)).status == 201
    wrong = await http.merge(f"{boats}/argo/status", {"status": {"selector": 1}})
    assert ".status.selector" in {cause["field"] for cause in wrong.body["details"]["causes"]}


async def test_a_refusal_also_says_what_was_dropped(http: Any, boats: str, boat: Any) -> None:
    boat["spec"] |= {"sails": "junk", "sials": 1}
    refused = await http("POST", boats, boat)
    assert (refused.status, 'unknown field \\"spec.sials\\"' in refused.headers["Warning"]) == (422, True)


async def test_the_scale_of_an_object_without_replicas_can_be_written_but_not_read(
    http: Any, boats: str, boat: Any
) -> None:
    del boat["spec"]["replicas"]
    await http("POST", boats, boat)
    reply = await http("GET", f"{boats}/argo/scale")
    assert (reply.status, 'the spec replicas field ".spec.replicas" does not exist' in reply.message) == (500, True)
    assert (await http.merge(f"{boats}/argo/scale", {"spec": {"replicas": 2}})).body["spec"] == {"replicas": 2}


async def test_a_rule_may_compare_with_the_old_object(http: Any, boats: str, boat: Any) -> None:
    assert (await http("POST", boats, boat)).status == 201
    refused = await http.merge(f"{boats}/argo", {"spec": {"sails": "lateen"}})
    assert (refused.status, "sails are sewn on" in refused.message) == (422, True)


async def test_the_status_is_written_apart_and_only_changes_count_as_generations(
    http: Any, boats: str, boat: Any
) -> None:
    await http("POST", boats, {**boat, "status": {"afloat": True}})
    path = f"{boats}/argo"
    assert "status" not in (await http("GET", path)).body
    written = await http.merge(f"{path}/status", {"spec": {"colour": "red"}, "status": {"afloat": True}})
    assert (written.body["status"], written.body["spec"]["colour"]) == ({"afloat": True}, "white")
    assert written.body["metadata"]["generation"] == 1
    changed = await http.merge(path, {"spec": {"colour": "red"}, "status": {"afloat": False}})
    assert (changed.body["status"], changed.body["metadata"]["generation"]) == ({"afloat": True}, 2)
    labelled = await http.merge(path, {"metadata": {"labels": {"a": "b"}}})
    assert labelled.body["metadata"]["generation"] == 2


async def test_an_update_must_say_which_version_it_replaces(http: Any, boats: str, boat: Any) -> None:
    assert (await http("PUT", f"{boats}/argo", boat)).status == 404
    created = (await http("POST", boats, boat)).body
    refused = await http("PUT", f"{boats}/argo", boat)
    assert (refused.status, "metadata.resourceVersion" in refused.message) == (422, True)
    assert (await http("PUT", f"{boats}/argo", {**boat, "metadata": created["metadata"]})).status == 200


async def test_another_kind_is_refused(http: Any, boats: str, boat: Any) -> None:
    wrong = await http("POST", boats, {**boat, "kind": "Ship"})
    assert (wrong.status, wrong.body["details"]["causes"][0]["field"]) == (422, "kind")
    assert (await http("POST", boats, {**boat, "kind": None})).status == 400


async def test_strategic_merge_is_not_for_custom_kinds(http: Any, boats: str, boat: Any) -> None:
    await http("POST", boats, boat)
    refused = await http("PATCH", f"{boats}/argo", {}, type="application/strategic-merge-patch+json")
    assert (refused.status, refused.body["reason"]) == (415, "UnsupportedMediaType")


async def test_scale_reads_and_writes_through_the_declared_paths(http: Any, boats: str, boat: Any) -> None:
    await http("POST", boats, boat)
    path = f"{boats}/argo"
    await http.merge(f"{path}/status", {"status": {"replicas": 1, "selector": "boat=argo"}})
    scale = (await http("GET", f"{path}/scale")).body
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (scale["spec"], scale["status"]) == ({"replicas": 1}, {"replicas": 1, "selector": "boat=argo"})
    scaled = await http.merge(f"{path}/scale", {"spec": {"replicas": 3}})
    assert scaled.body["spec"] == {"replicas": 3}
    assert (await http("GET", path)).body["spec"]["replicas"] == 3
    assert (await http("PUT", f"{path}/scale", {**scale, "spec": {"replicas": 5}})).status == 409
    assert (await http.merge(f"{path}/scale", {"spec": {"replicas": -1}})).status == 422


async def test_columns_are_those_of_the_definition(http: Any, boats: str, boat: Any) -> None:
    await http("POST", boats, boat)
    condition = {"type": "Ready", "status": "True"}
    await http.merge(f"{boats}/argo/status", {"status": {"conditions": [condition]}})
    table = (await http("GET", boats, headers=TABLE)).body
    names = [(column["name"], column["priority"]) for column in table["columnDefinitions"]]
    assert names == [("Name", 0), ("Ready", 0), ("Replicas", 0), ("Sails", 1), ("Age", 0)]
    assert table["rows"][0]["cells"][:4] == ["argo", "True", 1, "gaff"]


async def test_a_conflict_names_field_and_manager_and_force_takes_over(http: Any, boats: str, boat: Any) -> None:
    path = f"{boats}/argo"
    assert (await http.apply(path, boat, "ann")).status == 201
    await http.merge(path, {"spec": {"replicas": 2}}, fieldManager="bob")
    refused = await http.apply(path, boat, "ann")
    assert refused.status == 409
    assert 'conflict with "bob" using harbour.test/v1: .spec.replicas' in refused.message
    assert refused.body["details"]["causes"][0]["reason"] == "FieldManagerConflict"
    forced = await http.apply(path, boat, "ann", force="true")
    assert forced.body["spec"]["replicas"] == 1
    assert [entry["manager"] for entry in forced.body["metadata"]["managedFields"]] == ["ann"]


async def test_applied_items_merge_by_key_and_go_when_no_longer_applied(http: Any, boats: str, boat: Any) -> None:
    path = f"{boats}/argo"
    ann = {**boat, "spec": {"sails": "gaff", "crew": [{"name": "jason"}], "flags": ["red"]}}
    bob = {**boat, "spec": {"sails": "gaff", "crew": [{"name": "medea", "rank": "sage"}], "flags": ["blue"]}}
    await http.apply(path, ann, "ann")
    both = (await http.apply(path, bob, "bob")).body["spec"]
    assert [member["name"] for member in both["crew"]] == ["jason", "medea"]
    assert both["flags"] == ["red", "blue"]
    left = (await http.apply(path, boat, "ann")).body["spec"]
    assert [member["name"] for member in left["crew"]] == ["medea"]
    assert left["flags"] == ["blue"]


async def test_status_is_applied_by_its_own_manager(http: Any, boats: str, boat: Any) -> None:
    path = f"{boats}/argo"
    await http.apply(path, boat, "ann")
    status = {
        "apiVersion": boat["apiVersion"],
        "kind": "Boat",
        "metadata": {"name": "argo"},
        "status": {"afloat": True},
    }
    applied = (await http.apply(f"{path}/status", status, "crane")).body
    assert applied["status"] == {"afloat": True} and applied["spec"]["sails"] == "gaff"
    entry = next(e for e in applied["metadata"]["managedFields"] if e["manager"] == "crane")
    assert (entry["subresource"], entry["fieldsV1"]) == ("status", {"f:status": {"f:afloat": {}}})


async def test_apply_refuses_what_it_cannot_own(http: Any, boats: str, boat: Any) -> None:
    path = f"{boats}/argo"
    boat["spec"]["sials"] = 1
    refused = await http.apply(path, boat)
    assert (refused.status, ".spec.sials: field not declared in schema" in refused.message) == (400, True)
    assert (await http("PATCH", path, boat, type="application/apply-patch+yaml")).status == 400
    managed = {**boat, "metadata": {"name": "argo", "managedFields": [{}]}}
    assert (await http.apply(path, managed)).status == 400


async def test_yaml_is_understood_where_json_is(http: Any, boats: str) -> None:
    text = b"apiVersion: harbour.test/v1\nkind: Boat\nmetadata: {name: argo, annotations: {when: '2030-01-01'}}\n"
    reply = await http("POST", boats, text + b"spec:\n  sails: gaff\n", type="application/yaml")
    assert (reply.status, reply.body["spec"]["sails"]) == (201, "gaff")


async def test_deleting_a_definition_deletes_its_objects_first(http: Any, api: LocalApi, boats: str, boat: Any) -> None:
    await http("POST", boats, boat)
    await http.merge(f"{boats}/argo", {"metadata": {"finalizers": ["test/hold"]}})
    await http("DELETE", f"{DEFINITIONS}/boats.harbour.test")
    await eventually(lambda: api.operations.store.list("boats.harbour.test")[0]["metadata"].get("deletionTimestamp"))
    assert api.operations.find(CUSTOM_RESOURCE_DEFINITIONS, "", "boats.harbour.test")
    await http.merge(f"{boats}/argo", {"metadata": {"finalizers": None}})
    await eventually(lambda: not api.operations.find(CUSTOM_RESOURCE_DEFINITIONS, "", "boats.harbour.test"))
    assert (await http("GET", boats)).status == 404


async def test_a_second_version_shows_the_same_objects(http: Any, boats: str, boat: Any) -> None:
    await http("POST", boats, boat)
    path = f"{DEFINITIONS}/boats.harbour.test"
    definition = (await http("GET", path)).body
    newer = {**definition["spec"]["versions"][0], "name": "v2", "storage": False}
    definition["spec"]["versions"].append(newer)
    assert (await http("PUT", path, definition)).status == 200
    shown = (await http("GET", f"{boats.replace('/v1/', '/v2/')}/argo")).body
    assert (shown["apiVersion"], shown["spec"]["sails"]) == ("harbour.test/v2", "gaff")
