"""The API over plain HTTP: who may call, what it answers, and how it refuses."""

import asyncio
from typing import Any

import aiohttp
import pytest

from fairlead_testing.local_api import LocalApi

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


def config_map(name: str = "a", **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


async def test_the_token_opens_the_api_and_nothing_else_does(http: Any, api: LocalApi) -> None:
    assert (await http("GET", "/api/v1/namespaces")).status == 200
    assert (await http("GET", "/api/v1/namespaces", headers={"Authorization": "Bearer guess"})).status == 401
    async with aiohttp.ClientSession() as session:
        for path, status in (
            ("/api", 401),
            ("/token/guess/api", 401),
            (f"/token/{api.token}/api", 200),
            ("/readyz", 200),
        ):
            async with session.get(api.url + path) as reply:
                assert reply.status == status, path
    assert api.kubeconfig_path.stat().st_mode & 0o777 == 0o600


async def test_web_pages_and_foreign_names_are_refused(http: Any, api: LocalApi) -> None:
    refused = await http("GET", "/api", headers={"Origin": "https://evil.test"})
    assert (refused.status, refused.body["reason"]) == (403, "Forbidden")
    assert (await http("GET", "/api", headers={"Host": "evil.test:80"})).status == 403
    port = api.url.rpartition(":")[2]
    assert (await http("GET", "/api", headers={"Host": f"localhost:{port}"})).status == 200


@pytest.mark.parametrize(
    "path",
    ["/", "/apis/batch/v1", "/apis/batch/v1/jobs", "/api/v1/nonsense", "/apis/apps/v1beta1", "/x"],
)
async def test_what_is_not_served_is_not_found(http: Any, path: str) -> None:
    reply = await http("GET", path)
    assert (reply.status, reply.body["kind"], reply.body["reason"]) == (404, "Status", "NotFound")


async def test_discovery_lists_groups_resources_and_subresources(http: Any) -> None:
    assert (await http("GET", "/api")).body["versions"] == ["v1"]
    groups = {group["name"] for group in (await http("GET", "/apis")).body["groups"]}
    assert groups == {"apps", "apiextensions.k8s.io", "coordination.k8s.io"}
    apps = {entry["name"]: entry for entry in (await http("GET", "/apis/apps/v1")).body["resources"]}
    assert {"deployments", "deployments/status", "deployments/scale", "replicasets"} <= apps.keys()
    assert apps["deployments"]["shortNames"] == ["deploy"]
    assert apps["deployments/scale"]["kind"] == "Scale"
    assert (await http("GET", "/version")).body["major"] == "1"


async def test_an_object_lives_through_create_read_update_and_delete(http: Any) -> None:
    created = await http("POST", CONFIG_MAPS, config_map(k="1"))
    assert created.status == 201
    metadata = created.body["metadata"]
    assert metadata["namespace"] == "default" and metadata["uid"] and metadata["creationTimestamp"]
    assert (await http("POST", CONFIG_MAPS, config_map(k="1"))).body["reason"] == "AlreadyExists"
    updated = await http("PUT", f"{CONFIG_MAPS}/a", {**created.body, "data": {"k": "2"}})
    assert int(updated.body["metadata"]["resourceVersion"]) > int(metadata["resourceVersion"])
    stale = await http("PUT", f"{CONFIG_MAPS}/a", {**created.body, "data": {"k": "3"}})
    assert (stale.status, stale.body["reason"]) == (409, "Conflict")
    gone = await http("DELETE", f"{CONFIG_MAPS}/a")
    assert (gone.body["status"], gone.body["details"]["uid"]) == ("Success", metadata["uid"])
    assert (await http("GET", f"{CONFIG_MAPS}/a")).message == 'configmaps "a" not found'


async def test_a_write_that_changes_nothing_makes_no_new_version(http: Any) -> None:
    created = (await http("POST", CONFIG_MAPS, config_map(k="1"))).body
    same = (await http.merge(f"{CONFIG_MAPS}/a", {"data": {"k": "1"}})).body
    assert same["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


async def test_a_dry_run_answers_as_the_write_would_and_stores_nothing(http: Any) -> None:
    assert (await http("POST", CONFIG_MAPS, config_map(), dryRun="All")).status == 201
    assert (await http("GET", f"{CONFIG_MAPS}/a")).status == 404
    await http("POST", CONFIG_MAPS, config_map())
    assert (await http("DELETE", f"{CONFIG_MAPS}/a", dryRun="All")).status == 200
    assert (await http("GET", f"{CONFIG_MAPS}/a")).status == 200
    assert (await http("POST", CONFIG_MAPS, config_map("b"), dryRun="Some")).status == 400


async def test_a_name_is_generated_or_refused(http: Any) -> None:
    named = await http("POST", CONFIG_MAPS, {"metadata": {"generateName": "x-"}})
    assert named.body["metadata"]["name"].startswith("x-") and len(named.body["metadata"]["name"]) == 7
    for name in ("UPPER", "a_b", "-a", "", "a" * 254):
        refused = await http("POST", CONFIG_MAPS, {"metadata": {"name": name}})
        assert (refused.status, refused.body["details"]["causes"][0]["field"]) == (422, "metadata.name")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"metadata": {"name": "a", "namespace": "other"}}, "the namespace of the provided object does not match"),
        ({"kind": "Secret", "metadata": {"name": "a"}}, "cannot be handled as a ConfigMap"),
        ({"apiVersion": "v2", "metadata": {"name": "a"}}, "does not match the expected API version (v1)"),
        ([], "is not an object"),
        (b"{", "is not JSON"),
        ({"metadata": []}, "metadata must be an object"),
        ({"metadata": {"name": "a", "resourceVersion": "1"}}, "resourceVersion should not be set"),
    ],
)
async def test_a_body_that_does_not_fit_its_path_is_a_bad_request(http: Any, body: Any, sentence: str) -> None:
    reply = await http("POST", CONFIG_MAPS, body)
    assert reply.status == 400
    assert sentence in reply.message


