"""What an LLMDeployment's `autoscaling` says, with the defaults that depend on other fields.

Who calls it: `recommend`, and the operator, which has to know the same bounds to report them.
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
"""Bounds of the seconds over which demand is measured; see `demand_window`."""


def fewest_replicas(spec: Autoscaling) -> int:
    """`minReplicas`; 0 where the fleet may go to zero."""
    return 1 if spec.min_replicas is None else spec.min_replicas


def most_replicas(spec: Autoscaling) -> int:
    """`maxReplicas`, which a spec of mode Fairlead always has; at least 1, and never below the fewest."""
    return max(1, fewest_replicas(spec), spec.max_replicas or 1)


def targets_of(spec: Autoscaling) -> ScalingTargets:
    """The targets, with the default queue depth where none is set at all."""
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
    """Seconds without a request after which no replica is kept; None where the fleet never goes to zero."""
    if fewest_replicas(spec) > 0:
        return None
    return DEFAULT_SCALE_TO_ZERO_AFTER if spec.scale_to_zero_after is None else spec.scale_to_zero_after


def demand_window(spec: Autoscaling) -> float:
    """Seconds over which rates and times are measured: what one wants of a fleet's speed in going down says how much
    noise one accepts. Not below 10 s, where a handful of requests would decide, nor above a minute, which is old
    news."""
    return min(max(scale_down_of(spec).stabilization_window, SHORTEST_DEMAND_WINDOW), LONGEST_DEMAND_WINDOW)
