"""How many replicas the demand asks for by itself: the smallest number that has no shortfall.

Who calls it: `recommend`, which reaches the number without haste. Replicas that are ready are treated with a little
reluctance both ways: more are wanted only where the target is missed by more than the tolerance, fewer only where there
is room for chance (`lack_of_room`). Between the two, what there is, is what is wanted: so noise changes
nothing.
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
"""A number that proved too few is tried again only for less than this share of the arrivals then."""
ROOM_DEVIATIONS = 2.0
"""Standard deviations of the number of requests that run at a time, for which there must be slots before a replica
goes."""
SLOW_STARTS = 10.0
"""A queue that will be gone within as many starts of a replica asks for one replica more than what keeps coming."""


def want(signals: Signals, spec: Autoscaling, history: History) -> Draft:
    """The smallest number of replicas that meets the targets; 0 where nobody asks for anything and that is allowed.
    Where no gateway can be read nothing is known of the demand, and what there is, is wanted."""
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
    """That lacks nothing; `last` where all do. More replicas never lack what fewer do not."""
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
    """The time to first token on the replicas that are there now. A request that waited for a replica to start says
    nothing about how fast that replica is: in the first minute after a change, of what was measured lately only that
    part counts which was surely waited for these, after they had time to work off what they found."""
    demand, percentile = signals.demand, targets_of(spec).percentile
    settled = history.settled_seconds(signals)
    if settled >= LONGEST_DEMAND_WINDOW:
        return measured_ttft(demand, percentile)
    since = settled - SHORTEST_DEMAND_WINDOW - (signals.cold_start_seconds or 0.0)
    lately = recent_ttft(demand, percentile)
    return None if lately is None or since <= 0.0 else min(lately, since)


def _regretted(number: int, signals: Signals, history: History) -> str:
    """Why so few replicas must not be tried again: they have been, for no more than comes now."""
    regret = history.regret
    if regret is None or number > regret.replicas:
        return ""
    if signals.demand.arrivals_per_second_high < STILL_WORTH * regret.arrivals_per_second:
        return ""
    ago = seconds_in_words(signals.time - regret.time)
    return f"proved too few {ago} ago at {per_second(regret.arrivals_per_second)}"


def _credit(number: int, signals: Signals, spec: Autoscaling, history: History) -> int:
    """Replicas on their way count as if they were there, and what waits meanwhile waits for them: it asks for no
    others, while they start and, once they are ready, as long as they get through it in time. More than they are is
    wanted only for what keeps coming, and one more for a queue that takes them long. Where it does not shrink, though
    there are enough by what the engines say, they are wrong, and it asks for itself. Returns at most `number`, which
    is what is wanted without all that."""
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
    """Replicas that the arrivals need when the queue is gone. Where no step cost tells: what was asked for as many
    arrivals already. None where nobody knows."""
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
    """Whether what waited when the last replica became ready will be gone within so long."""
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
    demand, tolerance = signals.demand, targets_of(spec).tolerance / 100.0
    careful = signals.expecting(max(demand.arrivals_per_second, demand.arrivals_per_second_high))
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
