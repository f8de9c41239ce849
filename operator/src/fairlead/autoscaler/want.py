"""The smallest number of replicas without a shortfall, for the present demand.

Called by `recommend`, which reaches the number without haste. A number is enough if at most as many requests as
`percentile` allows would wait too long, of those that come within a window from the moment when a replica asked for now
could be ready. More replicas are wanted if the present number is not enough at a likely rate, and fewer replicas if
these are enough at a rate that is hardly exceeded. The window is as long as the rate has been steady, so chance in one
minute of a steady hour adds no replica.
"""

import math
from bisect import bisect_left
from collections.abc import Callable

from fairlead.api.figures import counted, per_second, rounded, seconds_in_words
from fairlead.api.llmdeployment import Autoscaling, ScalingTargets
from fairlead.api.scaling_policy import (
    LONGEST_DEMAND_WINDOW,
    SHORTEST_DEMAND_WINDOW,
    bound_in_words,
    demand_window,
    most_replicas,
    scale_to_zero_after,
    targets_of,
)
from fairlead.autoscaler import prediction
from fairlead.autoscaler.history import History
from fairlead.autoscaler.recommendation import Draft
from fairlead.autoscaler.tpot import expected_pace, out_of_reach, slow_tokens
from fairlead.demand.signals import Signals

SHORTEST_WINDOW, STARTS, STARTS_FROM_ZERO, LONGEST_WINDOW = 40.0, 1.0, 30.0, 1800.0
"""The window, in seconds or starts of a replica, and as long as the rate has been steady otherwise. Before the first
replica is ready more is accepted: what waits is late in any case."""
MARGIN = 0.8
"""Replicas are added until at most this part of the requests that may be late would be."""
LATE_SECONDS = 300.0
"""First tokens are counted as late over this time at least."""


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
        lack = shortfall(max(1, number - lost), signals, spec, measured=measured, part=MARGIN)
        return lack or (_proved_late(history, spec) if number <= signals.ready else "")

    def tight(number: int) -> str:
        room = shortfall(
            max(1, number - lost), signals.careful(), spec, measured=measured, tolerance=-tolerance, soon=True
        )
        return room or _regretted(number, signals, history)

    enough = max(1, current - lost)
    if shortfall(enough, signals, spec, measured=measured, tolerance=tolerance) or (
        current == signals.ready and _proved_late(history, spec)
    ):
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
        own = prediction.own_ttft(1, signals, targets.percentile)
        times = [each for each in (own, measured) if each is not None]
        if times and math.isfinite(max(times)):
            target = seconds_in_words(targets.time_to_first_token)
            parts.append(f"first tokens at p{targets.percentile} in {seconds_in_words(max(times))} (target {target})")
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
        return prediction.lasting_percentile(demand.ttft, demand.recent_ttft, percentile)
    since, lately = history.borne_seconds(signals), prediction.recent_ttft(demand, percentile)
    return None if lately is None or since <= 0.0 else min(lately, since)


def _regretted(number: int, signals: Signals, history: History) -> str:
    """Why this number must not be tried again: it proved too few not long ago."""
    regret = history.regret
    if regret is None or number > regret.replicas or signals.time - regret.time > regret.seconds:
        return ""
    ago = seconds_in_words(signals.time - regret.time)
    return f"proved too few {ago} ago at {per_second(regret.arrivals_per_second)}"


def _proved_late(history: History, spec: Autoscaling) -> str:
    """Whether too many first tokens on the present replicas were late, whatever is predicted."""
    late, allowed = history.late, 1.0 - targets_of(spec).percentile / 100.0
    if late.number <= allowed * max(late.seconds, LATE_SECONDS):
        return ""
    return (
        f"had {rounded(100.0 * late.number / late.seconds):g} % of the requests late within "
        f"{seconds_in_words(late.seconds)} ({rounded(100.0 * allowed):g} % allowed)"
    )


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
    part: float = 1.0,
    soon: bool = False,
) -> str:
    """The problem with this number of replicas, to follow the number: "would leave 14 requests waiting …". Empty = no
    problem.

    `measured`: the time to first token at the target percentile, None = ignored. `tolerance`: share by which the target
    may be missed. `part`: of the requests that `percentile` lets be late, those that may be. `soon`: from now on,
    instead of from when a replica asked for now could be ready.
    """
    targets = targets_of(spec)
    return (
        overload(num_replicas, signals)
        or _late(num_replicas, signals, targets, tolerance, part, soon=soon)
        or _waiting(num_replicas, signals, targets)
        or _slow(num_replicas, signals, targets, tolerance, measured)
        or slow_tokens(num_replicas, signals, targets, tolerance)
    )