async def test_unknown_fields_are_dropped_warned_about_or_refused_by_name(http: Any) -> None:
    body = {**config_map(), "dta": {}}
    strict = await http("POST", CONFIG_MAPS, body, fieldValidation="Strict")
    assert (strict.status, 'strict decoding error: unknown field "dta"' in strict.message) == (400, True)
    warned = await http("POST", CONFIG_MAPS, body)
    assert warned.headers["Warning"] == '299 - "unknown field \\"dta\\""'
    assert "dta" not in warned.body
    assert "Warning" not in (await http("PUT", f"{CONFIG_MAPS}/a", body, fieldValidation="Ignore")).headers
    assert (await http("POST", CONFIG_MAPS, body, fieldValidation="Lax")).status == 400


async def test_protobuf_of_other_kinds_is_refused_with_what_to_do(http: Any) -> None:
    refused = await http("POST", CONFIG_MAPS, b"k8s\0", type="application/vnd.kubernetes.protobuf")
    assert refused.status == 415
    assert "protobuf of Secret, ConfigMap, Namespace, ServiceAccount" in refused.message
    assert "kubectl apply -f -" in refused.message


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"labels": {"bad key": "x"}}, "metadata.labels"),
        ({"labels": {"a": "bad value!"}}, "metadata.labels"),
        ({"labels": {"a": "x" * 64}}, "metadata.labels"),
        ({"annotations": {"-a": "x"}}, "metadata.annotations"),
        ({"annotations": {"a": "x" * 300_000}}, "metadata.annotations"),
        ({"labels": {"a": 1}}, "metadata.labels.a"),
    ],
)
async def test_bad_labels_and_annotations_are_refused(http: Any, metadata: dict[str, Any], field: str) -> None:
    refused = await http("POST", CONFIG_MAPS, {"metadata": {"name": "a", **metadata}})
    assert (refused.status, refused.body["details"]["causes"][0]["field"]) == (422, field)


async def test_the_default_namespace_stays(http: Any) -> None:
    refused = await http("DELETE", "/api/v1/namespaces/default")
    assert (refused.status, "may not be deleted" in refused.message) == (403, True)


async def test_a_body_too_large_is_refused(http: Any) -> None:
    assert (await http("POST", CONFIG_MAPS, config_map(k="x" * 4_000_000))).status == 413


