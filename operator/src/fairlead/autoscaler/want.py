"""The smallest number of replicas without a shortfall, for the present demand.

Called by `recommend`, which reaches the number without haste. The present number has an advantage: more are wanted only
if a target is missed by more than the tolerance, fewer only if they also suffice for the most that may well come
(`lack_of_room`). Between the two, noise changes nothing.
"""

import math
from bisect import bisect_left
from collections.abc import Callable

from fairlead.api.llmdeployment import Autoscaling, ScalingTargets
from fairlead.autoscaler.history import History
from fairlead.autoscaler.policy import (
    LONGEST_DEMAND_WINDOW,
    SHORTEST_DEMAND_WINDOW,
    bound_in_words,
    demand_window,
    most_replicas,
    scale_to_zero_after,
    targets_of,
)
from fairlead.autoscaler.prediction import (
    NO_QUEUE,
    WORKED_OFF,
    Queue,
    expected_ttft,
    has_cache,
    has_slots,
    longest_wait,
    measured_ttft,
    num_sequences,
    predicted_ttft,
    predicted_waiting,
    queue_ahead,
    recent_ttft,
    step_seconds,
)
from fairlead.autoscaler.recommendation import Draft, counted, per_second, rounded, seconds_in_words
from fairlead.autoscaler.signals import Signals
from fairlead.autoscaler.tpot import expected_pace, out_of_reach, slow_tokens

DRAIN_STARTS, DRAIN_STARTS_FROM_ZERO, DRAIN_SECONDS = 0.5, 3.0, 5.0
"""A queue that is gone within this many starts of a replica, and this time at least, asks for no others. Before the
first replica is ready more is accepted: what waits is late in any case, and no rate has lasted."""


def want(signals: Signals, spec: Autoscaling, history: History) -> Draft:
    """The smallest number of replicas that meets the targets; 0 = idle, and allowed to sleep. The present number where
    no gateway can be read, as the demand is unknown."""
    if not signals.demand.num_gateways:
        return Draft(signals.desired, signals.desired, "no gateway can be read, so what is asked of it is not known")
    if sleep := _sleep(signals, spec, history):
        return sleep
    signals = history.borne_by_these(signals)
    current, most = max(1, min(signals.desired, most_replicas(spec))), most_replicas(spec)
    measured = _measured(signals, spec, history)
    tolerance, lost = targets_of(spec).tolerance / 100.0, signals.lost
    waiting, rate = counted(signals.demand.waiting, "request"), per_second(signals.demand.arrivals_per_second)

    def lacking(number: int) -> str:
        return shortfall(max(1, number - lost), signals, spec, measured=measured)

    def tight(number: int) -> str:
        room = lack_of_room(max(1, number - lost), signals, spec, measured=measured)
        return room or _regretted(number, signals, history)

    if shortfall(max(1, current - lost), signals, spec, measured=measured, tolerance=tolerance):
        number = _smallest(current, most, lacking)
        if (credited := _credit(number, signals, spec, history)) < number:
            because = f"{waiting} waiting, and {credited} were asked for at {rate}"
            return Draft(credited, credited, because)
        return _draft(number, lacking, signals, spec, measured)
    return _draft(_smallest(1, current, tight), tight, signals, spec, measured)


def _smallest(first: int, last: int, lacking: Callable[[int], str]) -> int:
    """The first number without a lack; `last` if all have one. More replicas never lack anything that fewer have."""
    return first + bisect_left(range(first, last), True, key=lambda number: not lacking(number))


