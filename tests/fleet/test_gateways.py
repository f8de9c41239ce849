"""Following the gateways: pods by label, lines into windows, wakes, silence and its end, gateways that come and go."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.api.signals_message import ReplicaSignals
from fairlead.demand.signals import Demand
from fairlead.fleet.gateways import GatewayFollower, Hanging
from fairlead.kube.client import KubeClient
from fairlead.kube.resources import PODS
from fairlead_common.wire.messages import StepCost
from fairlead_testing.fake_gateway import FakeGateway
from fairlead_testing.operators import bare_api_server

NAMESPACE, MODEL = "default", "default/dinghy"


def replica(name: str, *, age: float = 0.0, **figures: Any) -> ReplicaSignals:
    others: dict[str, Any] = {"step_cost": StepCost(), "adapters": {}}
    fields = [field.name for field in msgspec.structs.fields(ReplicaSignals) if field.name != "name"]
    nothing = {name: others.get(name, 0) for name in fields}
    return ReplicaSignals(name=name, **nothing | {"age_seconds": age, "draining": False, "hangs": False} | figures)


class Gateways:
    """An API with gateway pods, a follower of them, its clock, and the pauses it makes."""

    def __init__(self, client: KubeClient, silence_seconds: float) -> None:
        self.client = client
        self.time = 100.0
        self.pauses: list[float] = []
        self.follower = GatewayFollower(
            client, namespace=NAMESPACE, selector="app=gateway", silence_seconds=silence_seconds,
            clock=lambda: self.time, sleep=self.pause,
        )  # fmt: skip

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0.01)

    async def pod(self, name: str, port: int, *, ready: bool = True, app: str = "gateway", **metadata: Any) -> None:
        """Creates a gateway's pod, or gives it another status."""
        container = {"name": "gateway", "image": "x", "ports": [{"name": "control", "containerPort": port}]}
        metadata |= {"name": name, "namespace": NAMESPACE, "labels": {"app": app}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
        if not any(item["metadata"]["name"] == name for item in (await self.client.list(PODS, NAMESPACE))["items"]):
            await self.client.create(PODS, pod)
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [condition]}
        await self.client.patch(PODS, name, {"status": status}, NAMESPACE, subresource="status")

    @property
    def demand(self) -> Demand:
        return self.follower.readings().demand(MODEL)

    async def until(self, holds: Callable[[], Any]) -> None:
        """Pods and lines come over watches and streams: waits until it is so."""
        async with asyncio.timeout(10):
            while not holds():
                await asyncio.sleep(0.01)


@pytest.fixture
async def gateways(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Gateways]:
    """The parameter, if there is one: seconds of silence after which a gateway is connected to anew."""
    async with bare_api_server(tmp_path) as kubeconfig, await KubeClient.from_environment(kubeconfig) as client:
        found = Gateways(client, getattr(request, "param", 60.0))
        following = asyncio.create_task(found.follower.run())
        yield found
        following.cancel()
        results = await asyncio.gather(following, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError), "it ends by nothing else"


async def test_every_ready_gateway_is_followed_and_summed(gateways: Gateways) -> None:
    one, two = FakeGateway(MODEL), FakeGateway(MODEL, gateway="run-2")
    async with one.serving() as first, two.serving() as second:
        await gateways.pod("one", first)
        await gateways.pod("two", second)
        await gateways.pod("not-ready", 1, ready=False)
        await gateways.pod("something-else", 1, app="other")
        await gateways.until(lambda: gateways.demand.num_gateways == 2)
        one.say(waiting=2)
        two.say(waiting=3)
        await gateways.until(lambda: gateways.demand.waiting == 5)
    assert gateways.demand.num_missing == 0


async def test_a_line_out_of_turn_or_with_a_queue_wakes_whoever_waits_and_others_do_not(gateways: Gateways) -> None:
    gateway = FakeGateway(MODEL)
    async with gateway.serving() as port:
        await gateways.pod("one", port)
        await asyncio.wait_for(gateways.follower.woken.wait(), 10)  # nobody knows what it was asked before
        gateways.follower.woken.clear()
        gateway.say(running=1)
        await gateways.until(lambda: gateways.demand.running == 1)
        assert not gateways.follower.woken.is_set()
        gateway.say(running=1, wake=True)
        await asyncio.wait_for(gateways.follower.woken.wait(), 10)
        gateways.follower.woken.clear()
        gateway.say(running=1, waiting=2)
        await asyncio.wait_for(gateways.follower.woken.wait(), 10)
        assert gateways.demand.waiting == 2


async def test_a_stream_that_ends_is_taken_up_again_and_the_figures_grow_old_meanwhile(gateways: Gateways) -> None:
    gateway = FakeGateway(MODEL)
    async with gateway.serving() as port:
        await gateways.pod("one", port)
        await gateways.until(lambda: gateways.demand.num_gateways == 1)
        gateway.say(waiting=7)
        await gateways.until(lambda: gateways.demand.waiting == 7)
        gateway.is_broken = True
        gateway.hang_up()
        await gateways.until(lambda: len(gateways.pauses) > 3)
        gateways.time += 12.0
        demand = gateways.demand
        assert (demand.waiting, demand.age_seconds, demand.num_missing, demand.num_stale) == (7, 12.0, 0, 1)
        gateway.is_broken = False
        gateways.follower.woken.clear()
        await gateways.until(lambda: gateways.demand.num_stale == 0)
        assert gateways.follower.woken.is_set()


