"""Adapters of a spec on engines that answer: loaded, unloaded, replaced, and what is said where that fails."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiohttp import web

from fairlead.api import names
from fairlead.api.pod_spec import lasting_containers
from fairlead.controller.adapter_loader import AdapterLoader
from fairlead.controller.operator import Operator
from fairlead.controller.pod_adapters import LOAD_LIMITS, EngineRefused, HttpEngineAdapters, Silent
from fairlead.controller.pod_diagnosis import Stage
from fairlead.fleet.pods import replicas_of
from fairlead.kube.client import JsonObject
from fairlead.kube.resources import BY_KIND, DEPLOYMENTS, EVENTS, PERSISTENT_VOLUME_CLAIMS, PODS
from fairlead.manifests.source import PlacedAdapter
from fairlead_common.http.client import TimeLimits
from fairlead_common.wire.downloads import (
    SOURCES_PATH,
    SOURCES_PORT,
    DownloadProgress,
    DownloadStage,
    SourcesReport,
    SourceState,
)
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.http import listening
from fairlead_testing.local_api import local_api_server
from fairlead_testing.operators import (
    NAMESPACE,
    PATIENCE_SECONDS,
    READY,
    SETTINGS,
    Fleet,
    condition,
    fleet_at,
    running_operator,
)

CLAIM: JsonObject = {
    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "boats", "namespace": NAMESPACE},
    "spec": {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}},
}  # fmt: skip


def adapters(*adapter_names: str, claim: str = "boats", **own: str) -> list[dict[str, str]]:
    listed = [{"name": name, "source": f"pvc://{claim}/{name}"} for name in adapter_names]
    return [each | ({"servedName": own[each["name"]]} if each["name"] in own else {}) for each in listed]


class Sea:
    """A fleet whose pods are played by fake engines."""

    def __init__(self, fleet: Fleet, operator: Operator, stack: AsyncExitStack) -> None:
        self.fleet, self.operator, self._stack = fleet, operator, stack
        self.engines: dict[str, FakeEngine] = {}
        self.downloads: dict[str, SourceState] = {}
        """What every pod's downloader says, by source."""

    async def pods(self, number: int, *, is_slow: bool = False) -> list[str]:
        """Waits for so many pods, whose engines become ready; their names. `is_slow`: nothing is loaded for now."""
        selector = "fairlead.dev/llmdeployment=dinghy"
        pods: list[JsonObject] = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(pods) != number:
                await asyncio.sleep(0.05)
                pods = (await self.fleet.client.list(PODS, NAMESPACE, label_selector=selector))["items"]
        for pod in pods:
            if (name := pod["metadata"]["name"]) not in self.engines:
                address = f"127.{random.randint(1, 250)}.{random.randint(1, 250)}.{random.randint(2, 250)}"
                engine = FakeEngine(name, served_name="dinghy", host=address, port=names.ENGINE_PORT)
                if is_slow:
                    engine.adapter_gate.clear()
                engine.adapter_troubles["/adapters/boats/bad"] = "it has rank 128, and the engine room for 16"
                self.engines[name] = await self._stack.enter_async_context(engine)
                if any(each["name"] == "download-adapters" for each in lasting_containers(pod["spec"])):
                    await self._serve_downloads(address)
                status = {"phase": "Running", "podIP": address, "conditions": [READY]}
                await self.fleet.client.patch(PODS, name, {"status": status}, NAMESPACE, subresource="status")
        return sorted(self.engines)

    def say(self, source: str, **state: Any) -> None:
        self.downloads[source] = SourceState(source=source, **state)

    async def _serve_downloads(self, address: str) -> None:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(body=msgspec.json.encode(SourcesReport(sources=list(self.downloads.values()))))

        app = web.Application()
        app.router.add_get(SOURCES_PATH, answer)
        runner = web.AppRunner(app)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, address, SOURCES_PORT).start()

    async def until(self, **readiness: tuple[int, str]) -> dict[str, dict[str, Any]]:
        """Waits until these adapters, and no others, are on so many replicas for this reason; their statuses."""

        def holds(status: dict[str, Any]) -> bool:
            found = {each["name"]: (each["readyReplicas"], each["reason"]) for each in status.get("adapters") or ()}
            return found == readiness

        return {each["name"]: each for each in (await self.fleet.until(holds))["adapters"]}

    async def template(self) -> JsonObject:
        return (await self.fleet.get(DEPLOYMENTS, "dinghy-engine"))["spec"]["template"]