def _draft(
    number: int, lacking: Callable[[int], str], signals: Signals, spec: Autoscaling, measured: float | None
) -> Draft:
    if number == most_replicas(spec) and (lack := shortfall(number, signals, spec, measured=measured)):
        return Draft(number, number, f"even {number} {lack}, and {bound_in_words(spec, 'maxReplicas', number)}")
    targets, demand = targets_of(spec), signals.demand
    hopeless = f"; {why}" if (why := out_of_reach(signals, targets)) else ""
    if number > 1:
        return Draft(number, number, f"{number - 1} {lacking(number - 1)}{hopeless}")
    # what is to be expected of a single replica
    rate = per_second(demand.arrivals_per_second)
    parts = [f"{counted(demand.waiting, 'request')} waiting and {demand.running} running at {rate}"]
    if not (demand.waiting or demand.running or demand.arrivals_per_second_high):
        parts = ["no requests lately"]
    if targets.time_to_first_token is not None:
        expected = expected_ttft(1, signals, targets.percentile, measured)
        if expected is not None and math.isfinite(expected):
            target = seconds_in_words(targets.time_to_first_token)
            parts.append(f"first tokens at p{targets.percentile} in {seconds_in_words(expected)} (target {target})")
    pace = expected_pace(1, signals, targets.percentile)
    if targets.time_per_output_token is not None and pace is not None and not hopeless:
        target = seconds_in_words(targets.time_per_output_token)
        parts.append(f"{seconds_in_words(pace.seconds)} per output token (target {target})")
    return Draft(number, number, ", ".join(parts) + hopeless)


def _sleep(signals: Signals, spec: Autoscaling, history: History) -> Draft | None:
    """Zero replicas, where nobody has asked for anything for long enough; None where at least one is wanted."""
    after, demand = scale_to_zero_after(spec), signals.demand
    if after is None or demand.waiting or demand.running:
        return None
    if signals.desired == 0:
        just_came = demand.num_recent_arrivals and demand.idle_seconds < min(after, SHORTEST_DEMAND_WINDOW)
        return None if just_came else Draft(0, 0, "no request waits, and the next one starts a replica")
    quiet = history.quiet_seconds(signals)
    if quiet < after or not signals.is_complete:
        return None
    return Draft(0, 0, f"no request for {seconds_in_words(quiet)}")


def _measured(signals: Signals, spec: Autoscaling, history: History) -> float | None:
    """The time to first token on the present replicas; None where it is explained. A request that waited for a start or
    in a queue says nothing about the replicas' speed: after a queue, a few seconds are left out where step costs are
    known, and in the first minute after a change the time is capped at `borne_seconds`."""
    demand, percentile, queue_at = signals.demand, targets_of(spec).percentile, history.queue_at
    is_known = demand.capacity is not None and demand.capacity.step_cost is not None
    if is_known and queue_at is not None and signals.time - queue_at <= SHORTEST_DEMAND_WINDOW:
        return None
    if history.settled_seconds(signals) >= LONGEST_DEMAND_WINDOW:
        return measured_ttft(demand, percentile)
    since, lately = history.borne_seconds(signals), recent_ttft(demand, percentile)
    return None if lately is None or since <= 0.0 else min(lately, since)


def _regretted(number: int, signals: Signals, history: History) -> str:
    """Why this number must not be tried again: it proved too few not long ago."""
    regret = history.regret
    if regret is None or number > regret.replicas or signals.time - regret.time > regret.seconds:
        return ""
    ago = seconds_in_words(signals.time - regret.time)
    return f"proved too few {ago} ago at {per_second(regret.arrivals_per_second)}"


def _credit(number: int, signals: Signals, spec: Autoscaling, history: History) -> int:
    """The number wanted, at most `number`. Where nothing is known of the engines' steps, what waits asks for no others
    while the replicas start that were asked for as many arrivals, and for one more while these work off the queue."""
    capacity, asked = signals.demand.capacity, history.asked
    if asked is None or (capacity and capacity.step_cost) or not history.is_same_demand(signals, spec):
        return number
    seconds = history.settled_seconds(signals)
    if signals.starting > 0 or (seconds < SHORTEST_DEMAND_WINDOW and signals.desired > signals.ready):
        return min(number, max(signals.desired, asked.replicas))
    is_early = seconds < demand_window(spec) or signals.ready < signals.desired
    return min(number, max(signals.desired, asked.replicas + 1)) if is_early else number


