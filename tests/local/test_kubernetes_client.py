"""The official Python client, unmodified, against the local API."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException

from fairlead_local.apiserver.resources import PODS
from fairlead_testing.local_api import LocalApi, eventually

CUSTOM = ("harbour.test", "v1", "default", "boats")


@pytest.fixture
async def kubernetes(node_api: LocalApi) -> AsyncIterator[client.ApiClient]:
    configuration = client.Configuration()
    config.load_kube_config(str(node_api.kubeconfig_path), client_configuration=configuration)
    connection = client.ApiClient(configuration)
    yield connection
    connection.close()


async def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The client blocks, and the server lives on this thread's loop."""
    return await asyncio.to_thread(function, *args, **kwargs)


async def test_typed_objects_are_created_read_patched_and_deleted(kubernetes: client.ApiClient) -> None:
    core = client.CoreV1Api(kubernetes)
    body = client.V1ConfigMap(metadata=client.V1ObjectMeta(generate_name="x-"), data={"k": "v"})
    created = await call(core.create_namespaced_config_map, "default", body)
    name = created.metadata.name
    patched = await call(core.patch_namespaced_config_map, name, "default", {"data": {"k": "w"}})
    assert patched.data == {"k": "w"}
    listed = await call(core.list_namespaced_config_map, "default", field_selector=f"metadata.name={name}")
    assert [item.metadata.name for item in listed.items] == [name]
    created.data = {"k": "stale"}
    with pytest.raises(ApiException) as refused:
        await call(core.replace_namespaced_config_map, name, "default", created)
    assert (refused.value.status, "the object has been modified" in refused.value.body) == (409, True)
    await call(core.delete_namespaced_config_map, name, "default")
    with pytest.raises(ApiException) as missing:
        await call(core.read_namespaced_config_map, name, "default")
    assert missing.value.status == 404


async def test_a_deployment_runs_scales_and_shows_its_logs(kubernetes: client.ApiClient, node_api: LocalApi) -> None:
    apps, core = client.AppsV1Api(kubernetes), client.CoreV1Api(kubernetes)
    container = client.V1Container(
        name="c", image="test/python", args=["-c", "import time; print('hello', flush=True); time.sleep(60)"]
    )
    template = client.V1PodTemplateSpec(
        metadata=client.V1ObjectMeta(labels={"app": "x"}), spec=client.V1PodSpec(containers=[container])
    )
    spec = client.V1DeploymentSpec(selector=client.V1LabelSelector(match_labels={"app": "x"}), template=template)
    body = client.V1Deployment(metadata=client.V1ObjectMeta(name="x"), spec=spec)
    await call(apps.create_namespaced_deployment, "default", body)
    await call(apps.patch_namespaced_deployment_scale, "x", "default", {"spec": {"replicas": 2}})

    def running() -> bool:
        return [p["status"]["phase"] for p in node_api.operations.list(PODS)] == ["Running", "Running"]

    await eventually(running)
    pods = (await call(core.list_namespaced_pod, "default", label_selector="app=x")).items
    assert all(pod.status.pod_ip.startswith("127.20.") for pod in pods)
    async with asyncio.timeout(15):  # it runs before it prints
        while not (log := await call(core.read_namespaced_pod_log, pods[0].metadata.name, "default")):
            await asyncio.sleep(0.02)
    assert log == "hello\n"
    scale = await call(apps.read_namespaced_deployment_scale, "x", "default")
    assert (scale.spec.replicas, scale.status.selector) == (2, "app=x")
    options = client.V1DeleteOptions(propagation_policy="Foreground", grace_period_seconds=1)
    await call(apps.delete_namespaced_deployment, "x", "default", body=options)
    await eventually(lambda: not node_api.operations.list(PODS))


async def test_a_watch_delivers_what_happens(kubernetes: client.ApiClient) -> None:
    core = client.CoreV1Api(kubernetes)
    version = (await call(core.list_namespaced_config_map, "default")).metadata.resource_version

    def follow() -> list[tuple[str, str]]:
        seen = []
        stream = watch.Watch()
        for event in stream.stream(
            core.list_namespaced_config_map, "default", resource_version=version, timeout_seconds=10
        ):
            seen.append((event["type"], event["object"].metadata.name))
            if len(seen) == 2:
                stream.stop()
        return seen

    following = asyncio.create_task(call(follow))
    body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="a"))
    await call(core.create_namespaced_config_map, "default", body)
    await call(core.delete_namespaced_config_map, "a", "default")
    assert await following == [("ADDED", "a"), ("DELETED", "a")]


async def test_custom_objects_and_the_dynamic_client(
    kubernetes: client.ApiClient, node_http: Any, boat: dict[str, Any], boat_definition: dict[str, Any]
) -> None:
    definitions = client.ApiextensionsV1Api(kubernetes)
    await call(definitions.create_custom_resource_definition, boat_definition)
    custom = client.CustomObjectsApi(kubernetes)
    created = await call(custom.create_namespaced_custom_object, *CUSTOM, boat)
    assert created["spec"]["colour"] == "white"
    status = {"status": {"replicas": 1}}
    await call(custom.patch_namespaced_custom_object_status, *CUSTOM, "argo", status)
    await call(custom.patch_namespaced_custom_object_scale, *CUSTOM, "argo", {"spec": {"replicas": 4}})
    found = await call(custom.get_namespaced_custom_object, *CUSTOM, "argo")
    assert (found["spec"]["replicas"], found["status"]["replicas"]) == (4, 1)
    bad = {**boat, "metadata": {"name": "b"}, "spec": {"sails": "gaff", "minCrew": 3, "maxCrew": 1}}
    with pytest.raises(ApiException) as refused:
        await call(custom.create_namespaced_custom_object, *CUSTOM, bad)
    assert (refused.value.status, "minCrew must not be above maxCrew" in refused.value.body) == (422, True)
    typo = {**boat, "metadata": {"name": "b"}, "spec": {"sails": "gaff", "sials": 1}}
    with pytest.raises(ApiException) as refused:
        await call(custom.create_namespaced_custom_object, *CUSTOM, typo, field_validation="Strict")
    assert (refused.value.status, 'unknown field \\"spec.sials\\"' in refused.value.body) == (400, True)
    await call(custom.delete_namespaced_custom_object, *CUSTOM, "argo")
