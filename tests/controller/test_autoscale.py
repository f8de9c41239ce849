"""The tick: signals in, at most one write of the scale, what people are told, and how often."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fairlead.api.admission_policy import AdmissionPolicy
from fairlead.api.llmdeployment import LLMDeployment, broken_rules
from fairlead.api.signals_message import ModelSignals, ReplicaSignals, SignalsLine, count_seconds
from fairlead.controller import autoscale
from fairlead.controller.autoscale import PAUSE_SECONDS, REPORT_SECONDS, Autoscaler
from fairlead.controller.events import Announcement
from fairlead.controller.observe import Cluster
from fairlead.controller.operator_metrics import OperatorMetrics
from fairlead.demand.readings import GatewayWindow, Readings
from fairlead.kube.client import JsonObject, KubeError
from fairlead.kube.resources import DEPLOYMENTS, EVENTS, LLMDEPLOYMENTS
from fairlead.manifests.children import children
from fairlead.operator_settings import GpuBudget
from fairlead_common.wire.messages import StepCost
from fairlead_common.wire.profiles import EngineProfile
from fairlead_testing.clock import run_in_virtual_time
from fairlead_testing.fake_gateway import FakeGateway
from fairlead_testing.fleet_objects import stored
from fairlead_testing.measured_profiles import measured_profile, profile_config_map
from fairlead_testing.operators import (
    NAMESPACE,
    READY,
    SCHEDULED,
    SETTINGS,
    Fleet,
    bare_api_server,
    fleet_at,
    gateway_pod,
    running_operator,
)

KEY = ("default", "dinghy")
MANAGER = "fairlead-autoscaler"
SCALED = {"maxReplicas": 4, "targets": {"queueDepth": 1}, "scaleDown": {"stabilizationWindow": "10s"}}


def body(autoscaling: dict[str, Any] | None, **spec: Any) -> JsonObject:
    return stored(namespace="default", **{"replicas": 1, "autoscaling": autoscaling, **spec})


def pod(name: str, *, took: int | None = None, ready: bool = True, restarts: int = 0) -> JsonObject:
    """`took`: seconds from creation to ready."""
    metadata = {"name": name, "uid": f"uid-{name}", "creationTimestamp": "2026-06-01T12:00:00Z"}
    times = {} if took is None else {"lastTransitionTime": f"2026-06-01T12:00:{took:02}Z"}
    condition = READY | times | ({} if ready else {"status": "False"})
    statuses = [{"name": "engine", "restartCount": restarts}]
    return {
        "metadata": metadata,
        "status": {"phase": "Running", "conditions": [condition], "containerStatuses": statuses},
    }


LOAD = ReplicaSignals(
    name="a", age_seconds=0.0, running=16, waiting=0, queued_prefill_tokens=0, kv_blocks_free=900, kv_blocks_total=1000,
    kv_tokens=1600, token_budget=512, max_num_seqs=32, step_cost=StepCost(base=0.02, decode_seq=0.002),
)  # fmt: skip


class World:
    """An autoscaler whose gateways, writes, Events and clock a test plays. What it writes, it sees."""

    def __init__(
        self, deployment: JsonObject, policy: AdmissionPolicy | None = None, budgets: tuple[GpuBudget, ...] = ()
    ) -> None:
        self.body = deployment
        self.pods = [pod("a")]
        self.extra: dict[str, Any] = {}
        """Objects of other LLMDeployments, by index."""
        self.children: list[JsonObject] = []
        self.waiting = 0
        self.waiting_tokens = 0
        self.ttft: float | None = None
        """What twenty first tokens have taken."""
        self.pace: float | None = None
        """What all answers have taken per output token, on an engine whose steps cost 20 ms and 2 ms a sequence."""
        self.arrivals = 0
        self.num_missing = 0
        self.time = 1000.0
        self.now = datetime(2026, 6, 1, 12, 0, 0, tzinfo=UTC)
        self.window = GatewayWindow()
        self.woken = asyncio.Event()
        self.metrics = OperatorMetrics()
        self.scales: list[int] = []
        self.statuses: list[Any] = []
        self.announced: list[Announcement] = []
        self.refusal: KubeError | None = None
        self.hanging: dict[str, str] = {}
        told = replace(SETTINGS, autoscaler_interval=5.0, admission_policy=policy, gpu_budgets=budgets)
        self.autoscaler = Autoscaler(
            Cluster(None, hanging=lambda: self.hanging), self, self, self, self.metrics,
            settings=told, clock=lambda: self.time,
            now=lambda: self.now,
        )  # fmt: skip

    async def run(self) -> None:
        await asyncio.Event().wait()

    def readings(self) -> Readings:
        """One gateway, which has been running for as long as the clock."""
        model = ModelSignals(waiting=self.waiting, waiting_uncached_tokens=self.waiting_tokens)
        for _ in range(20 if self.ttft is not None else 0):
            count_seconds(model.ttft, self.ttft or 0.0)
        model.num_arrivals = self.arrivals
        if self.pace is not None:
            model.num_answered, model.output_tokens = self.arrivals, 100 * self.arrivals
            model.replicas = {"uid-a": LOAD}
            for _ in range(self.arrivals):
                count_seconds(model.tpot, self.pace)
        line = SignalsLine(gateway="g", uptime_seconds=self.time, models={"/".join(KEY): model})
        self.window = self.window.hear(line, self.time)
        return Readings(self.time, (self.window,), self.num_missing)

    async def scale(self, seen: JsonObject, replicas: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        assert seen["metadata"]["resourceVersion"] == "5"
        self.scales.append(replicas)
        self.body = self.body | {"spec": self.body["spec"] | {"replicas": replicas}}
        self.pods = [pod(f"p{number}") for number in range(replicas)]

    async def write_status(self, _: JsonObject, status: Any) -> None:
        self.statuses.append(status.get("scaling"))
        self.body = self.body | {"status": status}

    async def record(self, _: JsonObject, announcement: Announcement) -> None:
        self.announced.append(announcement)

    async def tick(self, seconds: float = 5.0, **changes: Any) -> None:
        self.time += seconds
        for name, value in changes.items():
            setattr(self, name, value)
        self.bind()
        await self.autoscaler.tick()

    def bind(self) -> None:
        """What kopf has seen."""
        indexes = {"llmdeployments": {KEY: [self.body]}, "pods": {KEY: self.pods}}
        indexes = {name: found | self.extra.get(name, {}) for name, found in indexes.items()}
        indexes |= {"children": {KEY: self.children}, "name_claims": {}}
        self.autoscaler.cluster.bind(indexes)

    def metric(self, name: str, **labels: str) -> float | None:
        labels |= {"llmdeployment": "/".join(KEY)}
        return self.metrics.registry.get_sample_value(f"fairlead_operator_{name}", labels)


async def test_replicas_follow_the_queue_up_at_once_and_down_after_the_window() -> None:
    world = World(body(SCALED))
    await world.tick(waiting=3)
    assert world.scales == [3]
    await world.tick(waiting=0)
    assert world.scales == [3], "more were needed a moment ago"
    await world.tick(seconds=11.0)
    assert world.scales == [3, 1]


async def test_schedules_move_the_bounds_at_their_times_and_sentences_name_them() -> None:
    day = {"name": "day", "days": ["Mon"], "start": "08:00", "end": "18:00", "minReplicas": 3, "maxReplicas": 5}
    closed = {"name": "closed", "days": ["Tue"], "maxReplicas": 1}
    world = World(body(SCALED | {"schedules": [day, closed]}))
    await world.tick(now=datetime(2026, 6, 1, 7, 59, tzinfo=UTC))
    assert world.scales == []
    await world.tick(now=datetime(2026, 6, 1, 8, 0, tzinfo=UTC))
    assert world.scales == [3]
    assert world.announced[-1].message.endswith("but minReplicas is 3 by schedule day")
    await world.tick(waiting=9)
    assert world.scales == [3, 5]
    assert "maxReplicas is 5 by schedule day" in world.announced[-1].message
    await world.tick(now=datetime(2026, 6, 1, 18, 0, tzinfo=UTC))
    assert world.scales == [3, 5, 4], "the fleet's own"
    await world.tick(now=datetime(2026, 6, 2, 0, 0, tzinfo=UTC))
    assert world.scales == [3, 5, 4, 1]


async def test_an_llmdeployment_is_read_when_it_changes_and_not_at_every_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks are frequent, and one with a template of a megabyte takes a tenth of a second."""
    read = []
    monkeypatch.setattr(autoscale, "broken_rules", lambda each: (read.append(each), broken_rules(each))[1])
    world = World(body(SCALED))
    for _ in range(5):
        await world.tick(seconds=0.25)
    num_writes = len(world.statuses) + len(world.scales)
    assert len(read) <= 1 + num_writes < 5
    num_read = len(read)
    await world.tick(seconds=0.25, body=body(SCALED))
    assert len(read) == num_read + 1


