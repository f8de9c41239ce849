"""The last hour of every model, as this gateway saw it: what its pages draw over time.

Each model is looked at every PERIOD_SECONDS, whether or not anybody watches: a few numbers, and a difference of two
counters.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

import msgspec

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


class ModelHistory:
    """One model's moments and changes of its number of replicas, oldest first."""

    def __init__(self, live: ModelPool, now: float) -> None:
        self.moments: deque[ModelMoment] = deque(maxlen=NUM_MOMENTS)
        self.changes: deque[ScalingChange] = deque(maxlen=NUM_CHANGES)
        self._seen_at = now
        self._num_arrivals = live.counters.num_arrivals
        self._ttft = Buckets.seconds(live.counters.ttft)

    def look(self, live: ModelPool, now: float, wall: float) -> None:
        """Adds a moment. `now`: a monotonic clock; `wall`: seconds since 1970."""
        counters, ttft = live.counters, Buckets.seconds(live.counters.ttft)
        elapsed = max(now - self._seen_at, 1e-3)
        moment = ModelMoment(
            time=wall,
            replicas=replica_stages(live),
            waiting=live.num_waiting,
            running=live.num_running,
            arrivals_per_second=(counters.num_arrivals - self._num_arrivals) / elapsed,
            ttft_seconds=ttft.since(self._ttft).percentile(live.model.target_percentile),
        )
        self.moments.append(moment)
        self._seen_at, self._num_arrivals, self._ttft = now, counters.num_arrivals, ttft
        self.changes.extend(each for each in live.pool.changes if each not in self.changes)


class ModelHistories:
    """The histories of all models. `run` it as a task."""

    def __init__(self, pools: Pools, wall: Callable[[], float] = time.time) -> None:
        """`wall`: seconds since 1970."""
        self._pools = pools
        self._wall = wall
        self._by_uid: dict[str, ModelHistory] = {}

    def of(self, live: ModelPool) -> ModelHistory:
        """One model's; empty at first."""
        uid = live.model.uid
        if uid not in self._by_uid:
            self._by_uid[uid] = ModelHistory(live, live.now())
        return self._by_uid[uid]

    def look(self) -> None:
        """Adds a moment to every model, and forgets models that are gone."""
        present = list(self._pools)
        for uid in self._by_uid.keys() - {live.model.uid for live in present}:
            del self._by_uid[uid]
        for live in present:
            self.of(live).look(live, live.now(), self._wall())

    def detail(self, live: ModelPool) -> ModelDetail:
        """What is told of one model."""
        kept, model = self.of(live), live.model
        return ModelDetail(
            model=model_state(live, self._pools),
            replicas=replica_figures(live),
            target_ttft_seconds=model.target_ttft_seconds,
            target_percentile=model.target_percentile,
            moments=list(kept.moments),
            changes=list(kept.changes) or list(live.pool.changes),
        )

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            try:
                self.look()
            except Exception:
                logger.exception("a moment of the models' history could not be taken")
            await asyncio.sleep(PERIOD_SECONDS)