@pytest.fixture
async def sea(tmp_path: Path) -> AsyncIterator[Sea]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(local_api_server(tmp_path))
        fleet = await stack.enter_async_context(fleet_at(server.kubeconfig_path))
        operator = await stack.enter_async_context(running_operator(fleet, replace(SETTINGS, workers=1)))
        yield Sea(fleet, operator, stack)


async def test_engines_load_and_unload_what_the_spec_lists_and_no_pod_is_replaced(sea: Sea) -> None:
    await sea.fleet.client.create(PERSISTENT_VOLUME_CLAIMS, CLAIM)
    await sea.fleet.create(replicas=2, adapters=adapters("pirate", "poet", pirate="redbeard"))
    first, second = await sea.pods(2)
    said = await sea.until(pirate=(2, "AdapterLoaded"), poet=(2, "AdapterLoaded"))
    assert said["pirate"] == {
        "name": "pirate", "servedName": "redbeard", "source": "pvc://boats/pirate", "readyReplicas": 2,
        "reason": "AdapterLoaded", "message": "loaded on 2/2 ready replicas",
    }  # fmt: skip
    template = await sea.template()
    assert sea.engines[first].adapter_sources == {"pirate": "/adapters/boats/pirate", "poet": "/adapters/boats/poet"}
    await sea.fleet.edit(adapters=[*adapters("poet", "cook"), {"name": "mate", "source": "pvc://boats/mates/first"}])
    await sea.until(poet=(2, "AdapterLoaded"), cook=(2, "AdapterLoaded"), mate=(2, "AdapterLoaded"))
    for engine in sea.engines.values():
        assert sorted(engine.adapters) == ["cook", "mate", "poet"]
        assert engine.adapter_calls.count(("load", "poet")) == 1, "what is there stays as it is"
    await sea.fleet.edit(adapters=[{"name": "poet", "source": "pvc://boats/poet-2"}])
    await sea.until(poet=(2, "AdapterLoaded"))
    assert sea.engines[second].adapter_sources["poet"] == "/adapters/boats/poet-2"
    assert sea.engines[second].adapters == ("poet",)
    await sea.fleet.edit(adapters=[{"name": "other", "source": "file:///somewhere"}])
    await sea.until(other=(0, "SourceNotSupported"))
    assert await sea.template() == template, "a claim stays mounted when no adapter is on it any more"
    assert await sea.pods(2) == [first, second]
    assert {"AdapterLoaded", "SourceNotSupported"} <= set(await sea.fleet.reasons_of_events())


HUB = "hf://org/lora"


def from_hub(**revisions: str) -> list[dict[str, str]]:
    return [{"name": name, "source": f"{HUB}@{revision}"} for name, revision in revisions.items()]


async def test_adapters_from_elsewhere_are_loaded_where_each_pod_says_that_they_are(sea: Sea) -> None:
    await sea.fleet.create(replicas=2, adapters=from_hub(poet="v1"))
    first, second = await sea.pods(2)
    said = await sea.until(poet=(0, "Downloading"))
    assert "waits until the list has reached the pod" in said["poet"]["message"]
    progress = DownloadProgress(
        source=f"{HUB}@v1", stage=DownloadStage.DOWNLOADING, bytes=5_000_000, total_bytes=20_000_000,
        bytes_per_second=1e6, remaining_seconds=15.0,
    )  # fmt: skip
    sea.say(f"{HUB}@v1", progress=progress)
    words = f"downloading {HUB}@v1: 5 of 20 MB, 1 MB/s, 15 s left"
    await sea.fleet.until(lambda status: words in status["adapters"][0]["message"])
    assert condition(await sea.fleet.until(lambda status: True), "Degraded")["status"] == "False"
    sea.say(f"{HUB}@v1", folder="/adapters/.downloads/poet-1")
    said = await sea.until(poet=(2, "AdapterLoaded"))
    assert said["poet"]["source"] == f"{HUB}@v1"
    template = await sea.template()
    await sea.fleet.edit(adapters=from_hub(poet="v2", cook="v9"))
    await sea.until(poet=(0, "Downloading"), cook=(0, "Downloading"))
    for engine in sea.engines.values():
        assert engine.adapters == ("poet",), "the former one answers until the new one is there"
    sea.say(f"{HUB}@v9", reason="RevisionNotFound", message=f"{HUB} has no revision 'v9'")
    sea.say(f"{HUB}@v2", folder="/adapters/.downloads/poet-2")
    said = await sea.until(poet=(2, "AdapterLoaded"), cook=(0, "RevisionNotFound"))
    sentences = {f"loaded on 0/2 ready replicas; {pod}: {HUB} has no revision 'v9'" for pod in (first, second)}
    assert said["cook"]["message"] in sentences, "the pod that is asked first says so first"
    status = await sea.fleet.until(lambda status: condition(status, "Degraded")["status"] == "True")
    assert condition(status, "Degraded")["reason"] == "RevisionNotFound"
    assert condition(status, "Ready")["status"] == "True"
    assert sea.engines[second].adapter_sources == {"poet": "/adapters/.downloads/poet-2"}
    (listing,) = [
        each for each in (await sea.fleet.client.list(BY_KIND["ConfigMap"], NAMESPACE))["items"]
        if each["metadata"]["name"] == "dinghy-engine-adapters"
    ]  # fmt: skip
    assert listing["data"]["sources"] == f"{HUB}@v2\n{HUB}@v9\n"
    await sea.fleet.edit(adapters=from_hub(poet="v2"))
    await sea.fleet.until(lambda status: condition(status, "Degraded")["status"] == "False")
    assert await sea.template() == template and await sea.pods(2) == [first, second]
    assert "RevisionNotFound" in await sea.fleet.reasons_of_events()