@pytest.mark.parametrize(
    ("method", "path", "sentence"),
    [
        ("POST", "/api/v1/namespaces/default/pods/p/exec", "kubectl exec"),
        ("GET", "/api/v1/namespaces/default/pods/p/portforward", "kubectl port-forward"),
        ("POST", "/api/v1/namespaces/default/pods/p/eviction", "evictions"),
    ],
)
async def test_what_a_cluster_has_and_this_has_not_is_said(http: Any, method: str, path: str, sentence: str) -> None:
    reply = await http(method, path, {} if method == "POST" else None)
    assert (reply.status, reply.body["reason"]) == (501, "NotImplemented")
    assert sentence in reply.message


async def test_patches_of_every_type(http: Any) -> None:
    await http("POST", CONFIG_MAPS, config_map(k="1", l="2"))
    path = f"{CONFIG_MAPS}/a"
    assert (await http.merge(path, {"data": {"k": None, "m": "3"}})).body["data"] == {"l": "2", "m": "3"}
    operations = [{"op": "test", "path": "/data/l", "value": "2"}, {"op": "replace", "path": "/data/l", "value": "4"}]
    patched = await http("PATCH", path, operations, type="application/json-patch+json")
    assert patched.body["data"]["l"] == "4"
    failed = await http("PATCH", path, operations, type="application/json-patch+json")
    assert (failed.status, failed.body["reason"]) == (422, "Invalid")
    malformed = await http("PATCH", path, [{"op": "fly"}], type="application/json-patch+json")
    assert malformed.status == 400
    strategic = await http("PATCH", path, {"data": {"l": "5"}}, type="application/strategic-merge-patch+json")
    assert strategic.body["data"]["l"] == "5"
    assert (await http("PATCH", path, {}, type="text/plain")).status == 415
    assert (await http.merge(f"{CONFIG_MAPS}/none", {})).status == 404


async def test_a_patch_may_name_the_version_it_was_made_for(http: Any) -> None:
    created = (await http("POST", CONFIG_MAPS, config_map(k="1"))).body
    await http.merge(f"{CONFIG_MAPS}/a", {"data": {"k": "2"}})
    stale = {"metadata": {"resourceVersion": created["metadata"]["resourceVersion"]}, "data": {"k": "3"}}
    assert (await http.merge(f"{CONFIG_MAPS}/a", stale)).status == 409


async def test_lists_are_selected_whole_and_versioned(http: Any) -> None:
    for name in "abcde":
        labels = {"odd": str(name in "ace").lower()}
        await http("POST", CONFIG_MAPS, {"metadata": {"name": name, "labels": labels}})
    whole = (await http("GET", CONFIG_MAPS)).body
    assert [item["metadata"]["name"] for item in whole["items"]] == list("abcde")
    assert whole["kind"] == "ConfigMapList" and "kind" not in whole["items"][0]
    odd = (await http("GET", CONFIG_MAPS, labelSelector="odd=true")).body
    assert [item["metadata"]["name"] for item in odd["items"]] == list("ace")
    one = (await http("GET", "/api/v1/configmaps", fieldSelector="metadata.name=b")).body
    assert [item["metadata"]["name"] for item in one["items"]] == ["b"]
    limited = (await http("GET", CONFIG_MAPS, limit="2")).body
    assert (len(limited["items"]), "continue" in limited["metadata"]) == (5, False), (
        "a limit is not kept, which it may not be"
    )


@pytest.mark.parametrize(
    "query",
    [
        {"labelSelector": "a in b"},
        {"fieldSelector": "data.k=1"},
        {"limit": "-1"},
        {"continue": "x"},
        {"resourceVersion": "x"},
    ],
)
async def test_a_list_nobody_can_answer_is_a_bad_request(http: Any, query: dict[str, str]) -> None:
    assert (await http("GET", CONFIG_MAPS, **query)).status == 400


async def test_a_collection_is_deleted_by_selector(http: Any) -> None:
    for name in "abc":
        await http("POST", CONFIG_MAPS, {"metadata": {"name": name, "labels": {"n": name}}})
    deleted = await http("DELETE", CONFIG_MAPS, labelSelector="n in (a,b)")
    assert [item["metadata"]["name"] for item in deleted.body["items"]] == ["a", "b"]
    left = (await http("GET", CONFIG_MAPS)).body["items"]
    assert [item["metadata"]["name"] for item in left] == ["c"]


