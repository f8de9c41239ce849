"""Formulas of other autoscalers by how full replicas are: WVA, epp-saturation, Llumnix.

Each is a callable: signals of this second → the number of replicas, before bounds; with state of its own. A slot taken
stands for the cache of one request, since slots are the bound of the engine model; requests wait in the gateway, so
each replica is given an equal part of the queue.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from fairlead.api.signals_message import ReplicaSignals
from fairlead.demand.signals import Signals
from fairlead.simulator.scaling.in_flight_policies import Windowed, in_flight, kept


def cache_use(load: ReplicaSignals) -> float:
    """Share of a replica that is taken: the larger of slots and blocks."""
    return max(load.running / load.max_num_seqs, 1.0 - load.kv_blocks_free / max(1, load.kv_blocks_total))


@dataclass(slots=True)
class WVA:
    """llm-d's Workload Variant Autoscaler, by saturation, for one variant: every 30 s, by the peaks of a minute. One
    more where the replicas that are not saturated spare too little, and none is starting; one fewer where all others
    could take the load with enough to spare."""

    full: float = 0.8
    """Share of the cache from which on a replica is saturated."""
    queue: float = 5.0
    """Waiting requests from which on a replica is saturated."""
    spare_cache: float = 0.1
    spare_queue: float = 3.0
    peaks: dict[str, tuple[Windowed, Windowed]] = field(default_factory=dict)
    next_at: float = 0.0

    def __call__(self, signals: Signals) -> float:
        replicas = self._peaks(signals)
        if signals.time < self.next_at or signals.starting or not replicas:
            return kept(signals)
        self.next_at = signals.time + 30.0
        left = [(use, queue) for use, queue in replicas if use < self.full and queue < self.queue]
        if not self._spares(left):
            return signals.desired + 1
        others = len(replicas) - 1
        if others < 1:
            return signals.desired
        fewer = [(sum(use for use, _ in replicas) / others, sum(queue for _, queue in replicas) / others)]
        return signals.desired - 1 if self._spares(fewer) else signals.desired

    def _peaks(self, signals: Signals) -> list[tuple[float, float]]:
        """Largest use and queue of each replica in the last minute."""
        loads = {uid: load for uid, load in signals.demand.loads.items() if not load.draining}
        self.peaks = {uid: self.peaks.get(uid) or (Windowed(60.0), Windowed(60.0)) for uid in loads}
        waiting = signals.demand.waiting / max(1, len(loads))
        return [
            (
                max(self.peaks[uid][0].add(signals.time, cache_use(load))),
                max(self.peaks[uid][1].add(signals.time, load.waiting + waiting)),
            )
            for uid, load in loads.items()
        ]

    def _spares(self, replicas: Sequence[tuple[float, float]]) -> bool:
        if not replicas:
            return False
        cache = self.full - statistics.fmean(use for use, _ in replicas)
        queue = self.queue - statistics.fmean(queue for _, queue in replicas)
        return cache >= self.spare_cache and queue >= self.spare_queue


@dataclass(slots=True)
class EppSaturation:
    """llm-d's analyser of first tokens: p90 over the target, at most 2, smoothed; more above 0.55 and fewer below 0.40,
    replicas on their way counted; then an HPA that adds at most as many as there are, or four, in a minute after 30 s,
    and takes one in two minutes after three. The measured p90 of the last seconds stands for the predicted one."""

    target: float
    cycle: float = 60.0
    """Seconds between two looks of the analyser."""
    up_window: float = 30.0
    """Seconds for which more must have been needed."""
    smooth: float | None = None
    number: float | None = None
    """The analyser's last word; None = none yet."""
    cycle_at: float = 0.0
    next_at: float = 0.0
    up_at: float = 0.0
    down_at: float = 0.0
    ups: Windowed = field(init=False)
    downs: Windowed = field(default_factory=lambda: Windowed(180.0))

    def __post_init__(self) -> None:
        self.ups = Windowed(self.up_window)

    def __call__(self, signals: Signals) -> float:
        now, desired = signals.time, signals.desired
        if now >= self.cycle_at:
            self.cycle_at = now + self.cycle
            self.number = self._analysed(signals)
        if now < self.next_at or self.number is None:
            return desired
        self.next_at = now + 15.0
        up, down = min(self.ups.add(now, self.number)), max(self.downs.add(now, self.number))
        if up > desired and now >= self.up_at:
            self.up_at = now + 60.0
            return min(up, max(2 * desired, desired + 4))
        if down < desired and now >= self.down_at:
            self.down_at = now + 120.0
            return desired - 1
        return desired

    def _analysed(self, signals: Signals) -> float:
        demand, replicas = signals.demand, max(1, signals.ready + signals.starting)
        slow = max(demand.recent_ttft.percentile(90) or 0.0, demand.oldest_wait_seconds)
        score = min(2.0, slow / self.target)
        self.smooth = score if self.smooth is None else 0.6 * score + 0.4 * self.smooth
        credited = self.smooth * max(1, signals.ready) / replicas
        if credited > 0.55:
            return replicas + math.ceil(replicas * (credited / 0.55 - 1.0))
        if self.smooth < 0.40:
            return replicas - math.floor(replicas * (1.0 - self.smooth / 0.40))
        return replicas


@dataclass(slots=True)
class Llumnix:
    """By the steps that a request has left: free blocks, less those that waiting requests need, over all requests. One
    more below 10, one fewer above 60, every 10 s, and not while replicas start."""

    block: int = 16
    low: float = 10.0
    high: float = 60.0
    next_at: float = 0.0

    def __call__(self, signals: Signals) -> float:
        demand = signals.demand
        if signals.time < self.next_at or signals.starting or demand.capacity is None:
            return kept(signals)
        self.next_at = signals.time + 10.0
        whole = demand.prompt_tokens_per_request + demand.output_tokens_per_request
        slots = demand.capacity.max_num_seqs * max(1, signals.ready)
        used = demand.running * demand.mean_context + demand.waiting * demand.prompt_tokens_per_request
        left = (slots * whole - used) / self.block / max(1, in_flight(signals))
        return signals.desired + 1 if left < self.low else signals.desired - 1 if left > self.high else signals.desired