async def test_an_operator_that_starts_anew_unloads_nothing_while_downloads_are_silent(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(local_api_server(tmp_path))
        fleet = await stack.enter_async_context(fleet_at(server.kubeconfig_path))
        async with running_operator(fleet) as operator:
            sea = Sea(fleet, operator, stack)
            sea.say(f"{HUB}@v1", folder="/adapters/.downloads/poet-1")
            await fleet.create(adapters=from_hub(poet="v1"))
            (pod,) = await sea.pods(1)
            await sea.until(poet=(1, "AdapterLoaded"))
        sea.downloads.clear()
        async with running_operator(fleet):
            await sea.until(poet=(0, "Downloading"))
            sea.say(f"{HUB}@v1", folder="/adapters/.downloads/poet-1")
            await sea.until(poet=(1, "AdapterLoaded"))
        assert sea.engines[pod].adapter_calls == [("load", "poet")]


async def test_a_bad_adapter_is_told_of_in_the_engines_words_and_the_rest_is_served(sea: Sea) -> None:
    await sea.fleet.client.create(PERSISTENT_VOLUME_CLAIMS, CLAIM)
    await sea.fleet.create(adapters=[*adapters("bad", "poet"), *adapters("lost", claim="nowhere")])
    (pod,) = await sea.pods(1)
    said = await sea.until(bad=(0, "AdapterNotLoaded"), poet=(1, "AdapterLoaded"), lost=(0, "AdapterSourceNotFound"))
    sentence = f"loaded on 0/1 ready replicas; {pod}: it has rank 128, and the engine room for 16"
    assert said["bad"]["message"] == sentence
    assert "there is no PersistentVolumeClaim 'nowhere' in the namespace 'default'" in said["lost"]["message"]
    status = await sea.fleet.until(lambda status: condition(status, "Degraded")["status"] == "True")
    assert condition(status, "Ready")["status"] == "True"
    degraded = condition(status, "Degraded")
    assert (degraded["reason"], degraded["message"]) == ("AdapterNotLoaded", f"adapter bad: {sentence}")
    mounted = [each["name"] for each in (await sea.template())["spec"]["volumes"]]
    assert sum(name.startswith("adapters-") for name in mounted) == 1, (
        "what does not exist would keep pods from starting"
    )
    await sea.fleet.edit(adapters=adapters("poet"))
    await sea.fleet.until(lambda status: condition(status, "Degraded")["status"] == "False")
    events = (await sea.fleet.client.list(EVENTS, NAMESPACE))["items"]
    warnings = [event for event in events if event["type"] == "Warning" and "adapter bad" in event["message"]]
    assert warnings and all(event["reason"] == "AdapterNotLoaded" for event in warnings)


async def test_an_engine_that_starts_again_gets_its_adapters_again(sea: Sea) -> None:
    await sea.fleet.client.create(PERSISTENT_VOLUME_CLAIMS, CLAIM)
    await sea.fleet.create(adapters=adapters("poet"))
    (pod,) = await sea.pods(1)
    await sea.until(poet=(1, "AdapterLoaded"))
    sea.engines[pod].unload_adapter("poet")
    sea.operator.queue.add((NAMESPACE, "dinghy"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while sea.engines[pod].adapters != ("poet",):
            await asyncio.sleep(0.05)
    assert sea.engines[pod].adapter_calls == [("load", "poet"), ("load", "poet")]


async def test_a_load_that_takes_long_holds_nobody_up_and_ends_in_what_is_listed_by_then(sea: Sea) -> None:
    """With one worker, which all LLMDeployments share."""
    await sea.fleet.client.create(PERSISTENT_VOLUME_CLAIMS, CLAIM)
    await sea.fleet.create(adapters=adapters("poet", "cook"))
    (pod,) = await sea.pods(1, is_slow=True)
    engine = sea.engines[pod]
    message = "loaded on 0/1 ready replicas; it is being loaded"
    await sea.fleet.until(lambda status: [each["message"] for each in status["adapters"]] == [message] * 2)
    await sea.until(poet=(0, "AdapterLoading"), cook=(0, "AdapterLoading"))
    await sea.fleet.create("other")
    await sea.fleet.until(lambda status: "conditions" in status, "other")
    await sea.fleet.edit(adapters=[{"name": "poet", "source": "pvc://boats/poet-2"}])
    await sea.until(poet=(0, "AdapterLoading"))
    engine.adapter_gate.set()
    said = await sea.until(poet=(1, "AdapterLoaded"))
    assert engine.adapter_sources["poet"] == "/adapters/boats/poet-2"
    assert said["poet"]["source"] == "pvc://boats/poet-2"
    assert engine.adapter_calls == [("load", "poet"), ("unload", "poet"), ("load", "poet")], "cook is listed no more"
    await sea.fleet.until(lambda status: condition(status, "Degraded")["status"] == "False")


async def test_what_is_listed_no_more_when_it_is_loaded_is_unloaded(sea: Sea) -> None:
    await sea.fleet.client.create(PERSISTENT_VOLUME_CLAIMS, CLAIM)
    await sea.fleet.create(adapters=adapters("poet"))
    (pod,) = await sea.pods(1)
    engine = sea.engines[pod]
    await sea.until(poet=(1, "AdapterLoaded"))
    engine.adapter_gate.clear()
    await sea.fleet.edit(adapters=adapters("poet", "cook"))
    await sea.until(poet=(1, "AdapterLoaded"), cook=(0, "AdapterLoading"))
    await sea.fleet.edit(adapters=None)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while engine.adapters:  # is not waited for
            await asyncio.sleep(0.02)
        await sea.until()
        engine.adapter_gate.set()
        while engine.adapter_calls[-1] != ("unload", "cook"):
            await asyncio.sleep(0.02)
    assert engine.adapters == ()


async def test_a_pod_that_goes_while_it_loads_is_waited_for_no_more(sea: Sea) -> None:
    await sea.fleet.client.create(PERSISTENT_VOLUME_CLAIMS, CLAIM)
    await sea.fleet.create(adapters=adapters("poet", "cook"))
    await sea.pods(1)
    await sea.until(poet=(1, "AdapterLoaded"), cook=(1, "AdapterLoaded"))
    (engine,) = sea.engines.values()
    engine.adapter_gate.clear()
    await sea.fleet.edit(adapters=adapters("poet", "mate"))
    await sea.until(poet=(1, "AdapterLoaded"), mate=(0, "AdapterLoading"))
    engine.kill()
    await sea.fleet.client.delete(PODS, engine.name, NAMESPACE)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while engine.name in await sea.fleet.names(PODS) or len(await sea.fleet.names(PODS)) != 1:
            await asyncio.sleep(0.05)
    await sea.pods(1)
    said = await sea.until(poet=(1, "AdapterLoaded"), mate=(1, "AdapterLoaded"))
    assert "1/1" in said["mate"]["message"]


async def test_a_source_that_was_changed_while_no_operator_ran_is_loaded_by_the_next(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(local_api_server(tmp_path))
        fleet = await stack.enter_async_context(fleet_at(server.kubeconfig_path))
        async with running_operator(fleet) as operator:
            sea = Sea(fleet, operator, stack)
            await fleet.client.create(PERSISTENT_VOLUME_CLAIMS, CLAIM)
            await fleet.create(adapters=adapters("poet", "cook"))
            (pod,) = await sea.pods(1)
            await sea.until(poet=(1, "AdapterLoaded"), cook=(1, "AdapterLoaded"))
        await fleet.edit(adapters=[{"name": "poet", "source": "pvc://boats/poet-2"}, *adapters("cook")])
        async with running_operator(fleet):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while sea.engines[pod].adapter_sources["poet"] != "/adapters/boats/poet-2":
                    await asyncio.sleep(0.02)
            await sea.until(poet=(1, "AdapterLoaded"), cook=(1, "AdapterLoaded"))
        assert sea.engines[pod].adapter_calls.count(("load", "cook")) == 1, "what is known stays as it is"


async def test_a_load_is_waited_for_longer_than_any_other_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    short = TimeLimits(connect=2.0, first_byte=0.05, silence=0.05, whole=0.05)
    monkeypatch.setattr("fairlead.controller.pod_adapters.ASK_LIMITS", short)
    async with FakeEngine(host="127.0.5.7", port=names.ENGINE_PORT) as engine:
        engine.adapter_gate.clear()
        containers = [{"name": names.ENGINE_CONTAINER}]
        pod = {"metadata": {"name": "dinghy-0"}, "spec": {"containers": containers}, "status": {"podIP": "127.0.5.7"}}
        loading = asyncio.create_task(HttpEngineAdapters().load(pod, "poet", "/adapters/poet"))
        done, _ = await asyncio.wait([loading], timeout=0.3)
        assert not done
        engine.adapter_gate.set()
        await loading
    assert LOAD_LIMITS.whole is not None and LOAD_LIMITS.whole >= 1800


UNREADABLE = {
    "nothing": b"", "no object": b"[]", "no list": b'{"data": 5}', "no cards": b'{"data": [1]}',
    "no names": b'{"data": [{"parent": "x"}]}', "deep": b"[" * 9000, "no text": b'"\xff"',
}  # fmt: skip


@pytest.mark.parametrize("answer", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_an_engine_that_says_what_cannot_be_read_is_in_trouble_and_its_operator_is_not(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        status = b"200" if b"GET" in await reader.readuntil(b"\r\n\r\n") else b"500"
        writer.write(b"HTTP/1.1 %s Oh\r\ncontent-length: %d\r\n\r\n%s" % (status, len(answer), answer))
        await writer.drain()

    async with listening(serve) as port:
        containers = [{"name": names.ENGINE_CONTAINER, "ports": [{"containerPort": port}]}]
        pod = {"metadata": {"name": "dinghy-0"}, "spec": {"containers": containers}, "status": {"podIP": "127.0.0.1"}}
        with pytest.raises(EngineRefused, match="cannot be read"):
            await HttpEngineAdapters().served(pod)
        with pytest.raises(EngineRefused, match="answers HTTP 500"):
            await HttpEngineAdapters().load(pod, "poet", "/adapters/poet")


async def test_what_an_engine_says_against_an_adapter_is_shortened() -> None:
    """It stands in `status.adapters` of each: a status of megabytes would never be written."""
    answer = json.dumps({"error": {"message": "x" * 2_000_000}}).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 400 Oh\r\ncontent-length: %d\r\n\r\n%s" % (len(answer), answer))
        await writer.drain()

    async with listening(serve) as port:
        containers = [{"name": names.ENGINE_CONTAINER, "ports": [{"containerPort": port}]}]
        pod = {"metadata": {"name": "dinghy-0"}, "spec": {"containers": containers}, "status": {"podIP": "127.0.0.1"}}
        with pytest.raises(EngineRefused, match="xxx") as raised:
            await HttpEngineAdapters().load(pod, "poet", "/adapters/poet")
    assert len(str(raised.value)) < 5000


async def test_an_engine_that_does_not_answer_is_asked_for_one_of_its_adapters_in_a_look() -> None:
    """Or each would be waited for."""

    class Mute(HttpEngineAdapters):
        def __init__(self) -> None:
            self.asked: list[str] = []

        async def served(self, pod: JsonObject) -> set[str]:
            return set()

        async def load(self, pod: JsonObject, name: str, path: str) -> None:
            self.asked.append(name)
            raise Silent("its engine cannot be asked: no answer in time")

        async def unload(self, pod: JsonObject, name: str) -> None:
            raise AssertionError("it has none")

    pod = {"metadata": {"name": "dinghy-0", "uid": "u"}, "status": {"podIP": "127.0.0.1"}}
    body = {"metadata": {"namespace": NAMESPACE, "name": "dinghy"}}
    observed: Any = SimpleNamespace(
        body=body, replicas=replicas_of([pod]), diagnoses=[SimpleNamespace(stage=Stage.READY)]
    )
    placed = [PlacedAdapter(name, f"dinghy:{name}", "", f"/adapters/{name}") for name in ("cook", "pirate", "poet")]
    wanted: Any = SimpleNamespace(obstacle=None, deployment=object(), adapters=placed)
    engine, looks = Mute(), asyncio.Queue[float]()
    loader = AdapterLoader(lambda key, seconds: looks.put_nowait(seconds), engine)
    await loader.bring(observed, wanted)
    while await looks.get():  # until nothing more is under way
        pass
    loaded = await loader.bring(observed, wanted)
    assert engine.asked == ["cook"]
    assert loaded.adapters is not None and loaded.is_unfinished
    assert all("no answer in time" in each.message for each in loaded.adapters)
    await loader.close()
