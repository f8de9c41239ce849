"""The autoscaler's story, on one screen: signals → recommend → limit → LLMDeployment /scale.

Who calls it: the operator, while it holds the Lease. It decides nothing itself (`fairlead.autoscaler` does) and writes
nothing but the scale and `status.scaling`: the controller alone brings the count to the Deployment.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from fairlead.api.crd import SCALING_HISTORY_LENGTH
from fairlead.api.llmdeployment import Autoscaling, InvalidSpec, LLMDeployment, ScalingMode
from fairlead.autoscaler.demand import Readings
from fairlead.autoscaler.history import History
from fairlead.autoscaler.recommend import Recommendation, recommend, stabilization_window, targets_of
from fairlead.autoscaler.signals import Signals
from fairlead.controller.events import Announcement, EventRecorder, EventType
from fairlead.controller.observe import Cluster, Observed
from fairlead.controller.pods import Stage, diagnose
from fairlead.controller.scaling import ScaleWriter, scaling_status
from fairlead.controller.worker import Key
from fairlead.fleet.gateways import GatewayReader
from fairlead.kube.client import JsonObject, KubeError

logger = logging.getLogger(__name__)

REPORT_SECONDS = 10.0
"""`status.scaling` of one LLMDeployment is written at most this often."""


@dataclass(frozen=True, slots=True)
class Target:
    """An LLMDeployment that Fairlead scales, as last seen."""

    deployment: LLMDeployment
    autoscaling: Autoscaling
    observed: Observed

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.deployment.metadata.namespace, self.deployment.metadata.name

    @property
    def window(self) -> float:
        """Seconds for which fewer replicas must have been enough before any goes."""
        return stabilization_window(self.autoscaling)

    @property
    def body(self) -> JsonObject:
        """The LLMDeployment, raw."""
        return self.observed.body


@dataclass(slots=True)
class Memory:
    """What is remembered of one LLMDeployment from tick to tick; gone with the process."""

    uid: str
    history: History
    changes: list[Mapping[str, Any]]
    """As in `status.scaling.history`."""
    reported: Mapping[str, Any] | None
    """The last `status.scaling`."""
    reported_at: float = float("-inf")


class Autoscaler:
    """`run()` ticks until cancelled."""

    def __init__(
        self,
        cluster: Cluster,
        gateways: GatewayReader,
        writer: ScaleWriter,
        recorder: EventRecorder,
        *,
        interval: float,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`interval`: seconds between ticks. `clock`: monotonic, for windows. `now`: for what people read."""
        self.cluster = cluster
        self.gateways = gateways
        self.writer = writer
        self.recorder = recorder
        self.interval = interval
        self._clock = clock
        self._now = now
        self._memories: dict[Key, Memory] = {}

    async def run(self) -> None:
        """Follows the gateways and ticks."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.gateways.run())
            while True:
                await asyncio.sleep(self.interval)
                try:
                    await self.tick()
                except Exception:
                    logger.exception("the autoscaler's tick failed; the next one is in %g s", self.interval)

    async def tick(self) -> None:
        """One look at everything. What the API refuses is tried again at the next."""
        readings = await self.gateways.read()  # every ready gateway, at once
        for target in self.targets():  # LLMDeployments with autoscaling.mode Fairlead
            memory = self.memory(target)
            signals = self.signals(target, readings)  # what waits, what runs, how long first tokens took, on what
            recommendation = recommend(signals, target.autoscaling, memory.history)  # pure; stabilised and limited
            memory.history = memory.history.remember(recommendation.wanted, signals.time, target.window)
            try:
                if recommendation.replicas != signals.desired:
                    await self.scale(target, signals, recommendation)  # /scale, Event, log line
                await self.report(target, signals, recommendation)  # status.scaling
            except KubeError as e:
                logger.warning("%s/%s: cannot write the scale or its status: %s", *target.key, e)
        await self.forget_others()

    def targets(self) -> Iterator[Target]:
        """Those that Fairlead scales. One whose spec cannot be understood keeps its replicas."""
        for key in sorted(self.cluster.keys()):
            observed = self.cluster.last_seen(key)
            if observed is None or observed.body["metadata"].get("deletionTimestamp"):
                continue
            try:
                deployment = LLMDeployment.from_body(observed.body)
            except InvalidSpec:
                continue  # the controller says so on the object
            autoscaling = deployment.spec.autoscaling
            if autoscaling is not None and autoscaling.mode is ScalingMode.FAIRLEAD and autoscaling.max_replicas:
                yield Target(deployment, autoscaling, observed)

    def signals(self, target: Target, readings: Readings) -> Signals:
        """Pods and gateways together."""
        stages = [diagnose(pod).stage for pod in target.observed.pods]
        demand = readings.demand("/".join(target.key))
        return Signals(
            time=self._clock(),
            desired=target.deployment.desired_replicas,
            ready=stages.count(Stage.READY),
            starting=stages.count(Stage.STARTING),
            draining=stages.count(Stage.DRAINING),
            waiting=demand.waiting,
            running=demand.running,
            ttft_seconds=demand.ttft.percentile(targets_of(target.autoscaling).percentile),
            arrivals_per_second=demand.arrivals_per_second,
            age_seconds=demand.age_seconds,
            num_gateways=demand.num_gateways,
            missing_gateways=demand.num_missing,
        )

    def memory(self, target: Target) -> Memory:
        """Made at the first tick; what people were told before a restart is read from the object."""
        uid, known = target.deployment.metadata.uid, self._memories.get(target.key)
        if known is None or known.uid != uid:
            told = target.deployment.status.get("scaling")
            known = Memory(uid, History(since=self._clock()), list((told or {}).get("history") or []), told)
            self._memories[target.key] = known
        return known

    async def scale(self, target: Target, signals: Signals, recommendation: Recommendation) -> None:
        """Writes the count, if nobody else has written the object meanwhile. Raises KubeError."""
        before, after = signals.desired, recommendation.replicas
        await self.writer.scale(target.body, after)
        change = {"time": self._now().strftime("%Y-%m-%dT%H:%M:%SZ"), "from": before, "to": after}
        changes = self._memories[target.key].changes
        changes.insert(0, change | {"reason": recommendation.reason})
        del changes[SCALING_HISTORY_LENGTH:]
        inputs = {
            name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(signals).items()
        }
        inputs |= {"wanted": recommendation.wanted, "reason": recommendation.reason}
        logger.info("scaled", extra={"llmdeployment": "/".join(target.key), "from": before, "to": after} | inputs)
        reason = "ScaledUp" if after > before else "ScaledDown"
        message = f"Scaled from {before} to {after}: {recommendation.reason}"
        await self.recorder.record(target.body, Announcement(EventType.NORMAL, reason, message))

    async def report(self, target: Target, signals: Signals, recommendation: Recommendation) -> None:
        """Writes `status.scaling` if it says something new, and not too often. Raises KubeError."""
        memory = self._memories[target.key]
        scaling = scaling_status(signals, recommendation, memory.changes)
        if scaling == memory.reported or signals.time - memory.reported_at < REPORT_SECONDS:
            return
        await self.writer.write_status(target.body, scaling)
        memory.reported, memory.reported_at = scaling, signals.time

    async def forget_others(self) -> None:
        """What Fairlead no longer scales is forgotten, and says no longer that it is."""
        scaled = {target.key for target in self.targets()}
        self._memories = {key: memory for key, memory in self._memories.items() if key in scaled}
        for key in sorted(self.cluster.keys()):
            observed = self.cluster.last_seen(key)
            if observed is None or key in scaled or "scaling" not in (observed.body.get("status") or {}):
                continue
            try:
                await self.writer.write_status(observed.body, None)
            except KubeError as e:
                logger.warning("%s/%s: cannot clear status.scaling: %s", *key, e)