async def test_preconditions_protect_another_object_of_the_same_name(http: Any) -> None:
    await http("POST", CONFIG_MAPS, config_map())
    refused = await http("DELETE", f"{CONFIG_MAPS}/a", {"preconditions": {"uid": "another"}})
    assert (refused.status, refused.body["reason"]) == (409, "Conflict")
    assert (await http("DELETE", f"{CONFIG_MAPS}/a", {"propagationPolicy": "Sideways"})).status == 400


async def test_finalizers_hold_an_object_and_none_are_added_while_it_goes(http: Any) -> None:
    body = {"metadata": {"name": "a", "finalizers": ["test/hold"]}}
    await http("POST", CONFIG_MAPS, body)
    held = await http("DELETE", f"{CONFIG_MAPS}/a")
    assert held.body["metadata"]["deletionTimestamp"]
    more = await http.merge(f"{CONFIG_MAPS}/a", {"metadata": {"finalizers": ["test/hold", "test/more"]}})
    assert (more.status, "no new finalizers can be added" in more.message) == (422, True)
    await http.merge(f"{CONFIG_MAPS}/a", {"metadata": {"finalizers": None}})
    assert (await http("GET", f"{CONFIG_MAPS}/a")).status == 404


async def test_tables_and_metadata_are_given_to_who_asks(http: Any) -> None:
    await http("POST", CONFIG_MAPS, config_map(k="1"))
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    table = (await http("GET", CONFIG_MAPS, headers={"Accept": accept})).body
    assert table["kind"] == "Table"
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert table["rows"][0]["cells"][:2] == ["a", 1]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    listed = (await http("GET", CONFIG_MAPS, headers={"Accept": partial})).body
    assert listed["kind"] == "PartialObjectMetadataList" and "data" not in listed["items"][0]


async def test_a_watch_goes_on_where_a_list_ended(http: Any) -> None:
    await http("POST", CONFIG_MAPS, config_map())
    version = (await http("GET", CONFIG_MAPS)).body["metadata"]["resourceVersion"]
    watching = asyncio.create_task(http.watch(CONFIG_MAPS, 3, resourceVersion=version))
    await http("POST", CONFIG_MAPS, config_map("b"))
    await http.merge(f"{CONFIG_MAPS}/b", {"data": {"k": "1"}})
    await http("DELETE", f"{CONFIG_MAPS}/b")
    events = await watching
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions)) and versions[0] > int(version)


async def test_a_selected_watch_sees_objects_come_and_go(http: Any) -> None:
    path = f"{CONFIG_MAPS}/a"
    await http("POST", CONFIG_MAPS, config_map())
    version = (await http("GET", CONFIG_MAPS)).body["metadata"]["resourceVersion"]
    for labels in ({"on": "1"}, {"on": "1", "x": "y"}, {"on": None}):
        await http.merge(path, {"metadata": {"labels": labels}})
    events = await http.watch(CONFIG_MAPS, 3, resourceVersion=version, labelSelector="on")
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]


async def test_a_watch_from_nothing_begins_with_what_there_is(http: Any) -> None:
    for name in "ab":
        await http("POST", CONFIG_MAPS, config_map(name))
    events = await http.watch(CONFIG_MAPS, 2)
    assert [event["object"]["metadata"]["name"] for event in events] == ["a", "b"]
    streamed = await http.watch(
        CONFIG_MAPS, 3, sendInitialEvents="true", resourceVersionMatch="NotOlderThan", allowWatchBookmarks="true"
    )
    assert [event["type"] for event in streamed] == ["ADDED", "ADDED", "BOOKMARK"]
    assert streamed[2]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_a_watch_from_too_long_ago_ends_in_410(http: Any, api: LocalApi) -> None:
    future = str(api.operations.store.version + 100)
    (event,) = await http.watch(CONFIG_MAPS, 1, resourceVersion=future)
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    (event,) = await http.watch(CONFIG_MAPS, 1, resourceVersion="yesterday")
    assert (event["type"], event["object"]["code"]) == ("ERROR", 400)