def _late(
    num_replicas: int, signals: Signals, targets: ScalingTargets, tolerance: float, part: float, *, soon: bool
) -> str:
    """Whether too many requests would wait for a slot for too long, where it is known how fast slots come free."""
    own, per_replica = prediction.own_ttft(num_replicas, signals, targets.percentile), prediction.slot_rate(signals)
    if own is None or per_replica is None:
        return ""
    target, depth = targets.time_to_first_token, targets.queue_depth
    rate = per_second(signals.demand.arrivals_per_second)
    patience, limit = math.inf, ""
    if target is not None:
        patience, limit = target * (1.0 + tolerance) - own, f"target {seconds_in_words(target)}"
        if patience < 0.0:
            late = f"would have first tokens at p{targets.percentile} in {seconds_in_words(own)} ({limit}) at {rate}"
            return f"{late}: prompts take so long to compute"
    starts = (STARTS if signals.ready else STARTS_FROM_ZERO) * signals.start_seconds
    window = max(SHORTEST_WINDOW, starts, min(LONGEST_WINDOW, signals.steady_seconds))
    ahead = 0.0 if soon else signals.start_seconds
    most = math.inf if depth is None else depth * (1.0 + tolerance)
    seen = prediction.forecast(num_replicas, signals, patience=patience, depth=most, window=window, ahead=ahead)
    allowed = part * (1.0 - targets.percentile / 100.0)
    if seen.late <= allowed:
        return ""
    if seen.taken >= 1.0:
        return f"could not keep up with {rate}"
    cause = f"{rounded(100.0 * seen.taken):g} % of its slots would be taken on average"
    if seen.waiting:
        if depth is not None and depth < patience * per_replica:
            limit = f"queueDepth {depth}"
        cause = f"{counted(math.ceil(seen.waiting), 'request')} would wait in {seconds_in_words(ahead)}"
    return (
        f"would leave {rounded(100.0 * seen.late):g} % of the requests of {seconds_in_words(window)} waiting too long "
        f"({limit}, {rounded(100.0 * allowed):g} % allowed) at {rate}: {cause}"
    )


def _waiting(num_replicas: int, signals: Signals, targets: ScalingTargets) -> str:
    """Whether too many wait, where it is not known how fast slots come free."""
    if targets.queue_depth is None or prediction.slot_rate(signals) is not None:
        return ""
    waiting = prediction.predicted_waiting(num_replicas, signals)
    if waiting <= targets.queue_depth * num_replicas:
        return ""
    return f"would leave {counted(math.ceil(waiting), 'request')} waiting (queueDepth {targets.queue_depth})"


def _slow(
    num_replicas: int, signals: Signals, targets: ScalingTargets, tolerance: float, measured: float | None
) -> str:
    """Whether first tokens are measured late: in proportion to the ready replicas, as by Kubernetes' own autoscaler;
    where step costs are known, fewer replicas are no faster, and more share the time."""
    target = targets.time_to_first_token
    if target is None or measured is None or not signals.ready:
        return ""
    share = signals.ready / num_replicas
    expected = measured * (share if prediction.slot_rate(signals) is None else min(1.0, share))
    if expected <= target * (1.0 + tolerance):
        return ""
    return (
        f"would have first tokens at p{targets.percentile} in {seconds_in_words(expected)} (target "
        f"{seconds_in_words(target)}), as measured on {counted(signals.ready, 'replica')}"
    )


def overload(num_replicas: int, signals: Signals) -> str:
    """Why this number cannot suffice, whatever the targets. Empty = it can, or the capacity is unknown."""
    demand, capacity = signals.demand, signals.demand.capacity
    if capacity is None:
        return ""
    if capacity.step_cost and math.isinf(prediction.step_seconds(num_replicas, demand, capacity.step_cost)):
        return f"could not keep up with {per_second(demand.arrivals_per_second)}"
    if not prediction.has_cache(num_replicas, demand, capacity):
        use = demand.kv_blocks_used / (capacity.kv_blocks * num_replicas) if capacity.kv_blocks else 1.0
        return f"would have their caches {rounded(100.0 * use):g} % full"
    return ""