def shortfall(
    num_replicas: int,
    signals: Signals,
    spec: Autoscaling,
    *,
    measured: float | None,
    tolerance: float = 0.0,
    soon: bool = False,
) -> str:
    """The problem with this number of replicas, to follow the number: "would leave 14 requests waiting …". Empty = no
    problem.

    `measured`: the time to first token at the target percentile, None = ignored. `tolerance`: share by which the target
    may be missed. `soon`: as of `queue_ahead`.
    """
    targets, queue = targets_of(spec), queue_ahead(num_replicas, signals, soon=soon)
    waiting = predicted_waiting(num_replicas, signals) if queue is None else queue.waiting
    if queue and queue.waiting and not soon and queue.gone_seconds <= _drain_seconds(signals):
        queue, waiting = WORKED_OFF, 0.0
    if targets.queue_depth is not None and waiting > targets.queue_depth * num_replicas:
        return f"would leave {counted(math.ceil(waiting), 'request')} waiting (queueDepth {targets.queue_depth})"
    target = targets.time_to_first_token
    expected = None if target is None else expected_ttft(num_replicas, signals, targets.percentile, measured, queue)
    if target is None or expected is None or expected <= target * (1.0 + tolerance):
        return slow_tokens(num_replicas, signals, targets, tolerance)
    if math.isinf(expected):
        return overload(num_replicas, signals)
    would = "have" if num_replicas == signals.ready and expected == measured else "would have"
    arrivals = per_second(signals.demand.arrivals_per_second)
    return (
        f"{would} first tokens at p{targets.percentile} in {seconds_in_words(expected)} "
        f"(target {seconds_in_words(target)}) at {arrivals}: {_cause(num_replicas, signals, targets, expected, queue)}"
    )


def _cause(num_replicas: int, signals: Signals, targets: ScalingTargets, expected: float, queue: Queue | None) -> str:
    """What makes the first tokens so late."""
    predicted = predicted_ttft(num_replicas, signals, targets.percentile, queue)
    if predicted is None or predicted < expected:
        return f"measured on {counted(signals.ready, 'replica')}"
    return longest_wait(num_replicas, signals, targets.percentile, queue or NO_QUEUE).why


def _drain_seconds(signals: Signals) -> float:
    starts = DRAIN_STARTS if signals.ready else DRAIN_STARTS_FROM_ZERO
    return max(DRAIN_SECONDS, starts * signals.start_seconds)


def lack_of_room(num_replicas: int, signals: Signals, spec: Autoscaling, *, measured: float | None) -> str:
    """Why going down to this number would be rash: a shortfall, with some to spare, at the most that may well come.
    Empty = there is room."""
    demand, tolerance = signals.demand, targets_of(spec).tolerance / 100.0
    careful = signals.expecting(max(demand.arrivals_per_second, demand.arrivals_per_second_high))

    def lack(soon: bool) -> str:
        return shortfall(num_replicas, careful, spec, measured=measured, tolerance=-tolerance, soon=soon)

    return overload(num_replicas, careful) or lack(soon=True) or lack(soon=False)


def overload(num_replicas: int, signals: Signals) -> str:
    """Why this number cannot suffice, whatever the targets. Empty = it can, or the capacity is unknown."""
    demand, capacity = signals.demand, signals.demand.capacity
    if capacity is None:
        return ""
    if capacity.step_cost and math.isinf(step_seconds(num_replicas, demand, capacity.step_cost)):
        return f"could not keep up with {per_second(demand.arrivals_per_second)}"
    if not has_slots(num_replicas, demand, capacity):
        sequences = num_sequences(num_replicas, demand, capacity.step_cost)
        slots = capacity.max_num_seqs * num_replicas
        expected = f"{counted(math.ceil(sequences), 'request')} at a time"
        return f"would have {counted(slots, 'slot')} for {expected}"
    if not has_cache(num_replicas, demand, capacity):
        use = demand.kv_blocks_used / (capacity.kv_blocks * num_replicas) if capacity.kv_blocks else 1.0
        return f"would have their caches {rounded(100.0 * use):g} % full"
    return ""