@pytest.mark.parametrize(("profile", "wanted"), [(None, 1), (measured_profile(), 4)])
async def test_a_measured_profile_tells_what_the_first_replicas_will_bear(
    profile: EngineProfile | None, wanted: int
) -> None:
    """8000 tokens wait, of which a replica computes a hundred a second: four are through within three starts. Nobody
    has told so but the profile."""
    scaled = {"maxReplicas": 8, "minReplicas": 0, "scaleUp": {"maxStep": 8}, "targets": {"timeToFirstToken": "1200ms"}}
    named = {"profile": {"configMap": "measured"}} if profile else {}
    world = World(body(scaled, replicas=0, engine=named))
    world.pods = []
    config_map = profile_config_map(profile) if profile else None
    world.children = [*children(LLMDeployment.from_body(world.body), SETTINGS, profile=config_map)]
    await world.tick(waiting=80, waiting_tokens=8000)
    assert world.scales == [wanted]


async def test_a_replica_that_hangs_is_no_capacity() -> None:
    world = World(body(SCALED, replicas=2))
    world.pods = [pod("a"), pod("b")]
    await world.tick()
    await world.tick(seconds=20.0, waiting=2, hanging={"uid-b": "2026-06-01T12:00:00Z"})
    assert world.scales == [3], "two that answer for two that wait, and the one that hangs"


