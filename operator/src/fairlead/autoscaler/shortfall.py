"""Shortfall: why a number of replicas would not be enough, in words with the numbers; or that it would be.

Who calls it: `want`, which looks for the smallest number that has none.
"""

import math

from fairlead.api.llmdeployment import Autoscaling
from fairlead.autoscaler.policy import targets_of
from fairlead.autoscaler.prediction import (
    carefully,
    expected_ttft,
    has_cache,
    has_slots,
    num_sequences,
    predicted_waiting,
    step_seconds,
)
from fairlead.autoscaler.signals import Signals
from fairlead.autoscaler.words import counted, per_second, rounded, seconds_in_words

ROOM_DEVIATIONS = 2.0
"""Standard deviations of the number of requests that run at a time, for which there must be slots before a replica
goes."""


def shortfall(
    num_replicas: int,
    signals: Signals,
    spec: Autoscaling,
    *,
    measured: float | None,
    tolerance: float = 0.0,
) -> str:
    """What would be wrong with so many replicas, to follow their number: "would leave 14 requests waiting …". Empty =
    nothing.

    `measured`: the time to first token at the target percentile, where it counts. `tolerance`: the share by which the
    target may be missed.
    """
    targets = targets_of(spec)
    waiting = predicted_waiting(num_replicas, signals)
    if targets.queue_depth is not None and waiting > targets.queue_depth * num_replicas:
        return f"would leave {counted(math.ceil(waiting), 'request')} waiting (queueDepth {targets.queue_depth})"
    target = targets.time_to_first_token
    if target is None:
        return ""
    expected = expected_ttft(num_replicas, signals, targets.percentile, measured)
    if expected is None or expected <= target * (1.0 + tolerance):
        return ""
    if math.isinf(expected):
        return overload(num_replicas, signals)
    would = "have" if num_replicas == signals.ready and expected == measured else "would have"
    arrivals = per_second(signals.demand.likely_arrivals_per_second)
    return (
        f"{would} first tokens at p{targets.percentile} in {seconds_in_words(expected)} "
        f"(target {seconds_in_words(target)}) at {arrivals}"
    )


def lack_of_room(num_replicas: int, signals: Signals, spec: Autoscaling, *, measured: float | None) -> str:
    """Why going down to so many would be rash: a shortfall if a little more came than is certain, or no slots left for
    what chance adds. Empty = there is room."""
    careful, tolerance = carefully(signals), targets_of(spec).tolerance / 100.0
    return overload(num_replicas, careful, deviations=ROOM_DEVIATIONS) or shortfall(
        num_replicas, careful, spec, measured=measured, tolerance=-tolerance
    )


def overload(num_replicas: int, signals: Signals, *, deviations: float = 0.0) -> str:
    """Why so many replicas do not suffice at all, whatever the targets. Empty = they do, or nobody knows."""
    demand, capacity = signals.demand, signals.demand.capacity
    if capacity is None:
        return ""
    if capacity.step_cost and math.isinf(step_seconds(num_replicas, demand, capacity.step_cost)):
        return f"could not keep up with {per_second(demand.arrivals_per_second)}"
    if not has_slots(num_replicas, demand, capacity, deviations=deviations):
        sequences = num_sequences(num_replicas, demand, capacity.step_cost)
        slots = capacity.max_num_seqs * num_replicas
        expected = math.ceil(sequences + deviations * math.sqrt(sequences))
        return f"would have {counted(slots, 'slot')} for up to {counted(expected, 'request')} at a time"
    if not has_cache(num_replicas, demand, capacity):
        use = demand.kv_blocks_used / (capacity.kv_blocks * num_replicas) if capacity.kv_blocks else 1.0
        return f"would have their caches {rounded(100.0 * use):g} % full"
    return ""
