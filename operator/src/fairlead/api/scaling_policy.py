"""The `autoscaling` of an LLMDeployment, with defaults that depend on other fields.

Used by `recommend`, and by the operator to report the same bounds.
"""

from dataclasses import replace

from fairlead.api.llmdeployment import (
    DEFAULT_QUEUE_DEPTH,
    DEFAULT_SCALE_TO_ZERO_AFTER,
    Autoscaling,
    ScaleDown,
    ScaleUp,
    ScalingTargets,
)

SHORTEST_DEMAND_WINDOW = 10.0
LONGEST_DEMAND_WINDOW = 60.0
"""Bounds of `demand_window`, in seconds."""


def fewest_replicas(spec: Autoscaling) -> int:
    """`minReplicas`; 0 where the fleet may go to zero."""
    return 1 if spec.min_replicas is None else spec.min_replicas


def most_replicas(spec: Autoscaling) -> int:
    """`maxReplicas`, always set in mode Fairlead; at least 1, and never below the fewest."""
    return max(1, fewest_replicas(spec), spec.max_replicas or 1)


def bound_in_words(spec: Autoscaling, field: str, number: int) -> str:
    """`maxReplicas is 4`, or `maxReplicas is 8 by schedule office`; the schedules are as of `bounds_at`."""
    return f"{field} is {number}" + "".join(f" by schedule {each.name}" for each in spec.schedules)


def targets_of(spec: Autoscaling) -> ScalingTargets:
    """The targets; without any target, the default queue depth."""
    targets = spec.targets or ScalingTargets()
    if targets.queue_depth is None and targets.time_to_first_token is None:
        return replace(targets, queue_depth=DEFAULT_QUEUE_DEPTH)
    return targets


def scale_up_of(spec: Autoscaling) -> ScaleUp:
    """How carefully replicas are added."""
    return spec.scale_up or ScaleUp()


def scale_down_of(spec: Autoscaling) -> ScaleDown:
    """How carefully replicas are taken away."""
    return spec.scale_down or ScaleDown()


def scale_to_zero_after(spec: Autoscaling) -> float | None:
    """Seconds without a request before the fleet goes to zero; None = never."""
    if fewest_replicas(spec) > 0:
        return None
    return DEFAULT_SCALE_TO_ZERO_AFTER if spec.scale_to_zero_after is None else spec.scale_to_zero_after


def demand_window(spec: Autoscaling) -> float:
    """Seconds over which rates and times are measured: the scale-down window, as a fleet that may go down fast must
    accept noise. At least 10 s, below which a handful of requests would decide; at most a minute, beyond which figures
    are old."""
    return min(max(scale_down_of(spec).stabilization_window, SHORTEST_DEMAND_WINDOW), LONGEST_DEMAND_WINDOW)
