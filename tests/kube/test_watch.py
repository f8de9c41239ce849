"""Reflector: its store equals the API's objects, through broken connections and expired versions."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead.kube.client import JsonObject, KubeClient, KubeError
from fairlead.kube.resources import CONFIGMAPS
from fairlead.kube.watch import LAST_BACKOFF_SECONDS, Reflector
from fairlead_testing.local_api import local_api_server


def config_map(name: str, version: str = "1", uid: str | None = None, **data: str) -> JsonObject:
    return {
        "metadata": {"name": name, "namespace": "default", "resourceVersion": version, "uid": uid or f"uid-{name}"},
        "data": data,
    }


class ScriptedClient:
    """Answers each list and each watch with the next entry of its script; an exception is raised."""

    def __init__(self, lists: list[Any], watches: list[Any]) -> None:
        self.lists, self.watches = lists, watches
        self.watched_from: list[str] = []

    async def list(self, *args: Any, **kwargs: Any) -> JsonObject:
        answer = self.lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"metadata": {"resourceVersion": "10"}, "items": answer}

    async def watch(self, *args: Any, resource_version: str, **kwargs: Any) -> AsyncIterator[JsonObject]:
        self.watched_from.append(resource_version)
        if not self.watches:
            await asyncio.Event().wait()
        for event in self.watches.pop(0):
            if isinstance(event, Exception):
                raise event
            yield event


@asynccontextmanager
async def following(reflector: Reflector) -> AsyncIterator[Reflector]:
    task = asyncio.create_task(reflector.run())
    yield reflector
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def follow(
    lists: list[Any], watches: list[Any]
) -> tuple[Reflector, list[tuple[str, str]], list[float], list[str]]:
    """Runs a reflector through the whole script; the events it told, its pauses, and where its watches began."""
    client, told, pauses = ScriptedClient(lists, watches), [], []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    reflector = Reflector(
        client,  # type: ignore[arg-type]
        CONFIGMAPS,
        on_change=lambda kind, obj: told.append((kind, obj["metadata"]["name"])),
        sleep=sleep,
    )
    async with following(reflector):
        while client.watches or not client.watched_from:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
    return reflector, told, pauses, client.watched_from


def event(kind: str, obj: JsonObject) -> JsonObject:
    return {"type": kind, "object": obj}


async def test_the_store_follows_list_and_watch() -> None:
    reflector, told, pauses, _ = await follow(
        [[config_map("a"), config_map("b")]],
        [[
            event("MODIFIED", config_map("a", "11")),
            event("ADDED", config_map("c", "12")),
            event("DELETED", config_map("b", "13")),
            event("BOOKMARK", {"metadata": {"resourceVersion": "20"}}),
        ]],
    )  # fmt: skip
    assert reflector.synced.is_set()
    assert set(reflector.store) == {("default", "a"), ("default", "c")}
    assert told == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("ADDED", "c"), ("DELETED", "b")]
    assert pauses == []


async def test_a_watch_that_ends_goes_on_where_it_ended() -> None:
    bookmark = event("BOOKMARK", {"metadata": {"resourceVersion": "20"}})
    _, _, pauses, watched_from = await follow([[]], [[bookmark]])
    assert watched_from == ["10", "20"]
    assert pauses == []


async def test_an_expired_version_means_to_list_again_and_to_tell_only_what_changed() -> None:
    expired = KubeError(410, "Expired", "too old")
    reflector, told, _, watched_from = await follow(
        [[config_map("same"), config_map("gone"), config_map("other")], [config_map("same"), config_map("other", "7")]],
        [[expired]],
    )
    assert watched_from == ["10", "10"]
    assert set(reflector.store) == {("default", "same"), ("default", "other")}
    assert told[3:] == [("DELETED", "gone"), ("MODIFIED", "other")]


async def test_an_object_that_was_made_anew_meanwhile_is_a_deletion_and_an_addition() -> None:
    _, told, _, _ = await follow(
        [[config_map("a")], [config_map("a", "9", uid="other")]], [[KubeError(410, "Expired", "too old")]]
    )
    assert told == [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "a")]


async def test_a_broken_connection_is_resumed_with_growing_pauses() -> None:
    broken = KubeError(0, "Unreachable", "gone")
    _, told, pauses, watched_from = await follow([broken, broken, [config_map("a")]], [[broken], [broken]])
    assert told == [("ADDED", "a")]
    assert watched_from == ["10", "10", "10"]
    assert len(pauses) == 4
    assert pauses == sorted(pauses)
    assert max(pauses) <= LAST_BACKOFF_SECONDS * 1.2


async def test_a_follower_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    client = ScriptedClient([[config_map("a"), config_map("b")]], [])

    def fail(kind: str, obj: JsonObject) -> None:
        raise RuntimeError("mine")

    async with following(Reflector(client, CONFIGMAPS, on_change=fail)) as reflector:  # type: ignore[arg-type]
        await reflector.synced.wait()
    assert len(reflector.store) == 2
    assert "a follower of configmaps failed" in caplog.text


async def test_a_refusal_is_said_once_and_remembered_until_a_list_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    forbidden = KubeError(403, "Forbidden", "not yours")
    states: list[bool] = []
    client = ScriptedClient([forbidden, forbidden, [config_map("a")]], [[forbidden]])
    client.lists += [forbidden, []]

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0)

    def note() -> None:
        states.append(reflector.refused_since is not None)

    reflector = Reflector(client, CONFIGMAPS, on_answer=note, sleep=sleep)  # type: ignore[arg-type]
    async with following(reflector):
        await until(lambda: not client.lists)
    assert states == [True, True, False, True, True, False]
    assert caplog.text.count("not yours") == 2, "once for each time that it began"


async def test_silence_is_no_refusal() -> None:
    client = ScriptedClient([KubeError(0, "Unreachable", "gone"), KubeError(503, "Busy", "later"), []], [])

    async def sleep(seconds: float) -> None:
        assert reflector.refused_since is None
        await asyncio.sleep(0)

    reflector = Reflector(client, CONFIGMAPS, sleep=sleep)  # type: ignore[arg-type]
    async with following(reflector):
        await reflector.synced.wait()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def test_it_follows_a_real_api(tmp_path: Path) -> None:
    """A history of four changes makes any pause too long, so that the reflector has to list again."""
    async with (
        local_api_server(tmp_path, history=4) as api,
        await KubeClient.from_environment(api.kubeconfig_path) as client,
        following(Reflector(client, CONFIGMAPS, namespace="default", label_selector="x=y")) as reflector,
    ):
        await reflector.synced.wait()
        for number in range(10):
            labels = {"x": "y"} if number % 2 else {"x": "z"}
            metadata = {"name": f"cm-{number}", "namespace": "default", "labels": labels}
            await client.create(CONFIGMAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
        await until(lambda: len(reflector.store) == 5)
        await client.delete(CONFIGMAPS, "cm-1", "default")
        await client.patch(CONFIGMAPS, "cm-3", {"metadata": {"labels": {"x": "z"}}}, "default")
        await until(lambda: set(reflector.store) == {("default", f"cm-{number}") for number in (5, 7, 9)})