async def test_pauses_grow_while_a_gateway_does_not_answer(gateways: Gateways) -> None:
    gateway = FakeGateway(MODEL)
    gateway.is_broken = True
    async with gateway.serving() as port:
        await gateways.pod("one", port)
        await gateways.until(lambda: len(gateways.pauses) >= 9)
    assert gateways.pauses[0] < 0.3
    assert all(later > earlier for earlier, later in zip(gateways.pauses[:4], gateways.pauses[1:5], strict=True))
    assert 4.0 <= gateways.pauses[8] <= 6.0


async def test_a_gateway_that_never_answered_is_missing_and_named_once(
    gateways: Gateways, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = FakeGateway(MODEL)
    gateway.is_broken = True
    async with gateway.serving() as port:
        await gateways.pod("one", port)
        await gateways.until(lambda: gateways.demand.num_missing == 1 and len(gateways.pauses) > 3)
    said = [record.message for record in caplog.records]
    assert [text.partition(":")[0] for text in said] == ["cannot follow gateway one"]


@pytest.mark.parametrize("gateways", [0.2], indirect=True)
async def test_one_that_keeps_its_connection_and_falls_silent_is_connected_to_anew(gateways: Gateways) -> None:
    gateway = FakeGateway(MODEL)
    async with gateway.serving() as port:
        await gateways.pod("one", port)
        await gateways.until(lambda: gateways.pauses)
        gateway.say(waiting=4)
        await gateways.until(lambda: gateways.demand.waiting == 4)


@pytest.mark.parametrize("text", [b"<html>\n", b'{"gateway": 1}\n', b"x" * 200_000])
async def test_what_is_no_line_of_signals_ends_the_stream_and_nothing_else(
    gateways: Gateways, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.fleet.gateways.MAX_LINE_BYTES", 100_000)
    gateway = FakeGateway(MODEL)
    async with gateway.serving() as port:
        await gateways.pod("one", port)
        await gateways.until(lambda: gateways.demand.num_gateways == 1)
        gateway.mumble(text)
        await gateways.until(lambda: gateways.pauses)
        gateway.say(waiting=3)
        await gateways.until(lambda: gateways.demand.waiting == 3)


async def test_one_that_drains_is_followed_until_it_is_gone(gateways: Gateways) -> None:
    gateway = FakeGateway(MODEL)
    async with gateway.serving() as port:
        await gateways.pod("one", port, finalizers=["test/hold"])
        await gateways.until(lambda: gateways.demand.num_gateways == 1)
        await gateways.client.delete(PODS, "one", NAMESPACE)
        await gateways.pod("one", port, ready=False)
        gateway.say(running=3)
        await gateways.until(lambda: gateways.demand.running == 3)
        gateway.hang_up()
        await gateways.until(lambda: gateways.demand.num_gateways == 0)
    assert gateways.demand.num_missing == 0
    assert gateways.pauses == []


async def test_one_whose_pod_is_gone_is_forgotten_and_one_that_becomes_ready_again_followed(gateways: Gateways) -> None:
    gateway = FakeGateway(MODEL)
    async with gateway.serving() as port:
        await gateways.pod("one", port)
        await gateways.until(lambda: gateways.demand.num_gateways == 1)
        await gateways.client.request("DELETE", PODS.path(NAMESPACE, "one"), body={"gracePeriodSeconds": 0})
        await gateways.until(lambda: gateways.demand.num_gateways == 0 and gateway.num_followers == 0)
        await gateways.pod("two", port, ready=False)
        await gateways.pod("two", port, ready=True)
        await gateways.until(lambda: gateways.demand.num_gateways == 1)
        await gateways.pod("two", port, ready=False)
        gateway.hang_up()
        await gateways.until(lambda: gateways.demand.num_gateways == 0)
        await gateways.pod("two", port, ready=True)
        await gateways.until(lambda: gateways.demand.num_gateways == 1)


async def test_how_much_a_replica_runs_is_what_the_last_load_line_said_to_whichever_gateway(gateways: Gateways) -> None:
    one, two = FakeGateway(MODEL), FakeGateway(MODEL, gateway="run-2")
    async with one.serving() as first, two.serving() as second:
        await gateways.pod("one", first)
        await gateways.pod("two", second)
        await gateways.until(lambda: gateways.demand.num_gateways == 2)
        one.say(replicas={"u": replica("p", age=0.5, running=9, waiting=1), "v": replica("q", running=1)})
        two.say(replicas={"u": replica("p", age=0.1, running=2, waiting=1)})
        await gateways.until(lambda: len(gateways.follower.running()) == 2)
        await gateways.until(lambda: gateways.follower.running() == {"u": 3, "v": 1})


async def test_what_hangs_is_the_last_word_on_each_replica_and_outlasts_a_short_silence(gateways: Gateways) -> None:
    one, two = FakeGateway(MODEL), FakeGateway(MODEL, gateway="run-2")
    stuck = {"hangs": True, "step_age_seconds": 14.0}
    async with one.serving() as first, two.serving() as second:
        await gateways.pod("one", first)
        await gateways.pod("two", second)
        await gateways.until(lambda: gateways.demand.num_gateways == 2)
        one.say(replicas={"u": replica("p", age=0.5, **stuck), "v": replica("q", age=0.5, **stuck)})
        two.say(replicas={"u": replica("p", age=0.1), "v": replica("q", age=2.0)})
        await gateways.until(lambda: len(gateways.follower.running()) == 2)
        await gateways.until(lambda: gateways.follower.hanging() == {"v": Hanging(MODEL, 14.5)})
        gateways.time += 9.0
        assert gateways.follower.hanging() == {"v": Hanging(MODEL, 23.5)}, "gateways that are slow have mended nothing"
        gateways.time += 1.0
        assert not gateways.follower.hanging()