@pytest.mark.parametrize(("target", "scaled"), [("100ms", []), ("50ms", [2]), ("15ms", [])])
async def test_answers_that_come_too_slowly_add_replicas_unless_none_would_be_faster(
    target: str, scaled: list[int]
) -> None:
    """Three requests a second of a hundred tokens: 15 sequences in steps of 50 ms, and some more by chance."""
    world = World(body({"maxReplicas": 4, "targets": {"timePerOutputToken": target}}))
    for second in range(75):
        await world.tick(seconds=1.0, arrivals=3 * second, pace=0.06)
    assert world.scales == scaled
    [status] = world.statuses[-1:]
    assert status["signals"]["tpot"]
    reason = status["reason"]
    assert scaled != [2] or ("1 would take" in reason and "per output token at p90 > timePerOutputToken 50ms" in reason)
    assert ("no number of replicas meets timePerOutputToken 15ms" in reason) is (target == "15ms")


@pytest.mark.parametrize(("policy", "scaled"), [(None, [3]), (AdmissionPolicy(), [])])
async def test_what_the_admission_policy_refuses_keeps_its_replicas(
    policy: AdmissionPolicy | None, scaled: list[int]
) -> None:
    world = World(body(SCALED, template={"spec": {"hostNetwork": True}}), policy)
    await world.tick(waiting=3)
    assert world.scales == scaled


async def test_only_a_change_is_written_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="fairlead.controller.autoscale")
    world = World(body(SCALED))
    for _ in range(3):
        await world.tick()
    assert (world.scales, world.announced, caplog.records) == ([], [], [])
    await world.tick(waiting=2)
    [told] = world.announced
    sentence = world.statuses[-1]["reason"]
    assert sentence.startswith("2 replicas: 1 would leave 2 requests waiting (queueDepth 1)")
    assert (told.reason, told.message) == ("ScaledUp", f"Scaled from 1 to {sentence}")
    [line] = caplog.records
    fields = vars(line)
    assert (fields["llmdeployment"], fields["from"], fields["to"], fields["wanted"]) == ("default/dinghy", 1, 2, 2)
    assert (fields["waiting"], fields["ready"], fields["num_gateways"], fields["reason"]) == (2, 1, 1, sentence)


async def test_decisions_and_what_is_asked_for_are_metrics_while_fairlead_scales() -> None:
    world = World(body(SCALED))
    await world.tick(waiting=9)
    assert world.metric("scaling_decisions_total", direction="up") == 1
    assert (world.metric("desired_replicas"), world.metric("wanted_replicas")) == (4, 4)
    for _ in range(4):
        await world.tick(seconds=11.0, waiting=0)
    assert world.metric("scaling_decisions_total", direction="down")
    assert world.metric("desired_replicas") == 1
    world.body = world.body | {"spec": world.body["spec"] | {"autoscaling": None}}
    await world.tick()
    assert world.metric("desired_replicas") is None
    assert world.metric("scaling_decisions_total", direction="up") is None


