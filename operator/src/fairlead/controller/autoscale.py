"""The autoscaler's story, on one screen: signals → recommend → LLMDeployment /scale. `tick` looks at every
LLMDeployment, `look` is what happens with one.

Who calls it: the operator, while it holds the Lease. It decides nothing itself (`fairlead.autoscaler` does) and writes
the scale, Events and `status.scaling`, which of what it does not scale says only what gateways see: the controller
alone brings the count to the Deployment. It looks at regular intervals, and at once when a gateway says that somebody
waits.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fairlead.api.admission_policy import AdmissionPolicy
from fairlead.api.author_rules import refusals
from fairlead.api.conditions import Reason
from fairlead.api.llmdeployment import Autoscaling, InvalidSpec, LLMDeployment, ScalingMode, broken_rules
from fairlead.api.model_cache import ModelCache
from fairlead.api.names import SCALING_HISTORY_LENGTH
from fairlead.api.quantities import parse_duration
from fairlead.autoscaler.history import History
from fairlead.autoscaler.policy import demand_window, targets_of
from fairlead.autoscaler.readings import Readings
from fairlead.autoscaler.recommend import recommend
from fairlead.autoscaler.recommendation import Recommendation
from fairlead.autoscaler.signals import Capacity, Signals
from fairlead.controller.events import Announcement, EventRecorder, EventType
from fairlead.controller.observe import Cluster, Observed
from fairlead.controller.operator_metrics import OperatorMetrics
from fairlead.controller.pod_diagnosis import Stage
from fairlead.controller.scaling import SubresourceWriter, scaling_status, seen_status
from fairlead.controller.start_stages import download_seconds, start_seconds
from fairlead.controller.worker import Key
from fairlead.fleet.gateways import GatewayFollower
from fairlead.fleet.pods import became_ready
from fairlead.kube.client import JsonObject, KubeError
from fairlead.manifests.measured_profile import mounted_profile

logger = logging.getLogger(__name__)

REPORT_SECONDS = 10.0
"""`status.scaling` of one LLMDeployment is written at most this often, but for decisions, which are told at once."""
UNTARGETED_PERCENTILE = 90
"""Of the times to first token of what has no targets: that of the column TTFT-P90."""
PAUSE_SECONDS = 0.25
"""Least time between two looks, however often gateways ask for one."""
COLD_START_WEIGHT = 0.5
"""Of the newest pod in the mean: the second start on a node is often much faster than the first, which had to pull the
image, and it is the next start that matters."""


@dataclass(frozen=True, slots=True)
class ScaleTarget:
    """An LLMDeployment that Fairlead scales, as last seen."""

    key: Key
    deployment: LLMDeployment
    autoscaling: Autoscaling
    observed: Observed

    @property
    def name(self) -> str:
        """`namespace/name`."""
        return "/".join(self.key)


@dataclass(frozen=True, slots=True)
class ColdStart:
    """How long a replica takes to start, measured on the pods of one LLMDeployment: so far ahead the autoscaler has to
    look. Immutable; `observe` makes the next one."""

    mean: float | None = None
    """Of creation → ready, in seconds, without the downloads that the next start may be spared; None = no pod was seen
    to start."""
    measured: frozenset[str] = frozenset()
    """Uids of the pods it has been measured on, of those that still exist."""
    download: float = 0.0
    """What the next start has to download on top, in seconds."""

    @property
    def seconds(self) -> float | None:
        """None = no pod was seen to start."""
        return None if self.mean is None else self.mean + self.download

    @classmethod
    def resumed(cls, seconds: float | None, pods: Iterable[Mapping[str, Any]]) -> "ColdStart":
        """As an earlier process left it: with a figure of its own, the pods that are ready by now are part of it."""
        ready = {pod["metadata"]["uid"] for pod in pods if became_ready(pod) is not None}
        return cls(seconds, frozenset(ready if seconds is not None else ()))

    def observe(self, pods: Iterable[Mapping[str, Any]], cache: ModelCache | None = None) -> "ColdStart":
        """With what pods that became ready have taken, oldest first. `cache`: where they keep a downloaded model.

        What is on a claim that they share, the next one finds. Of nodes, the newest pod tells: where it found the model
        there were no new nodes left, or it would have been sent to one.
        """
        mean, seen, download = self.mean, list(pods), self.download
        measured = self.measured & {pod["metadata"]["uid"] for pod in seen}
        for pod in seen:
            took = None if pod["metadata"]["uid"] in measured else start_seconds(pod)
            if took is None:
                continue
            measured |= {pod["metadata"]["uid"]}
            fetched = download_seconds(pod) if cache is not None and (cache.node or cache.claim) else 0.0
            took, download = took - fetched, fetched if cache is not None and cache.node else 0.0
            mean = took if mean is None else mean + COLD_START_WEIGHT * (took - mean)
        return ColdStart(mean, measured, download)


@dataclass(slots=True)
class ScalingMemory:
    """What is remembered of one LLMDeployment from tick to tick; gone with the process."""

    uid: str
    history: History
    cold_start: ColdStart
    changes: list[Mapping[str, Any]]
    """As in `status.scaling.history`."""
    reported: Mapping[str, Any] | None
    """The last `status.scaling`."""
    reported_at: float = float("-inf")
    """When that was; -inf = it has to be told at once."""


def measured_capacity(target: ScaleTarget) -> Capacity | None:
    """What a replica will take, by the profile that the engine's pods are to begin with; None = they have none."""
    config, engine = target.observed.engine_config, target.deployment.spec.engine
    profile = None if config is None else mounted_profile(config)
    if profile is None:
        return None
    return Capacity.measured(profile, engine.max_num_seqs, engine.max_num_batched_tokens)


