"""The tick: signals in, at most one write of the scale, what people are told, and how often."""

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fairlead.autoscaler.demand import GatewayReading, GatewayWindow, ModelReading, Readings
from fairlead.controller.autoscale import REPORT_SECONDS, Autoscaler
from fairlead.controller.events import Announcement
from fairlead.controller.observe import Cluster
from fairlead.kube.client import JsonObject, KubeError
from fairlead.kube.resources import EVENTS, LLMDEPLOYMENTS, PODS
from fairlead.testing.gateway_metrics import FakeGateway
from fairlead.testing.operators import (
    NAMESPACE,
    READY,
    SCHEDULED,
    SETTINGS,
    Fleet,
    bare_api_server,
    fleet_at,
    running_operator,
)

KEY = ("default", "dinghy")
MANAGER = "fairlead-autoscaler"
SCALED = {"maxReplicas": 4, "targets": {"queueDepth": 1}, "scaleDown": {"stabilizationWindow": "10s"}}


def body(autoscaling: dict[str, Any] | None, **spec: Any) -> JsonObject:
    return {
        "metadata": {
            "name": "dinghy", "namespace": "default", "uid": "u", "resourceVersion": "7", "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"model": {"source": "demo://dinghy"}, "replicas": 1, "autoscaling": autoscaling} | spec,
    }  # fmt: skip


def pod(name: str) -> JsonObject:
    return {"metadata": {"name": name}, "status": {"phase": "Running", "conditions": [READY]}}


class World:
    """An autoscaler whose gateways, writes, Events and clock a test plays. What it writes, it sees."""

    def __init__(self, deployment: JsonObject) -> None:
        self.body = deployment
        self.pods = [pod("a")]
        self.waiting = 0
        self.num_missing = 0
        self.time = 1000.0
        self.scales: list[int] = []
        self.statuses: list[Any] = []
        self.announced: list[Announcement] = []
        self.refusal: KubeError | None = None
        self.autoscaler = Autoscaler(
            Cluster(None), self, self, self, interval=5.0, clock=lambda: self.time,
            now=lambda: datetime(2026, 6, 1, 12, 0, 0, tzinfo=UTC),
        )  # fmt: skip

    async def read(self) -> Readings:
        reading = GatewayReading(self.time, {"/".join(KEY): ModelReading(waiting=self.waiting)})
        return Readings(self.time, (GatewayWindow(reading),), self.num_missing)

    async def scale(self, seen: JsonObject, replicas: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        assert seen["metadata"]["resourceVersion"] == "7"
        self.scales.append(replicas)
        self.body = self.body | {"spec": self.body["spec"] | {"replicas": replicas}}
        self.pods = [pod(f"p{number}") for number in range(replicas)]

    async def write_status(self, _: JsonObject, scaling: Any) -> None:
        self.statuses.append(scaling)
        self.body = self.body | {"status": {} if scaling is None else {"scaling": scaling}}

    async def record(self, _: JsonObject, announcement: Announcement) -> None:
        self.announced.append(announcement)

    async def tick(self, seconds: float = 5.0, **changes: Any) -> None:
        self.time += seconds
        for name, value in changes.items():
            setattr(self, name, value)
        indexes = {"llmdeployments": {KEY: [self.body]}, "pods": {KEY: self.pods}, "children": {}, "name_claims": {}}
        self.autoscaler.cluster.bind(indexes)
        await self.autoscaler.tick()


async def test_replicas_follow_the_queue_up_at_once_and_down_after_the_window() -> None:
    world = World(body(SCALED))
    await world.tick(waiting=3)
    assert world.scales == [3]
    await world.tick(waiting=0)
    assert world.scales == [3], "more were needed a moment ago"
    await world.tick(seconds=11.0)
    assert world.scales == [3, 1]


async def test_only_a_change_is_written_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="fairlead.controller.autoscale")
    world = World(body(SCALED))
    for _ in range(3):
        await world.tick()
    assert (world.scales, world.announced, caplog.records) == ([], [], [])
    await world.tick(waiting=2)
    [told] = world.announced
    sentence = "2 requests waiting and 0 running on 1 ready replica (queueDepth 1): 2 replicas needed"
    assert (told.reason, told.message) == ("ScaledUp", f"Scaled from 1 to 2: {sentence}")
    [line] = caplog.records
    fields = vars(line)
    assert (fields["llmdeployment"], fields["from"], fields["to"], fields["wanted"]) == ("default/dinghy", 1, 2, 2)
    assert (fields["waiting"], fields["ready"], fields["num_gateways"], fields["reason"]) == (2, 1, 1, sentence)


@pytest.mark.parametrize("autoscaling", [None, {"mode": "External"}])
async def test_what_fairlead_does_not_scale_is_left_alone(autoscaling: dict[str, Any] | None) -> None:
    world = World(body(autoscaling))
    await world.tick(waiting=100)
    assert (world.scales, world.statuses) == ([], [])


async def test_one_that_is_going_or_cannot_be_understood_keeps_its_replicas() -> None:
    going = body(SCALED)
    going["metadata"]["deletionTimestamp"] = "2026-06-01T00:00:00Z"
    for deployment in (going, body(SCALED, model={})):
        world = World(deployment)
        await world.tick(waiting=100)
        assert world.scales == []


async def test_a_count_that_somebody_else_wrote_meanwhile_is_looked_at_again() -> None:
    world = World(body(SCALED))
    await world.tick(waiting=3, refusal=KubeError(409, "Conflict", "modified"))
    assert (world.scales, world.announced, world.statuses) == ([], [], [])
    await world.tick(refusal=None)
    assert world.scales == [3]


async def test_the_status_tells_figures_decision_and_history() -> None:
    world = World(body(SCALED))
    await world.tick(waiting=234)
    [status] = world.statuses
    reason = "234 requests waiting and 0 running on 1 ready replica (queueDepth 1): more than maxReplicas 4 needed"
    change = {"time": "2026-06-01T12:00:00Z", "from": 1, "to": 4, "reason": reason}
    assert status == {
        "desired": 4,
        "reason": reason,
        "lastScaleTime": "2026-06-01T12:00:00Z",
        "history": [change],
        "signals": {"queue": 230, "running": 0},
    }


async def test_the_status_is_written_only_when_it_is_new_and_not_too_often() -> None:
    world = World(body(SCALED))
    await world.tick()
    await world.tick(seconds=REPORT_SECONDS - 1, waiting=1)
    assert len(world.statuses) == 1
    await world.tick(seconds=2.0)
    assert [status["signals"]["queue"] for status in world.statuses] == [0, 1]
    await world.tick(seconds=100.0)
    assert len(world.statuses) == 2


async def test_the_history_keeps_five_and_survives_a_restart() -> None:
    world = World(body(SCALED))
    for _ in range(4):
        await world.tick(seconds=20.0, waiting=4)
        await world.tick(seconds=20.0, waiting=0)
    history = world.statuses[-1]["history"]
    assert [(change["from"], change["to"]) for change in history] == [(4, 1), (1, 4), (4, 1), (1, 4), (4, 1)]
    restarted = World(world.body)
    await restarted.tick(waiting=2)
    assert restarted.statuses[-1]["history"][1:] == history[:4]


async def test_after_a_restart_nothing_is_taken_away_before_a_whole_window_was_seen() -> None:
    world = World(body(SCALED, replicas=3))
    world.pods = [pod("a"), pod("b"), pod("c")]
    await world.tick()
    await world.tick(seconds=9.0)
    assert world.scales == []
    await world.tick(seconds=2.0)
    assert world.scales == [1]


async def test_a_missing_gateway_is_told_and_keeps_replicas() -> None:
    world = World(body(SCALED, replicas=3))
    await world.tick(num_missing=1)
    await world.tick(seconds=60.0)
    assert world.scales == []
    assert world.statuses[-1]["signals"]["missingGateways"] == 1


async def test_the_status_goes_when_fairlead_no_longer_scales() -> None:
    world = World(body(SCALED))
    await world.tick()
    world.body = world.body | {"spec": world.body["spec"] | {"autoscaling": None}}
    await world.tick()
    await world.tick()
    assert world.statuses[1:] == [None]


# ── with a real operator, API and gateway metrics ─────────────────────────────────────────────────────────────────────


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with bare_api_server(tmp_path) as kubeconfig, fleet_at(kubeconfig) as found:
        yield found


async def gateway_pod(fleet: Fleet, port: int) -> None:
    container = {"name": "gateway", "image": "x", "ports": [{"name": "control", "containerPort": port}]}
    metadata = {"name": "gateway", "namespace": NAMESPACE, "labels": {"app.kubernetes.io/name": "fairlead-gateway"}}
    await fleet.client.create(
        PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    )
    status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [READY]}
    await fleet.client.patch(PODS, "gateway", {"status": status}, NAMESPACE, subresource="status")