@pytest.mark.parametrize("autoscaling", [None, {"mode": "External"}])
async def test_what_fairlead_does_not_scale_is_left_alone(autoscaling: dict[str, Any] | None) -> None:
    world = World(body(autoscaling))
    await world.tick(waiting=100)
    assert world.scales == []
    assert world.statuses == [{"signals": {"queue": 100, "running": 0}}]


async def test_queue_and_first_tokens_are_told_without_autoscaling_but_not_too_often() -> None:
    world = World(body(None))
    await world.tick()
    await world.tick(seconds=REPORT_SECONDS - 1.0, waiting=7, ttft=2.0)
    assert world.statuses == [{"signals": {"queue": 0, "running": 0}}]
    await world.tick(seconds=2.0)
    assert world.statuses[1:] == [{"signals": {"queue": 7, "running": 0, "ttft": "2.4s"}}]
    await world.tick(seconds=REPORT_SECONDS)
    assert len(world.statuses) == 2


@pytest.mark.parametrize("autoscaling", [None, SCALED | {"minReplicas": 0}])
async def test_nothing_of_earlier_replicas_is_told_at_zero(autoscaling: dict[str, Any] | None) -> None:
    world = World(body(autoscaling, replicas=1))
    await world.tick()
    await world.tick(seconds=11.0, ttft=2.0)
    assert world.statuses[-1]["signals"]["ttft"] == "2.4s"
    world.body = world.body | {"spec": world.body["spec"] | {"replicas": 0}}
    await world.tick(seconds=11.0, pods=[])
    assert world.statuses[-1]["signals"] == {"queue": 0, "running": 0}


async def test_one_that_is_going_or_cannot_be_understood_keeps_its_replicas() -> None:
    going = body(SCALED)
    going["metadata"]["deletionTimestamp"] = "2026-06-01T00:00:00Z"
    breaks_a_rule = body(SCALED | {"minReplicas": 5})
    for deployment in (going, body(SCALED, model={}), breaks_a_rule):
        world = World(deployment)
        await world.tick(waiting=100)
        assert world.scales == []


async def test_a_count_that_somebody_else_wrote_meanwhile_is_looked_at_again() -> None:
    world = World(body(SCALED))
    await world.tick(waiting=3, refusal=KubeError(409, "Conflict", "modified"))
    assert (world.scales, world.announced, world.statuses) == ([], [], [])
    assert world.woken.is_set(), "not only at the next regular look"
    await world.tick(refusal=None)
    assert world.scales == [3]


async def test_a_refusal_for_good_is_logged_and_waits_for_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    world = World(body(SCALED))
    await world.tick(waiting=3, refusal=KubeError(403, "Forbidden", "no"))
    assert "default/dinghy: cannot write the scale or its status: no" in caplog.records[-1].message
    assert not world.woken.is_set()


async def test_the_status_tells_figures_decision_and_history() -> None:
    world = World(body(SCALED))
    await world.tick(waiting=234)
    [status] = world.statuses
    reason = status["reason"]
    assert "even 4 would leave 234 requests waiting" in reason
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
    for _ in range(9):
        await world.tick(seconds=20.0, waiting=4)
        await world.tick(seconds=20.0, waiting=0)
    counts = [1, *world.scales]
    assert len(world.scales) > 5
    history = world.statuses[-1]["history"]
    told = [(change["from"], change["to"]) for change in history]
    assert told == list(reversed(list(zip(counts, world.scales, strict=False))))[:5]
    restarted = World(world.body)
    await restarted.tick(waiting=1)
    assert (restarted.scales, restarted.statuses[-1]["history"]) == ([], history)


async def test_after_a_restart_nothing_is_taken_away_before_a_whole_window_was_seen() -> None:
    world = World(body(SCALED, replicas=3))
    world.pods = [pod("a"), pod("b"), pod("c")]
    await world.tick()
    await world.tick(seconds=9.0)
    assert world.scales == []
    await world.tick(seconds=2.0)
    assert world.scales == [1]


async def test_a_decision_is_told_at_once_although_the_last_report_is_young() -> None:
    world = World(body(SCALED))
    await world.tick()
    await world.tick(seconds=1.0, waiting=3)
    assert world.statuses[-1]["desired"] == 3
    assert world.statuses[-1]["history"][0]["to"] == 3


