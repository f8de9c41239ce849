"""The autoscaler's decision, on one screen: want → stabilise → limit.

Called by the operator's tick. Deterministic: reads no clock and keeps no state.
"""

from fairlead.api.figures import are, counted, seconds_in_words
from fairlead.api.llmdeployment import Autoscaling
from fairlead.api.quantities import format_duration
from fairlead.api.scaling_policy import bound_in_words, fewest_replicas, most_replicas, scale_down_of, scale_up_of
from fairlead.autoscaler.history import History
from fairlead.autoscaler.recommendation import Draft, Recommendation
from fairlead.autoscaler.want import want
from fairlead.demand.signals import Signals

DEFAULT_MAX_STEP, BLIND_MAX_STEP = 30, 4
"""Replicas added at once without a step in the spec: as many as there were, or this number if larger. The second where
nothing proves the demand: no step cost is known, or no replica is ready yet."""


def recommend(signals: Signals, spec: Autoscaling, history: History) -> Recommendation:
    """The smallest number of replicas that meets the targets, reached without haste. `history`: of the earlier
    ticks."""
    return decide(signals, spec, history).explained(signals)


def decide(signals: Signals, spec: Autoscaling, history: History) -> Draft:
    """The same without its sentence."""
    seen = history.complete(signals)
    draft = want(seen, spec, history)  # the smallest number that is enough
    draft = stabilise(draft, seen, spec, history)  # more only when it lasts, fewer only when it is sure
    return limit(draft, seen, spec, history)  # not too many at once; minReplicas and maxReplicas


def granted(draft: Draft, most: int, because: str, signals: Signals, spec: Autoscaling, history: History) -> Draft:
    """At most so many replicas, for the GPUs of the budgets. Replicas that others are to have go in the steps of
    `scaleDown`, one after the other has drained, but without waiting for a surplus."""
    if most >= draft.replicas:
        return draft
    draft = draft.but(most, because)
    if draft.replicas < signals.desired and signals.draining:
        return draft.but(signals.desired, f"{are(signals.draining)} still draining")
    return _paced(draft, signals, spec, history)


def stabilise(draft: Draft, signals: Signals, spec: Autoscaling, history: History) -> Draft:
    """More replicas after a lasting need, or at once from zero. Fewer only with complete signals, nothing on its way,
    and a lasting surplus."""
    current = signals.desired
    if draft.replicas > current > 0:
        window = scale_up_of(spec).stabilization_window
        least = max(current, history.least_wanted(signals.time, window)) if window else draft.replicas
        if least < draft.replicas:
            return draft.but(least, f"for less than {format_duration(window)} so far")
    if draft.replicas >= current:
        return draft
    # being idle for scaleToZeroAfter says enough
    window = scale_down_of(spec).stabilization_window if draft.replicas else 0.0
    if why := obstacle(signals, history, window):
        return draft.but(current, why)
    most = min(current, history.most_wanted(signals.time, window)) if window else draft.replicas
    if most > draft.replicas:
        return draft.but(
            most, f"{most} {'was' if most == 1 else 'were'} needed within the last {format_duration(window)}"
        )
    return draft


def limit(draft: Draft, signals: Signals, spec: Autoscaling, history: History) -> Draft:
    """Not too many at once, and never outside minReplicas and maxReplicas."""
    current, up = signals.desired, scale_up_of(spec)
    start = min([current, *history.counts(signals.time, up.period)])
    capacity = signals.demand.capacity
    is_proven = signals.ready > 0 and capacity is not None and capacity.step_cost is not None
    step = up.max_step or max(start, DEFAULT_MAX_STEP if is_proven else BLIND_MAX_STEP)
    if draft.replicas > max(current, start + step):
        most = max(current, start + step)
        draft = draft.but(most, f"at most {step} are added in {format_duration(up.period)}")
    draft = _paced(draft, signals, spec, history)
    if draft.replicas < (fewest := fewest_replicas(spec)):
        draft = draft.but(fewest, bound_in_words(spec, "minReplicas", fewest))
    if draft.replicas > most_replicas(spec):
        draft = draft.but(most_replicas(spec), bound_in_words(spec, "maxReplicas", most_replicas(spec)))
    return draft


def _paced(draft: Draft, signals: Signals, spec: Autoscaling, history: History) -> Draft:
    current, down = signals.desired, scale_down_of(spec)
    if down.max_step is None or not 0 < draft.replicas < current:
        return draft
    fewest = min(current, max([current, *history.counts(signals.time, down.period)]) - down.max_step)
    if draft.replicas >= fewest:
        return draft
    return draft.but(fewest, f"at most {down.max_step} are taken away in {format_duration(down.period)}")


def obstacle(signals: Signals, history: History, window: float) -> str:
    """Why nothing may be taken away now, to follow "but"; empty = nothing is in the way."""
    demand = signals.demand
    if demand.num_missing:
        return f"{counted(demand.num_missing, 'gateway')} could not be read"
    if not signals.is_complete:
        return f"the oldest figures are {seconds_in_words(demand.age_seconds)} old"
    if signals.starting:
        return "no replica goes while others start"
    if signals.draining:
        return f"{are(signals.draining)} still draining"
    if not history.covers(signals.time, window):
        return f"the demand has been watched for less than {format_duration(window)}"
    return ""
