"""The smallest number of replicas without a shortfall, for the present demand.

Called by `recommend`, which reaches the number without haste. The present number has an advantage: more are wanted only
if a target is missed by more than the tolerance, fewer only with room for chance (`lack_of_room`). Between the two,
noise changes nothing.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

import msgspec

from fairlead.api.llmdeployment import Autoscaling
from fairlead.autoscaler.arrivals import NO_SURGE
from fairlead.autoscaler.history import History
from fairlead.autoscaler.policy import (
    LONGEST_DEMAND_WINDOW,
    SHORTEST_DEMAND_WINDOW,
    demand_window,
    most_replicas,
    scale_to_zero_after,
    targets_of,
)
from fairlead.autoscaler.prediction import (
    expected_ttft,
    has_cache,
    has_slots,
    measured_ttft,
    num_sequences,
    predicted_waiting,
    recent_ttft,
    step_seconds,
    worked_off,
)
from fairlead.autoscaler.recommendation import Draft, counted, per_second, rounded, seconds_in_words
from fairlead.autoscaler.signals import Signals

STILL_WORTH = 0.9
"""Share of the arrivals at a regret, below which the same number is tried again."""
ROOM_DEVIATIONS = 2.0
"""Standard deviations of the number of running requests, for which there must be slots before a replica goes."""
SLOW_STARTS = 10.0
"""A queue gone within this many starts of a replica asks for one replica beyond the lasting need."""


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
    waiting = counted(signals.demand.waiting, "request")
    sure = signals.expecting(signals.demand.sure_arrivals_per_second)
    likely = worked_off(signals.expecting(signals.demand.likely_arrivals_per_second))

    def lacking(number: int) -> str:
        return shortfall(max(1, number - lost), likely, spec, measured=measured)

    def tight(number: int) -> str:
        room = lack_of_room(max(1, number - lost), signals, spec, measured=measured)
        return room or _regretted(number, signals, history)

    if shortfall(max(1, current - lost), sure, spec, measured=measured, tolerance=tolerance):
        number = _smallest(current, most, lacking)
        if (credited := _credit(number, signals, spec, history)) < number:
            demand = signals.demand
            fewer = f"{credited - 1} {lacking(credited - 1)}" if credited > 1 else f"{waiting} waiting"
            rate = per_second(max(demand.arrivals_per_second_high, demand.likely_arrivals_per_second))
            return Draft(credited, credited, f"{fewer}, and {credited} will be enough for up to {rate}")
        if number == current and not lacking(current):
            because = f"{waiting} waiting will be through before another replica could be ready"
            return Draft(current, current, because)
        return _draft(number, lacking, signals, spec, measured)
    return _draft(_smallest(1, current, tight), tight, signals, spec, measured)


def _smallest(first: int, last: int, lacking: Callable[[int], str]) -> int:
    """The first number without a lack; `last` if all have one. More replicas never lack anything that fewer have."""
    return first + bisect_left(range(first, last), True, key=lambda number: not lacking(number))


def _draft(
    number: int, lacking: Callable[[int], str], signals: Signals, spec: Autoscaling, measured: float | None
) -> Draft:
    if number == most_replicas(spec) and (lack := shortfall(number, signals, spec, measured=measured)):
        return Draft(number, number, f"even {number} {lack}, and maxReplicas is {number}")
    if number > 1:
        return Draft(number, number, f"{number - 1} {lacking(number - 1)}")
    targets, demand = targets_of(spec), signals.demand  # what is to be expected of a single replica
    rate = per_second(demand.arrivals_per_second)
    parts = [f"{counted(demand.waiting, 'request')} waiting and {demand.running} running at {rate}"]
    if not (demand.waiting or demand.running or demand.arrivals_per_second_high):
        parts = ["no requests lately"]
    if targets.time_to_first_token is not None:
        sure = signals.expecting(demand.sure_arrivals_per_second)
        expected = expected_ttft(1, sure, targets.percentile, measured)
        if expected is not None and math.isfinite(expected):
            target = seconds_in_words(targets.time_to_first_token)
            parts.append(f"first tokens at p{targets.percentile} in {seconds_in_words(expected)} (target {target})")
    return Draft(number, number, ", ".join(parts))


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
    """The time to first token on the present replicas. A request that waited for a start says nothing about their
    speed, so in the first minute after a change the recent measurement is capped: at the time since these replicas had
    worked off the queue they found."""
    demand, percentile = signals.demand, targets_of(spec).percentile
    settled = history.settled_seconds(signals)
    if settled >= LONGEST_DEMAND_WINDOW:
        return measured_ttft(demand, percentile)
    since = settled - SHORTEST_DEMAND_WINDOW - (signals.cold_start_seconds or 0.0)
    lately = recent_ttft(demand, percentile)
    return None if lately is None or since <= 0.0 else min(lately, since)


def _regretted(number: int, signals: Signals, history: History) -> str:
    """Why this number must not be tried again: it proved too few for no more than the present arrivals."""
    regret = history.regret
    if regret is None or number > regret.replicas:
        return ""
    if signals.demand.arrivals_per_second_high < STILL_WORTH * regret.arrivals_per_second:
        return ""
    ago = seconds_in_words(signals.time - regret.time)
    return f"proved too few {ago} ago at {per_second(regret.arrivals_per_second)}"


def _credit(number: int, signals: Signals, spec: Autoscaling, history: History) -> int:
    """The number wanted, at most `number`, with credit for replicas on their way: waiting requests ask for no others
    while these start, nor afterwards while the queue shrinks in time. Beyond these, replicas are wanted only for
    lasting arrivals, plus one for a slow queue. A queue that does not shrink, against the engines' step costs, asks for
    replicas itself."""
    lasting = _for_what_keeps_coming(signals, spec, history)
    if lasting is None:
        return number
    start, seconds = max(demand_window(spec), signals.cold_start_seconds or 0.0), history.settled_seconds(signals)
    asked_lately = seconds < SHORTEST_DEMAND_WINDOW and signals.desired > signals.ready  # their pods may not exist yet
    if signals.starting > 0 or asked_lately or _on_course(signals, history, start):
        return min(number, max(signals.desired, lasting))
    is_early = seconds < demand_window(spec) or signals.ready <= lasting  # nothing shrinks yet, or cannot
    is_explained = history.backlog and seconds < SLOW_STARTS * start and is_early
    if is_explained or _on_course(signals, history, SLOW_STARTS * start):
        return min(number, max(signals.desired, lasting + 1))
    return number


def _for_what_keeps_coming(signals: Signals, spec: Autoscaling, history: History) -> int | None:
    """Replicas for the arrivals after the queue is gone; without a step cost, the number already asked for as many
    arrivals. None = unknown."""
    demand, asked = signals.demand, history.asked
    if demand.capacity is None or demand.capacity.step_cost is None:
        return asked.replicas if asked is not None and history.is_same_demand(signals, spec) else None
    loads = {uid: msgspec.structs.replace(load, queued_prefill_tokens=0) for uid, load in demand.loads.items()}
    empty = replace(
        demand,
        waiting=0,
        lasting_waiting=0.0,
        oldest_wait_seconds=0.0,
        waiting_uncached_tokens=0,
        running=0,  # all slots are taken as long as a queue is worked off
        loads=loads,
    )
    most = max(demand.likely_arrivals_per_second, demand.surge.per_second_high)
    calm = replace(signals, demand=replace(empty, arrivals_per_second=most, surge=NO_SURGE))
    enough = _smallest(1, most_replicas(spec), lambda number: shortfall(number, calm, spec, measured=None))
    return enough + signals.lost


def _on_course(signals: Signals, history: History, seconds: float) -> bool:
    """Whether the queue found by the last ready replica will be gone within `seconds`."""
    if history.last is None:
        return False
    passed = history.settled_seconds(signals)
    backlog = history.backlog if passed else history.last.demand.waiting
    return backlog > 0 and signals.demand.waiting <= backlog * (1.0 - passed / seconds)


def shortfall(
    num_replicas: int,
    signals: Signals,
    spec: Autoscaling,
    *,
    measured: float | None,
    tolerance: float = 0.0,
) -> str:
    """The problem with this number of replicas, to follow the number: "would leave 14 requests waiting …". Empty = no
    problem.

    `measured`: the time to first token at the target percentile, None = ignored. `tolerance`: share by which the target
    may be missed.
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
    """Why going down to this number would be rash: a shortfall at slightly more than the certain arrivals, or no slots
    left for chance. Empty = there is room."""
    demand, tolerance = signals.demand, targets_of(spec).tolerance / 100.0
    careful = signals.expecting(max(demand.arrivals_per_second, demand.arrivals_per_second_high))
    return overload(num_replicas, careful, deviations=ROOM_DEVIATIONS) or shortfall(
        num_replicas, careful, spec, measured=measured, tolerance=-tolerance
    )


def overload(num_replicas: int, signals: Signals, *, deviations: float = 0.0) -> str:
    """Why this number cannot suffice, whatever the targets. Empty = it can, or the capacity is unknown."""
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