async def test_how_long_replicas_take_to_start_is_measured_reported_and_survives_a_restart() -> None:
    world = World(body(SCALED))
    world.pods = [pod("a", took=20), pod("b", took=40, ready=False)]
    await world.tick()
    assert world.statuses[-1]["coldStart"] == "20s"
    world.pods = [pod("a", took=20), pod("b", took=40)]
    await world.tick(seconds=REPORT_SECONDS)
    assert world.statuses[-1]["coldStart"] == "30s", "the newest counts as much as all before it"
    restarted = World(world.body)
    restarted.pods = [pod("a", took=20), pod("b", took=40), pod("c", took=50, ready=False)]
    await restarted.tick()
    restarted.pods = [pod("b", took=40), pod("c", took=50)]
    await restarted.tick(seconds=REPORT_SECONDS)
    assert restarted.statuses[-1]["coldStart"] == "40s"


async def test_nothing_is_forgotten_while_it_is_not_known_what_there_is() -> None:
    """As when the operator begins to watch anew, because the API server serves another kind."""
    world = World(body(SCALED))
    await world.tick(waiting=3)
    await world.tick(waiting=0)
    world.autoscaler.cluster.unbind()
    world.time += 5.0
    await world.autoscaler.tick()
    assert world.metric("scaling_decisions_total", direction="up") == 1
    await world.tick(seconds=6.0)
    assert world.scales == [3, 1], "its window has gone on"
    world.autoscaler.cluster.bind({})
    await world.autoscaler.tick()
    assert world.metric("desired_replicas") is None


async def test_from_zero_the_first_waiting_request_is_enough() -> None:
    world = World(body({"minReplicas": 0, "maxReplicas": 4}, replicas=0))
    world.pods = []
    await world.tick(num_missing=1)
    assert world.scales == []
    await world.tick(seconds=0.3, waiting=1)
    assert world.scales == [1]


