"""Custom kinds: what their definitions promise is held, beside what `e2e/test_crd.py` asks of this API and of a genuine
one: defaults, rules, limits, status, scale, columns, server-side apply, and definitions that become stricter."""

from typing import Any

from fairlead_local.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS
from fairlead_testing.local_api import LocalApi, eventually

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


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


async def test_everything_wrong_with_an_object_is_listed(http: Any, boats: str, boat: Any) -> None:
    boat["spec"] = {"sails": "junk", "replicas": -1, "minCrew": "many", "crew": [{"rank": "cook"}]}
    refused = await http("POST", boats, boat)
    assert (refused.status, refused.body["reason"]) == (422, "Invalid")
    fields = {cause["field"] for cause in refused.body["details"]["causes"]}
    assert fields == {"spec.sails", "spec.replicas", ".spec.replicas", "spec.minCrew", "spec.crew[0].name"}


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