async def test_the_operator_scales_what_its_gateways_report_and_the_controller_applies_it(fleet: Fleet) -> None:
    settings = replace(SETTINGS, gateway_namespace=NAMESPACE, autoscaler_interval=0.1)
    gateway = FakeGateway()
    async with gateway.serving() as port, running_operator(fleet, settings):
        await fleet.create(autoscaling=SCALED)
        await fleet.pod("p", SCHEDULED, READY)
        missing = await fleet.until_reason("SignalsMissing", "ScalingActive")
        assert missing["status"] != "True"
        await gateway_pod(fleet, port)
        gateway.waiting.set(3)
        status = await fleet.until(lambda status: status["desiredReplicas"] == 3)
        assert (await fleet.get(LLMDEPLOYMENTS, "dinghy"))["spec"]["replicas"] == 3
        events = {each["reason"]: each["message"] for each in (await fleet.client.list(EVENTS, NAMESPACE))["items"]}
        assert events["ScaledUp"].startswith("Scaled from 1 to 3: 3 requests waiting and 0 running on 1 ready replica")
        status = await fleet.until(lambda status: "history" in status.get("scaling", {}))
        assert status["scaling"]["desired"] == 3
        assert (await fleet.until_reason("ScalingActive", "ScalingActive"))["status"] == "True"
        entries = (await fleet.get(LLMDEPLOYMENTS, "dinghy"))["metadata"]["managedFields"]
        owned = {entry["subresource"]: entry["fieldsV1"] for entry in entries if entry["manager"] == MANAGER}
        assert owned["scale"] == {"f:spec": {"f:replicas": {}}}
        assert list(owned["status"]["f:status"]) == ["f:scaling"]
        await fleet.edit(autoscaling=None)
        await fleet.until(lambda status: "scaling" not in status)
