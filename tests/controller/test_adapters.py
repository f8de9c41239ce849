"""Adapters of a spec on engines that answer: loaded, unloaded, replaced, and what is said where that fails."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.api import names
from fairlead.controller.adapter_loader import AdapterLoader, Silent
from fairlead.controller.operator import Operator
from fairlead.controller.pod_diagnosis import Stage
from fairlead.kube.client import JsonObject
from fairlead.kube.resources import DEPLOYMENTS, EVENTS, PERSISTENT_VOLUME_CLAIMS, PODS
from fairlead.manifests.adapter_folders import PlacedAdapter
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.local_api import local_api_server
from fairlead_testing.operators import NAMESPACE, PATIENCE_SECONDS, READY, Fleet, condition, fleet_at, running_operator

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

    async def pods(self, number: int) -> list[str]:
        """Waits for so many pods, whose engines become ready; their names."""
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
                engine.adapter_troubles["/adapters/boats/bad"] = "it has rank 128, and the engine room for 16"
                self.engines[name] = await self._stack.enter_async_context(engine)
                status = {"phase": "Running", "podIP": address, "conditions": [READY]}
                await self.fleet.client.patch(PODS, name, {"status": status}, NAMESPACE, subresource="status")
        return sorted(self.engines)

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
        operator = await stack.enter_async_context(running_operator(fleet))
        yield Sea(fleet, operator, stack)


async def test_engines_load_and_unload_what_the_spec_lists_and_no_pod_is_replaced(sea: Sea) -> None:
    await sea.fleet.client.create(PERSISTENT_VOLUME_CLAIMS, CLAIM)
    await sea.fleet.create(replicas=2, adapters=adapters("pirate", "poet", pirate="redbeard"))
    first, second = await sea.pods(2)
    said = await sea.until(pirate=(2, "AdapterLoaded"), poet=(2, "AdapterLoaded"))
    assert said["pirate"] == {
        "name": "pirate", "servedName": "redbeard", "readyReplicas": 2, "reason": "AdapterLoaded",
        "message": "loaded on 2/2 ready replicas",
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


async def test_an_engine_that_does_not_answer_is_asked_for_one_of_its_adapters_in_a_look() -> None:
    """Or its LLMDeployment would wait for each, and others for that."""

    class Mute:
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
    observed: Any = SimpleNamespace(body=body, pods=[pod], diagnoses=[SimpleNamespace(stage=Stage.READY)])
    placed = [PlacedAdapter(name, f"dinghy:{name}", "", f"/adapters/{name}") for name in ("cook", "pirate", "poet")]
    wanted: Any = SimpleNamespace(obstacle=None, deployment=object(), adapters=placed)
    engine = Mute()
    loaded = await AdapterLoader(engine).bring(observed, wanted)
    assert engine.asked == ["cook"]
    assert loaded.adapters is not None and loaded.is_unfinished
    assert all("no answer in time" in each.message for each in loaded.adapters)
