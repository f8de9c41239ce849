"""The official Python client, unmodified, against the local API."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException

from fairlead_testing.local_api import LocalApi


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