def test_it_looks_at_intervals_and_at_once_when_woken_but_not_more_often_than_that() -> None:
    looks: list[float] = []

    class Looking(World):
        def readings(self) -> Readings:
            looks.append(round(asyncio.get_running_loop().time(), 3))
            return super().readings()

    async def story() -> None:
        world = Looking(body(SCALED))
        world.bind()
        running = asyncio.create_task(world.autoscaler.run())
        await asyncio.sleep(7.0)
        world.woken.set()
        await asyncio.sleep(0.001)
        world.woken.set()
        await asyncio.sleep(1.0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_in_virtual_time(story())
    assert looks == [5.0 - PAUSE_SECONDS, 7.0, 7.0 + PAUSE_SECONDS]


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
    [told] = world.statuses[1:]
    assert told == {"signals": {"queue": 0, "running": 0}}


# ── with a real operator, API and gateway metrics ─────────────────────────────────────────────────────────────────────


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with bare_api_server(tmp_path) as kubeconfig, fleet_at(kubeconfig) as found:
        yield found


async def test_the_operator_scales_what_its_gateways_report_and_the_controller_applies_it(fleet: Fleet) -> None:
    settings = replace(SETTINGS, gateway_namespace=NAMESPACE, autoscaler_interval=0.5)
    gateway = FakeGateway()
    async with gateway.serving() as port, running_operator(fleet, settings):
        await fleet.create(autoscaling=SCALED)
        await fleet.pod("p", SCHEDULED, READY)
        missing = await fleet.until_reason("SignalsMissing", "ScalingActive")
        assert missing["status"] != "True"
        await gateway_pod(fleet, port)
        gateway.signals.waiting = 3
        status = await fleet.until(lambda status: status.get("desiredReplicas") == 3)
        assert (await fleet.get(LLMDEPLOYMENTS, "dinghy"))["spec"]["replicas"] == 3
        status = await fleet.until(lambda status: "history" in status.get("scaling", {}))
        assert status["scaling"]["desired"] == 3
        events = {each["reason"]: each["message"] for each in (await fleet.client.list(EVENTS, NAMESPACE))["items"]}
        assert events["ScaledUp"] == f"Scaled from 1 to {status['scaling']['history'][0]['reason']}"
        assert (await fleet.until_reason("ScalingActive", "ScalingActive"))["status"] == "True"
        entries = (await fleet.get(LLMDEPLOYMENTS, "dinghy"))["metadata"]["managedFields"]
        owned = {entry["subresource"]: entry["fieldsV1"] for entry in entries if entry["manager"] == MANAGER}
        assert owned["scale"] == {"f:spec": {"f:replicas": {}}}
        assert list(owned["status"]["f:status"]) == ["f:scaling"]
        await fleet.edit(autoscaling=None)
        await fleet.until(lambda status: list(status.get("scaling", {})) == ["signals"])  # the decisions are gone


async def test_a_request_at_zero_starts_a_replica_long_before_the_next_regular_look(fleet: Fleet) -> None:
    settings = replace(SETTINGS, gateway_namespace=NAMESPACE, autoscaler_interval=3600.0)
    gateway = FakeGateway()
    async with gateway.serving() as port, running_operator(fleet, settings):
        await fleet.create(autoscaling={"minReplicas": 0, "maxReplicas": 4}, replicas=0)
        asleep = await fleet.until_reason("ScaledToZero")
        await gateway_pod(fleet, port)
        await fleet.until(lambda status: "signals" in status.get("scaling", {}))
        assert (asleep["status"], asleep["message"]) == (
            "True",
            "scaled to zero: the next request starts a replica and waits for it",
        )
        gateway.say(waiting=1, num_arrivals=1, wake=True)
        await fleet.until(lambda status: status.get("desiredReplicas") == 1)
        assert (await fleet.get(DEPLOYMENTS, "dinghy-engine"))["spec"]["replicas"] == 1


async def test_replicas_wait_for_the_gpus_of_a_budget_and_the_sentence_says_who_has_them() -> None:
    """Three requests wait for one replica; of three GPUs an LLMDeployment that nobody scales has two."""
    gpu, other = {"resources": {"gpus": 1}}, ("default", "other")
    world = World(body(SCALED, **gpu), budgets=(GpuBudget(name="a100s", gpus=3, namespaces=("default",)),))
    for num_held in (2, 1):
        held = body(None, replicas=num_held, **gpu)
        held["metadata"] |= {"name": "other", "uid": "v"}
        world.extra = {"llmdeployments": {other: [held]}, "pods": {other: [pod(f"x{n}") for n in range(num_held)]}}
        await world.tick(waiting=3)
        if num_held == 2:
            assert world.scales == []
            assert world.statuses[-2]["reason"] == (
                "1 replica: 3 are needed because 2 would leave 3 requests waiting (queueDepth 1), but 2 of 3 wanted "
                "replicas wait for GPU budget a100s: 3 of 3 GPUs, of which default/other (priority 0) holds 2"
            )
    assert world.scales == [2]


async def test_one_that_cannot_be_made_any_more_holds_the_gpus_of_its_pods() -> None:
    """An edit names a profile that is not there; the replicas of before stay."""
    gpu, other = {"resources": {"gpus": 1}}, ("default", "other")
    for budget, scales in ((GpuBudget(name="all", gpus=3), []), (GpuBudget(name="all", gpus=4), [2])):
        world = World(body(SCALED, **gpu), budgets=(budget,))
        edited = body(None, replicas=5, resources={"profile": "absent"})
        edited["metadata"] |= {"name": "other", "uid": "v"}
        limits = {"cpu": "2", "nvidia.com/gpu": "2"}
        holding = pod("x") | {"spec": {"containers": [{"name": "engine", "resources": {"limits": limits}}]}}
        world.extra = {"llmdeployments": {other: [edited]}, "pods": {other: [holding]}}
        await world.tick(waiting=3)
        assert world.scales == scales


class Broken(Readings):
    """Readings of which one model's cannot be understood."""

    def demand(self, model: str) -> Any:
        if model.endswith("/broken"):
            raise ZeroDivisionError(model)
        return super().demand(model)


async def test_one_that_cannot_be_judged_does_not_keep_the_others_from_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(body(SCALED))
    other = body(SCALED)
    other["metadata"] |= {"name": "broken", "uid": "v"}
    readings = world.readings
    monkeypatch.setattr(world, "readings", lambda: Broken(*(getattr(readings(), f) for f in Readings.__slots__)))
    monkeypatch.setattr(world, "bind", lambda: None)
    keys = {("default", "broken"): [other], KEY: [world.body]}
    pods = {KEY: world.pods, ("default", "broken"): []}
    world.autoscaler.cluster.bind({"llmdeployments": keys, "pods": pods, "children": {}, "name_claims": {}})
    await world.tick(waiting=3)
    assert world.scales == [3]
    assert "default/broken could not be scaled" in caplog.text
    del keys["default", "broken"]
    await world.tick()  # one of which nothing was ever recommended is forgotten without an error
