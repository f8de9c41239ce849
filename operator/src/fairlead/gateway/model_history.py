"""The last hour of every model, as this gateway saw it: what its pages draw over time.

While nobody watches, a look at a model is a few numbers put aside, at a moment when the gateway is at work for its
signals anyway; an idle model's take no memory but their place. Rates and percentiles are worked out when somebody asks.
"""

import logging
import time
from collections import deque

import msgspec

from fairlead.api.signals_message import no_seconds
from fairlead.demand.buckets import Buckets
from fairlead.fleet.directory import ScalingChange
from fairlead.gateway.dispatch.admission import ModelPool
from fairlead.gateway.dispatch.pools import Pools
from fairlead.gateway.model_states import (
    ModelState,
    ReplicaFigures,
    ReplicaStages,
    model_state,
    replica_figures,
    replica_stages,
)

logger = logging.getLogger(__name__)

PERIOD_SECONDS = 10.0
NUM_MOMENTS = 360
NUM_CHANGES = 50
"""Of the number of replicas, newest kept."""


class ModelMoment(msgspec.Struct, kw_only=True):
    """One look at a model."""

    time: float
    """Seconds since 1970."""
    replicas: ReplicaStages
    waiting: int
    """Requests that wait in this gateway."""
    running: int
    """Requests that replicas are answering."""
    arrivals_per_second: float
    """Since the look before."""
    ttft_seconds: float | None
    """The percentile of the model's target, of first tokens since the look before; None = no first token came."""


class ModelDetail(msgspec.Struct, kw_only=True):
    """One LLMDeployment now, and in the last hour."""

    model: ModelState
    replicas: list[ReplicaFigures]
    target_ttft_seconds: float | None
    """What its autoscaling holds the time to first token to; None = no target."""
    target_percentile: int
    """Share of requests, in percent, that the target is for."""
    moments: list[ModelMoment]
    """Oldest first, one in PERIOD_SECONDS; from the start of this gateway at the earliest."""
    changes: list[ScalingChange]
    """The autoscaler's decisions, oldest first."""


class _Look(msgspec.Struct, gc=False):
    """A model as it stood, with counters as they were then."""

    at: float
    """By a monotonic clock."""
    wall: float
    """Seconds since 1970."""
    replicas: ReplicaStages
    waiting: int
    running: int
    num_arrivals: int
    ttft: list[int]
    """Never changed: looks share it while no first token comes."""

    def since(self, before: "_Look", percentile: int) -> ModelMoment:
        """What a page is told of it."""
        seconds = max(self.at - before.at, 1e-3)
        came = None if self.ttft is before.ttft else Buckets.seconds(self.ttft).since(Buckets.seconds(before.ttft))
        return ModelMoment(
            time=self.wall,
            replicas=self.replicas,
            waiting=self.waiting,
            running=self.running,
            arrivals_per_second=max(0, self.num_arrivals - before.num_arrivals) / seconds,
            ttft_seconds=None if came is None else came.percentile(percentile),
        )


class ModelHistory:
    """One model's moments and changes of its number of replicas, oldest first."""

    def __init__(self, since: float) -> None:
        """`since`: monotonic time from which on its requests are counted."""
        self._latest = _Look(since, 0.0, ReplicaStages(0, 0, 0), 0, 0, 0, no_seconds())
        self._told = self._latest
        """The last one that a moment was made of."""
        self._untold: deque[_Look] = deque(maxlen=NUM_MOMENTS + 1)
        self._moments: deque[ModelMoment] = deque(maxlen=NUM_MOMENTS)
        self._changes: deque[ScalingChange] = deque(maxlen=NUM_CHANGES)
        self._known_changes: tuple[ScalingChange, ...] = ()

    def look(self, live: ModelPool, now: float, wall: float) -> None:
        """Puts aside how the model stands. `now`: by a monotonic clock; `wall`: seconds since 1970."""
        counters, ttft, stages = live.counters, self._latest.ttft, replica_stages(live)
        if ttft != counters.ttft:
            ttft = counters.ttft.copy()
        if stages == self._latest.replicas:
            stages = self._latest.replicas
        self._latest = _Look(now, wall, stages, live.num_waiting, live.num_running, counters.num_arrivals, ttft)
        self._untold.append(self._latest)
        self._note(live.pool.changes)

    def _note(self, changes: tuple[ScalingChange, ...]) -> None:
        if changes is not self._known_changes:
            self._changes.extend(each for each in changes if each not in self._changes)
            self._known_changes = changes

    def changes(self, live: ModelPool) -> list[ScalingChange]:
        """Up to now."""
        self._note(live.pool.changes)
        return list(self._changes)

    def moments(self, percentile: int) -> list[ModelMoment]:
        """One for each look. `percentile`: of first tokens."""
        while self._untold:
            look = self._untold.popleft()
            self._moments.append(look.since(self._told, percentile))
            self._told = look
        return list(self._moments)


class ModelHistories:
    """The histories of all models."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._by_uid: dict[str, ModelHistory] = {}
        self._looked = self._due = time.monotonic()

    def of(self, live: ModelPool) -> ModelHistory:
        """One model's; empty at first."""
        uid = live.model.uid
        if uid not in self._by_uid:
            self._by_uid[uid] = ModelHistory(self._looked)
        return self._by_uid[uid]

    def beat(self) -> None:
        """Looks if it is time. Called where the gateway is at work anyway, at least every few seconds."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + PERIOD_SECONDS
        try:
            self.look()
        except Exception:
            logger.exception("a moment of the models' history could not be taken")

    def look(self) -> None:
        """Adds a moment to every model, and forgets models that are gone."""
        now, wall, known = time.monotonic(), time.time(), self._by_uid
        for live in self._pools:
            self.of(live).look(live, now, wall)
        self._looked = now
        if len(known) > len(self._pools):
            for uid in known.keys() - {live.model.uid for live in self._pools}:
                del known[uid]

    def detail(self, live: ModelPool) -> ModelDetail:
        """What is told of one model."""
        kept, model = self.of(live), live.model
        return ModelDetail(
            model=model_state(live, self._pools),
            replicas=replica_figures(live),
            target_ttft_seconds=model.target_ttft_seconds,
            target_percentile=model.target_percentile,
            moments=kept.moments(model.target_percentile),
            changes=kept.changes(live),
        )
