"""The autoscaler's story, on one screen: signals → recommend → LLMDeployment /scale. `tick` looks at every
LLMDeployment, `look` at one.

Called by the operator while it holds the Lease. `fairlead.autoscaler` decides; here the scale, Events and
`status.scaling` are written, for LLMDeployments that Fairlead does not scale only the gateways' figures. The controller
brings the count to the Deployment. Looks come at intervals, and at once when a gateway reports waiting requests.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from fairlead.api.author_rules import refusals
from fairlead.api.conditions import Reason
from fairlead.api.llmdeployment import Autoscaling, InvalidSpec, LLMDeployment, ScalingMode, broken_rules
from fairlead.api.model_cache import ModelCache
from fairlead.api.names import SCALING_HISTORY_LENGTH
from fairlead.api.quantities import parse_duration
from fairlead.api.scaling_policy import fewest_replicas, targets_of
from fairlead.api.scaling_schedules import bounds_at
from fairlead.autoscaler.history import History
from fairlead.autoscaler.recommend import decide, granted
from fairlead.autoscaler.recommendation import Draft, Recommendation
from fairlead.controller.events import Announcement, EventRecorder, EventType
from fairlead.controller.observe import Cluster, Observed
from fairlead.controller.operator_metrics import OperatorMetrics
from fairlead.controller.pod_diagnosis import Stage
from fairlead.controller.pod_starts import download_seconds, start_seconds
from fairlead.controller.scaling import SubresourceWriter, scaling_status, seen_status
from fairlead.controller.worker import Key
from fairlead.demand.readings import Readings
from fairlead.demand.signals import Capacity, Signals
from fairlead.fit.gpu_sharing import Claim, Grant, lateness, share
from fairlead.fit.replica_memory import num_gpus, replica_gpus, replica_profile_name
from fairlead.fleet.gateways import GatewayFollower
from fairlead.fleet.pods import ReplicaPods
from fairlead.kube.client import JsonObject, KubeError
from fairlead.manifests.measured_profile import mounted_profile
from fairlead.manifests.source import CannotBuild
from fairlead.operator_settings import OperatorSettings

logger = logging.getLogger(__name__)

REPORT_SECONDS = 10.0
"""Least seconds between two writes of one `status.scaling`, but for decisions, which are written at once."""
UNTARGETED_PERCENTILE = 90
"""Of the times to first token without a target: the column TTFT-P90."""
PAUSE_SECONDS = 0.25
"""Least seconds between two looks, however often gateways ask."""
COLD_START_WEIGHT = 0.5
"""Weight of the newest pod in the mean: second starts on a node, which has the image, are often much faster, and the
next start matters."""


@dataclass(frozen=True, slots=True)
class ScaleTarget:
    """An LLMDeployment that Fairlead scales, as last seen."""

    key: Key
    deployment: LLMDeployment
    autoscaling: Autoscaling
    """With the bounds that apply now."""
    observed: Observed

    @property
    def name(self) -> str:
        """`namespace/name`."""
        return "/".join(self.key)


@dataclass(frozen=True, slots=True)
class Look:
    """What is wanted of one LLMDeployment at a tick."""

    target: ScaleTarget
    signals: Signals
    draft: Draft


@dataclass(frozen=True, slots=True)
class ColdStart:
    """How long a replica takes to start, measured on one LLMDeployment's replicas: the autoscaler's horizon. Immutable;
    `observe` makes the next one."""

    mean: float | None = None
    """Mean seconds from creation to ready, without downloads that the next start may be spared; None = no start was
    seen."""
    measured: frozenset[str] = frozenset()
    """Uids of existing replicas that were measured."""
    download: float = 0.0
    """Seconds of download that the next start needs."""

    @property
    def seconds(self) -> float | None:
        """None = no replica was seen to start."""
        return None if self.mean is None else self.mean + self.download

    @classmethod
    def resumed(cls, seconds: float | None, replicas: Iterable[ReplicaPods]) -> "ColdStart":
        """State of an earlier process: with a known figure, the ready replicas are part of it."""
        ready = {each.uid for each in replicas if each.became_ready is not None}
        return cls(seconds, frozenset(ready if seconds is not None else ()))

    def observe(self, replicas: Sequence[ReplicaPods], cache: ModelCache | None = None) -> "ColdStart":
        """Adds replicas that became ready, oldest first. `cache`: where they keep a downloaded model.

        A shared claim spares the next pod its download. With nodes' folders the newest pod decides: if it found the
        model, no new nodes were left.
        """
        mean, download = self.mean, self.download
        measured = self.measured & {each.uid for each in replicas}
        for replica in replicas:
            took = None if replica.uid in measured else start_seconds(replica)
            if took is None:
                continue
            measured |= {replica.uid}
            fetched = download_seconds(replica) if cache is not None and (cache.node or cache.claim) else 0.0
            took, download = took - fetched, fetched if cache is not None and cache.node else 0.0
            mean = took if mean is None else mean + COLD_START_WEIGHT * (took - mean)
        return ColdStart(mean, measured, download)


@dataclass(slots=True)
class ScalingMemory:
    """Memory of one LLMDeployment between ticks; lost with the process."""

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
    """Capacity of a replica by the engine's measured profile; None = no profile."""
    config, engine = target.observed.engine_config, target.deployment.spec.engine
    profile = None if config is None else mounted_profile(config)
    if profile is None:
        return None
    return Capacity.measured(profile, engine.max_num_seqs, engine.max_num_batched_tokens)


