"""What would wait, and how long first tokens would take, on another number of replicas. Proportional, as the formula of
the Kubernetes HorizontalPodAutoscaler is, with its tolerance.
"""

from fairlead.autoscaler.signals import Signals

TOLERANCE = 0.1
"""A measured time to first token that misses the target by up to this share, either way, changes nothing."""


def predicted_waiting(num_replicas: int, signals: Signals) -> float:
    """Requests that would wait: those that do, and those that run on the replicas which there would be fewer of.

    So replicas that keep the queue empty by working on it are not taken for idle ones.
    """
    if not signals.ready:
        return signals.waiting + signals.running
    return signals.waiting + signals.running * max(0.0, 1.0 - num_replicas / signals.ready)


def predicted_ttft(num_replicas: int, signals: Signals) -> float | None:
    """Seconds at the target percentile: inversely proportional to the replicas. None where nothing was measured."""
    if signals.ttft_seconds is None or not signals.ready:
        return None
    return signals.ttft_seconds * signals.ready / num_replicas


def meets_queue_depth(num_replicas: int, signals: Signals, target: int) -> bool:
    """Whether at most `target` requests would wait per replica."""
    return predicted_waiting(num_replicas, signals) <= target * num_replicas


def meets_ttft(num_replicas: int, signals: Signals, target: float) -> bool:
    """Whether first tokens would come within `target` seconds. What was not measured demands nothing."""
    predicted = predicted_ttft(num_replicas, signals)
    if predicted is None or signals.ttft_seconds is None:
        return True
    if abs(signals.ttft_seconds - target) <= TOLERANCE * target:
        return num_replicas >= signals.ready
    return predicted <= target