class Autoscaler:
    """`run()` ticks until cancelled."""

    def __init__(
        self,
        cluster: Cluster,
        gateways: GatewayFollower,
        writer: SubresourceWriter,
        recorder: EventRecorder,
        metrics: OperatorMetrics,
        *,
        interval: float,
        policy: AdmissionPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`interval`: most seconds between ticks. `policy`: what it refuses keeps its replicas. `clock`: monotonic, for
        windows. `now`: for what people read."""
        self.cluster = cluster
        self.gateways = gateways
        self.writer = writer
        self.recorder = recorder
        self.metrics = metrics
        self.interval = interval
        self._policy = policy
        self._clock = clock
        self._now = now
        self._memories: dict[Key, ScalingMemory] = {}
        self._read: dict[Key, tuple[JsonObject, LLMDeployment | None]] = {}
        """Objects as last seen, and what was made of them."""
        self._told_at: dict[Key, float] = {}
        """When the status of one that Fairlead does not scale was last written."""

    async def run(self) -> None:
        """Follows the gateways and ticks."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.gateways.run())
            while True:
                with suppress(TimeoutError):  # until a gateway asks, at most the interval
                    await asyncio.wait_for(self.gateways.woken.wait(), max(0.0, self.interval - PAUSE_SECONDS))
                self.gateways.woken.clear()
                try:
                    await self.tick()
                except Exception:
                    logger.exception("the autoscaler's tick failed; the next one is in %g s", self.interval)
                await asyncio.sleep(PAUSE_SECONDS)

    async def tick(self) -> None:
        """One look at everything. What the API refuses is tried again at the next. While it is not known what there is,
        nothing is looked at, and nothing forgotten."""
        if not self.cluster.is_bound:
            return
        readings = self.gateways.readings()  # what every gateway has said lately
        for target in list(self.targets()):  # LLMDeployments with autoscaling.mode Fairlead
            try:
                await self.look(target, readings)
            except KubeError as e:
                if e.status == 409:  # somebody else wrote the object since it was seen: looks again soon
                    self.gateways.woken.set()
                else:
                    logger.warning("%s: cannot write the scale or its status: %s", target.name, e)
            except Exception:  # a mistake of ours, and only this one's: the others are scaled all the same
                logger.exception("%s could not be scaled; tried again at the next tick", target.name)
        await self.report_others(readings)

    async def look(self, target: ScaleTarget, readings: Readings) -> None:
        """One look at one LLMDeployment. Raises KubeError."""
        memory = self.memory(target)
        if memory.history.capacity is None:
            memory.history = memory.history.begun_with(measured_capacity(target))
        signals = self.signals(target, readings)  # what is asked, how it is borne, by what
        recommendation = recommend(signals, target.autoscaling, memory.history)  # pure; stabilised and limited
        memory.history = memory.history.remember(recommendation, signals, target.autoscaling)
        self.metrics.recommended(target.name, desired=recommendation.replicas, wanted=recommendation.wanted)
        if recommendation.replicas != signals.desired:
            await self.scale(target, signals, recommendation)  # /scale, Event, log line
        await self.report(target, signals, recommendation)  # status.scaling

    def targets(self) -> Iterator[ScaleTarget]:
        """Those that Fairlead scales. One whose spec cannot be understood, breaks a rule or is refused, keeps its
        replicas."""
        keys = sorted(self.cluster.keys())
        self._read = {key: self._read[key] for key in keys if key in self._read}
        for key in keys:
            observed = self.cluster.last_seen(key)
            if observed is None or observed.body["metadata"].get("deletionTimestamp"):
                continue
            deployment = self._understood(key, observed.body)
            autoscaling = None if deployment is None else deployment.spec.autoscaling
            if deployment is not None and autoscaling is not None:
                yield ScaleTarget(key, deployment, autoscaling, observed)

    def _understood(self, key: Key, body: JsonObject) -> LLMDeployment | None:
        """None where Fairlead does not scale it. Read once for each change: ticks are frequent, and a template may have
        a megabyte."""
        known = self._read.get(key)
        if known is None or known[0] is not body:
            known = self._read[key] = body, self._scaled(body)
        return known[1]

    def _scaled(self, body: JsonObject) -> LLMDeployment | None:
        try:
            deployment = LLMDeployment.from_body(body)
        except InvalidSpec:
            return None  # the controller says so on the object
        autoscaling = deployment.spec.autoscaling
        if autoscaling is None or autoscaling.mode is not ScalingMode.FAIRLEAD or not autoscaling.max_replicas:
            return None
        return None if broken_rules(body) or refusals(self._policy, body) else deployment

    def signals(self, target: ScaleTarget, readings: Readings) -> Signals:
        """Pods and gateways together."""
        diagnoses, memory = target.observed.diagnoses, self.memory(target)
        stages = [each.stage for each in diagnoses if each.reason != Reason.REPLICA_HANGS]
        memory.cold_start = memory.cold_start.observe(target.observed.pods, target.deployment.spec.model.cache)
        return Signals(
            time=readings.time,
            desired=target.deployment.desired_replicas,
            ready=stages.count(Stage.READY),
            starting=stages.count(Stage.STARTING),
            draining=stages.count(Stage.DRAINING),
            hanging=len(diagnoses) - len(stages),
            demand=readings.demand(target.name, demand_window(target.autoscaling)),
            cold_start_seconds=memory.cold_start.seconds,
        )

    def memory(self, target: ScaleTarget) -> ScalingMemory:
        """Made at the first tick; what people were told before a restart is read from the object."""
        uid, known = target.deployment.metadata.uid, self._memories.get(target.key)
        if known is None or known.uid != uid:
            told, seconds = target.deployment.status.get("scaling") or {}, None
            with suppress(ValueError):  # it says none, or nothing that can be read
                seconds = parse_duration(told.get("coldStart") or "")
            cold_start = ColdStart.resumed(seconds, target.observed.pods)
            known = ScalingMemory(uid, History(since=self._clock()), cold_start, list(told.get("history") or []), told)
            self._memories[target.key] = known
        return known

    async def scale(self, target: ScaleTarget, signals: Signals, recommendation: Recommendation) -> None:
        """Writes the count, if nobody else has written the object meanwhile. Raises KubeError."""
        before, after = signals.desired, recommendation.replicas
        await self.writer.scale(target.observed.body, after)
        self.metrics.scaled(target.name, before, after)
        memory = self.memory(target)
        change = {"time": self._now().strftime("%Y-%m-%dT%H:%M:%SZ"), "from": before, "to": after}
        memory.changes.insert(0, change | {"reason": recommendation.reason})
        del memory.changes[SCALING_HISTORY_LENGTH:]
        memory.reported_at = float("-inf")
        percentile = targets_of(target.autoscaling).percentile
        decision = {"from": before, "to": after, "wanted": recommendation.wanted, "reason": recommendation.reason}
        logger.info("scaled", extra={"llmdeployment": target.name} | decision | signals.figures(percentile))
        reason = "ScaledUp" if after > before else "ScaledDown"
        message = f"Scaled from {before} to {recommendation.reason}"  # the reason begins with the count
        await self.recorder.record(target.observed.body, Announcement(EventType.NORMAL, reason, message))

    async def report(self, target: ScaleTarget, signals: Signals, recommendation: Recommendation) -> None:
        """Writes `status.scaling` if it says something new, and not too often. Raises KubeError."""
        memory = self.memory(target)
        percentile = targets_of(target.autoscaling).percentile
        scaling = scaling_status(signals, percentile, recommendation, memory.changes)
        if scaling == memory.reported or signals.time - memory.reported_at < REPORT_SECONDS:
            return
        await self.writer.write_status(target.observed.body, {"scaling": scaling})
        memory.reported, memory.reported_at = scaling, signals.time

    async def report_others(self, readings: Readings) -> None:
        """What Fairlead does not scale, or no longer, says no more than what gateways see of it."""
        scaled = {target.key for target in self.targets()}
        for key in self._memories.keys() - scaled:
            del self._memories[key]
            self.metrics.scaled_no_longer("/".join(key))
        others = {key: observed for key in sorted(self.cluster.keys()) if (observed := self.cluster.last_seen(key))}
        self._told_at = {key: at for key, at in self._told_at.items() if key in others and key not in scaled}
        for key, observed in others.items():
            if key in scaled or observed.body["metadata"].get("deletionTimestamp"):
                continue
            ready = sum(each.stage is Stage.READY for each in observed.diagnoses)
            seen = seen_status(readings.demand("/".join(key)), UNTARGETED_PERCENTILE, num_ready=ready) or None
            told = (observed.body.get("status") or {}).get("scaling")
            if seen == told or readings.time - self._told_at.get(key, float("-inf")) < REPORT_SECONDS:
                continue
            self._told_at[key] = readings.time
            try:
                await self.writer.write_status(observed.body, {} if seen is None else {"scaling": seen})
            except KubeError as e:
                logger.warning("%s/%s: cannot write what gateways see of it: %s", *key, e)