@dataclass(eq=False)
class Autoscaler:
    """`run()` ticks until cancelled.

    `settings`: the interval between ticks, the policy (LLMDeployments that it refuses keep their replicas) and the
    budgets of GPUs. `clock`: monotonic, for windows. `now`: for times that people read.
    """

    cluster: Cluster
    gateways: GatewayFollower
    writer: SubresourceWriter
    recorder: EventRecorder
    metrics: OperatorMetrics
    _: KW_ONLY
    settings: OperatorSettings
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def __post_init__(self) -> None:
        self.interval, self.policy = self.settings.autoscaler_interval, self.settings.admission_policy
        self._memories: dict[Key, ScalingMemory] = {}
        self._read: dict[Key, tuple[JsonObject, LLMDeployment | None]] = {}
        """Objects as last seen, and decoded."""
        self._gpu_uses: dict[Key, tuple[JsonObject, Claim | None]] = {}
        """Objects as last seen, and what they hold."""
        self._told_at: dict[Key, float] = {}
        """When the status of unscaled LLMDeployments was last written."""

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
        """One look at everything. What the API refuses is tried again at the next tick. Before the indexes are filled,
        nothing is looked at or forgotten."""
        if not self.cluster.is_bound:
            return
        readings = self.gateways.readings()  # what every gateway has said lately
        looks: list[Look] = []
        for target in list(self.targets()):  # LLMDeployments with autoscaling.mode Fairlead
            try:
                looks.append(self.look(target, readings))
            except Exception:  # a mistake of ours, and only this one's: the others are scaled all the same
                logger.exception("%s could not be scaled; tried again at the next tick", target.name)
        claims = self.claims(looks)
        scaled = {each.name for each in claims if each.is_scaled}
        found = share(claims, {each.name: each.gpus for each in self.settings.gpu_budgets})
        grants = {name: grant for name, grant in found.items() if name in scaled}
        for look in looks:
            try:
                await self.follow(look, grants.get(look.target.name))
            except KubeError as e:
                if e.status == 409:  # somebody else wrote the object since it was seen: looks again soon
                    self.gateways.woken.set()
                else:
                    logger.warning("%s: cannot write the scale or its status: %s", look.target.name, e)
        await self.report_others(readings)

    def look(self, target: ScaleTarget, readings: Readings) -> Look:
        """One look at one LLMDeployment."""
        memory = self.memory(target)
        if memory.history.demand.capacity is None:
            begun = memory.history.demand.begun_with(measured_capacity(target))
            memory.history = replace(memory.history, demand=begun)
        signals = self.signals(target, readings)  # what is asked, how it is borne, by what
        return Look(target, signals, decide(signals, target.autoscaling, memory.history))  # pure; stabilised, limited

    def claims(self, looks: Sequence[Look]) -> list[Claim]:
        """Of every LLMDeployment under a budget of GPUs. Without a look an LLMDeployment keeps its replicas; where no
        children can be made of the spec, the pods of the former spec count."""
        claims, known = [], {look.target.key: look for look in looks}
        for key in sorted(self.cluster.keys()) if self.settings.gpu_budgets else ():
            observed, look = self.cluster.last_seen(key), known.get(key)
            use = None if observed is None else self._gpu_use(key, observed)
            if observed is None or use is None:
                continue
            stages = [each.stage for each in observed.diagnoses]
            leaving = stages.count(Stage.DRAINING)
            if look is None or not use.is_scaled:
                keeps_count = use.is_scaled and "deletionTimestamp" not in observed.body["metadata"]
                current = use.current if keeps_count else len(stages) - leaving
                claims.append(replace(use, current=current, wanted=current, leaving=leaving, is_scaled=False))
                continue
            autoscaling = look.target.autoscaling
            claims.append(
                replace(
                    use, wanted=look.draft.replicas, fewest=fewest_replicas(autoscaling), leaving=leaving,
                    priority=autoscaling.priority, lateness=lateness(look.signals, autoscaling),
                )
            )  # fmt: skip
        return claims

    def _gpu_use(self, key: Key, observed: Observed) -> Claim | None:
        """The GPUs of a replica, the budgets and the replicas asked for; None = under no budget. Made once per
        change."""
        known = self._gpu_uses.get(key)
        if known is None or known[0] is not observed.body:
            try:
                deployment = LLMDeployment.from_body(observed.body)
                profile, gpus = replica_profile_name(deployment, self.settings), replica_gpus(deployment, self.settings)
            except (InvalidSpec, CannotBuild):
                use = self._claim(key, "", _gpus_of_pods(observed), 0)  # which change without the object
                return None if use is None else replace(use, is_scaled=False)
            known = self._gpu_uses[key] = observed.body, self._claim(key, profile, gpus, deployment.desired_replicas)
        return known[1]

    def _claim(self, key: Key, profile: str, gpus: int, current: int) -> Claim | None:
        budgets = tuple(each.name for each in self.settings.gpu_budgets if each.covers(key[0], profile))
        if not (gpus and budgets):
            return None
        return Claim(name="/".join(key), gpus=gpus, budgets=budgets, current=current, wanted=current)

    async def follow(self, look: Look, grant: Grant | None) -> None:
        """Asks for the replicas that are wanted, as far as GPUs were granted. Raises KubeError."""
        target, signals, memory = look.target, look.signals, self.memory(look.target)
        draft = look.draft
        if grant is not None:
            draft = granted(draft, grant.replicas, grant.because, signals, target.autoscaling, memory.history)
        recommendation = draft.explained(signals)
        memory.history = memory.history.remember(recommendation, signals, target.autoscaling)
        self.metrics.recommended(target.name, desired=recommendation.replicas, wanted=recommendation.wanted)
        if recommendation.replicas != signals.desired:
            await self.scale(target, signals, recommendation)  # /scale, Event, log line
        await self.report(target, signals, recommendation)  # status.scaling

    def targets(self) -> Iterator[ScaleTarget]:
        """LLMDeployments that Fairlead scales. Those with an invalid or refused spec keep their replicas."""
        keys = sorted(self.cluster.keys())
        self._read = {key: self._read[key] for key in keys if key in self._read}
        self._gpu_uses = {key: self._gpu_uses[key] for key in keys if key in self._gpu_uses}
        for key in keys:
            observed = self.cluster.last_seen(key)
            if observed is None or observed.body["metadata"].get("deletionTimestamp"):
                continue
            deployment = self._understood(key, observed.body)
            autoscaling = None if deployment is None else deployment.spec.autoscaling
            if deployment is not None and autoscaling is not None:
                yield ScaleTarget(key, deployment, bounds_at(autoscaling, self.now()), observed)

    def _understood(self, key: Key, body: JsonObject) -> LLMDeployment | None:
        """None = not scaled by Fairlead. Decoded once per change: ticks are frequent, and templates may be large."""
        known = self._read.get(key)
        if known is None or known[0] is not body:
            found: LLMDeployment | None = None
            with suppress(InvalidSpec):  # the controller says so on the object
                found = LLMDeployment.from_body(body)
            autoscaling = None if found is None else found.spec.autoscaling
            is_ours = autoscaling is not None and autoscaling.mode is ScalingMode.FAIRLEAD and autoscaling.max_replicas
            if not is_ours or broken_rules(body) or refusals(self.policy, body):
                found = None
            known = self._read[key] = body, found
        return known[1]

    def signals(self, target: ScaleTarget, readings: Readings) -> Signals:
        """Pods and gateways together."""
        diagnoses, memory = target.observed.diagnoses, self.memory(target)
        stages = [each.stage for each in diagnoses if each.reason != Reason.REPLICA_HANGS]
        memory.cold_start = memory.cold_start.observe(target.observed.replicas, target.deployment.spec.model.cache)
        return Signals(
            time=readings.time,
            desired=target.deployment.desired_replicas,
            ready=stages.count(Stage.READY),
            starting=stages.count(Stage.STARTING),
            draining=stages.count(Stage.DRAINING),
            hanging=len(diagnoses) - len(stages),
            demand=readings.demand(target.name),
            cold_start_seconds=memory.cold_start.seconds,
        )

    def memory(self, target: ScaleTarget) -> ScalingMemory:
        """Made at the first tick; earlier history is read from the object."""
        uid, known = target.deployment.metadata.uid, self._memories.get(target.key)
        if known is None or known.uid != uid:
            told, seconds = target.deployment.status.get("scaling") or {}, None
            with suppress(ValueError):  # it says none, or nothing that can be read
                seconds = parse_duration(told.get("coldStart") or "")
            cold_start = ColdStart.resumed(seconds, target.observed.replicas)
            known = ScalingMemory(uid, History(since=self.clock()), cold_start, list(told.get("history") or []), told)
            self._memories[target.key] = known
        return known

    async def scale(self, target: ScaleTarget, signals: Signals, recommendation: Recommendation) -> None:
        """Writes the count, if nobody else has written the object meanwhile. Raises KubeError."""
        before, after = signals.desired, recommendation.replicas
        await self.writer.scale(target.observed.body, after)
        self.metrics.scaled(target.name, before, after)
        memory = self.memory(target)
        change = {"time": self.now().strftime("%Y-%m-%dT%H:%M:%SZ"), "from": before, "to": after}
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
        """Writes `status.scaling` if it has changed, and not too often. Raises KubeError."""
        memory = self.memory(target)
        percentile = targets_of(target.autoscaling).percentile
        scaling = scaling_status(signals, percentile, recommendation, memory.changes)
        if scaling == memory.reported or signals.time - memory.reported_at < REPORT_SECONDS:
            return
        await self.writer.write_status(target.observed.body, {"scaling": scaling})
        memory.reported, memory.reported_at = scaling, signals.time

    async def report_others(self, readings: Readings) -> None:
        """Writes the gateways' figures of LLMDeployments that Fairlead does not scale, or no longer."""
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


def _gpus_of_pods(observed: Observed) -> int:
    """Of the replica with most GPUs."""
    return max((sum(map(_gpus_of_pod, replica.pods)) for replica in observed.replicas), default=0)


def _gpus_of_pod(pod: Mapping[str, Any]) -> int:
    containers = (pod.get("spec") or {}).get("containers") or ()
    return math.ceil(sum(num_gpus((each.get("resources") or {}).get("limits") or {}) for each in containers))
