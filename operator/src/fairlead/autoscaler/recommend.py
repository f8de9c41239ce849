"""The autoscaler's decision, on one screen: wanted → stabilise → limit.

Who calls it: the operator's tick. Same inputs, same answer; it neither reads a clock nor remembers anything itself.
"""

from dataclasses import dataclass, replace

from fairlead.api.durations import format_duration
from fairlead.api.llmdeployment import DEFAULT_QUEUE_DEPTH, Autoscaling, ScaleDown, ScalingTargets
from fairlead.autoscaler.history import History
from fairlead.autoscaler.prediction import meets_queue_depth, meets_ttft
from fairlead.autoscaler.signals import Signals
from fairlead.autoscaler.words import counted, seconds_in_words

MAX_STEP_FACTOR = 2
MAX_STEP_REPLICAS = 4
"""One tick may at most double the replicas, or add this many, whichever is more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """How many replicas there should be, and why."""

    replicas: int
    reason: str
    """One sentence with the numbers it rests on, without a full stop."""
    wanted: int
    """What the demand asks for by itself: what History is to remember."""

    def but(self, replicas: int, why: str) -> "Recommendation":
        """Another count, for a reason that is added to the sentence."""
        return replace(self, replicas=replicas, reason=f"{self.reason}; {why}")


def recommend(signals: Signals, spec: Autoscaling, history: History) -> Recommendation:
    """The smallest number of replicas that meets the targets, reached without haste. `history`: the earlier ticks'."""
    most = most_replicas(spec)
    wanted = next((n for n in range(1, most) if meets_targets(n, signals, spec)), most)
    first = Recommendation(
        replicas=wanted, reason=_evidence(signals, spec, wanted), wanted=_to_remember(wanted, signals)
    )
    return limit(stabilise(first, signals, spec, history), signals, spec)


def meets_targets(num_replicas: int, signals: Signals, spec: Autoscaling) -> bool:
    """Whether so many replicas would keep queue depth and time to first token within their targets."""
    targets = targets_of(spec)
    depth, ttft = targets.queue_depth, targets.time_to_first_token
    return (depth is None or meets_queue_depth(num_replicas, signals, depth)) and (
        ttft is None or meets_ttft(num_replicas, signals, ttft)
    )


def stabilise(wanted: Recommendation, signals: Signals, spec: Autoscaling, history: History) -> Recommendation:
    """More at once; fewer only when everything is seen, nothing is on its way, and fewer were enough for a while."""
    current, window = signals.desired, stabilization_window(spec)
    if wanted.replicas >= current:
        return wanted
    obstacle = _obstacle(signals, history, window)
    if obstacle:
        return wanted.but(current, f"{counted(current, 'replica')} kept because {obstacle}")
    most = min(current, history.most_wanted(signals.time, window))
    if most > wanted.replicas:
        return wanted.but(
            most, f"{counted(most, 'replica')} kept because the last {format_duration(window)} needed them"
        )
    return wanted


def limit(stabilised: Recommendation, signals: Signals, spec: Autoscaling) -> Recommendation:
    """Not too many at once, and never outside minReplicas and maxReplicas."""
    result = stabilised
    step = max(signals.desired * MAX_STEP_FACTOR, signals.desired + MAX_STEP_REPLICAS)
    if result.replicas > step:
        result = result.but(step, f"{step} are the most that one step may reach from {signals.desired}")
    fewest, most = fewest_replicas(spec), most_replicas(spec)
    if result.replicas < fewest:
        result = result.but(fewest, f"minReplicas is {fewest}")
    if result.replicas > most:
        result = result.but(most, f"maxReplicas is {most}")
    if spec.min_replicas == 0 and result.replicas == 1:
        result = result.but(1, "minReplicas 0 is held at 1: this version does not scale to zero")
    return result


def fewest_replicas(spec: Autoscaling) -> int:
    """At least one, whatever minReplicas says."""
    return max(1, spec.min_replicas or 1)


def most_replicas(spec: Autoscaling) -> int:
    """`maxReplicas`, which a spec of mode Fairlead always has; never below the fewest."""
    return max(fewest_replicas(spec), spec.max_replicas or 1)


def targets_of(spec: Autoscaling) -> ScalingTargets:
    """The targets, with the default queue depth where none is set at all."""
    targets = spec.targets or ScalingTargets()
    if targets.queue_depth is None and targets.time_to_first_token is None:
        return replace(targets, queue_depth=DEFAULT_QUEUE_DEPTH)
    return targets


def stabilization_window(spec: Autoscaling) -> float:
    """Seconds for which fewer replicas must have been enough."""
    return (spec.scale_down or ScaleDown()).stabilization_window


def _to_remember(wanted: int, signals: Signals) -> int:
    """A tick that did not see everything must not pass for a tick of little demand."""
    return wanted if signals.is_complete else max(wanted, signals.desired)


def _obstacle(signals: Signals, history: History, window: float) -> str:
    """Why nothing may be taken away now, to follow "because"; empty = nothing is in the way."""
    if not signals.num_gateways:
        return "no gateway could be read"
    if signals.missing_gateways:
        return f"{counted(signals.missing_gateways, 'gateway')} could not be read"
    if not signals.is_complete:
        return f"the oldest figures are {seconds_in_words(signals.age_seconds)} old"
    if signals.starting:
        return f"{_are(signals.starting)} still starting"
    if signals.draining:
        return f"{_are(signals.draining)} still draining"
    if not history.covers(signals.time, window):
        return f"the demand has been watched for less than {format_duration(window)}"
    return ""


def _are(num_replicas: int) -> str:
    return f"{counted(num_replicas, 'replica')} {'is' if num_replicas == 1 else 'are'}"


def _evidence(signals: Signals, spec: Autoscaling, wanted: int) -> str:
    """What was seen, beside its targets, and what it asks for."""
    targets = targets_of(spec)
    depth, target = targets.queue_depth, targets.time_to_first_token
    text = f"{counted(signals.waiting, 'request')} waiting and {signals.running} running on "
    text += counted(signals.ready, "ready replica") + (f" (queueDepth {depth})" if depth is not None else "")
    if target is not None:
        seen = "not measured" if signals.ttft_seconds is None else seconds_in_words(signals.ttft_seconds)
        text += f", p{targets.percentile} time to first token {seen} (target {seconds_in_words(target)})"
    if meets_targets(wanted, signals, spec):
        return f"{text}: {counted(wanted, 'replica')} needed"
    return f"{text}: more than maxReplicas {wanted} needed"
