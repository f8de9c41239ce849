"""Time per output token (TPOT) on another number of replicas. Pure arithmetic; `want.py` compares it with its target.

Every step brings each running sequence its next tokens, and takes longer the more sequences decode in the step and the
more prompts are computed beside them. On n replicas with equal shares, a request shares its steps with r others:

    TPOT(n) = decode(1 + r) / (1 - p/n) / tokens_per_decode     decode(q) = base + (decode_seq + kv_token·k)·q
    r = (L + z·√L) / n, at most the other slots

with the mean context k, p seconds of prefill arriving per second, L sequences running on all replicas
(`prediction.num_sequences`), and z standard deviations of independent arrivals at the percentile. A step computes at
most a full budget of prompt tokens, which bounds the second factor. TPOT falls with n towards decode(1), the floor: a
single sequence's own step, which no number of replicas makes faster.
"""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

from fairlead.api.figures import rounded, seconds_in_words
from fairlead.api.llmdeployment import ScalingTargets
from fairlead.autoscaler.prediction import lasting_percentile, num_sequences, prefill_seconds_per_request
from fairlead.demand.signals import Demand, Signals
from fairlead.routing.predictor import step_seconds
from fairlead_common.wire.messages import StepCost


@dataclass(frozen=True, slots=True)
class TokenPace:
    """TPOT on one number of replicas, at a percentile."""

    seconds: float
    sequences: float
    """Running on the replica of a request, the request's own among them."""
    floor: float
    """Seconds with a single sequence on the replica."""


def predicted_pace(num_replicas: int, demand: Demand, percentile: float) -> TokenPace | None:
    """By the step cost; None = the step cost is unknown."""
    capacity = demand.capacity
    if capacity is None or capacity.step_cost is None:
        return None
    cost, slots = capacity.step_cost, capacity.max_num_seqs
    long_run = min(num_sequences(num_replicas, demand, cost), float(num_replicas * slots))
    deviations = max(0.0, NormalDist().inv_cdf(percentile / 100.0))
    most = max(demand.lasting_running, long_run + deviations * math.sqrt(long_run))
    sequences = 1.0 + min(most / num_replicas, slots - 1.0)
    prefill = prefill_seconds_per_request(demand, cost) + cost.prefill_step
    idle = 1.0 - demand.arrivals_per_second * prefill / num_replicas
    decode = _decode(sequences, demand, cost)
    full = decode + cost.prefill_step + capacity.token_budget * (
        cost.prefill_token + cost.prefill_context * demand.prompt_tokens_per_request
    )  # fmt: skip
    step = min(decode / idle, full) if idle > 0.0 else full
    return TokenPace(step / cost.tokens_per_decode, sequences, _decode(1.0, demand, cost) / cost.tokens_per_decode)


def expected_pace(num_replicas: int, signals: Signals, percentile: float) -> TokenPace | None:
    """The prediction, raised by as much as the ready replicas are measured to be slower than theirs; None = not known.

    Where no step cost is known, nobody knows whether more replicas would be faster. Fewer are slower at most in
    proportion.
    """
    demand, ready = signals.demand, signals.ready
    measured = lasting_percentile(demand.tpot, demand.recent_tpot, percentile) if ready else None
    predicted = predicted_pace(num_replicas, demand, percentile)
    if predicted is None:
        if measured is None or num_replicas >= ready:
            return None
        return TokenPace(measured * ready / num_replicas, 1.0 + demand.lasting_running / num_replicas, 0.0)
    now = predicted_pace(ready, demand, percentile) if measured is not None else None
    if now is None or measured is None:
        return predicted
    times = max(1.0, measured / now.seconds) if now.seconds else 1.0
    return TokenPace(predicted.seconds * times, predicted.sequences, predicted.floor * times)


def slow_tokens(num_replicas: int, signals: Signals, targets: ScalingTargets, tolerance: float) -> str:
    """Why this number of replicas would answer too slowly; empty = it would not, or more replicas are no help. Fewer
    replicas (a negative `tolerance`) must beat the target by a share of what replicas can change: the time above the
    floor."""
    target = targets.time_per_output_token
    seen = signals
    if tolerance >= 0.0:  # in the long run: while replicas work off a queue, all of their slots are taken
        seen = replace(signals, demand=replace(signals.demand, lasting_running=0.0))
    pace = None if target is None else expected_pace(num_replicas, seen, targets.percentile)
    if target is None or pace is None or out_of_reach(signals, targets, is_sure=tolerance < 0.0):
        return ""
    if pace.seconds <= target + tolerance * (target if tolerance > 0.0 else max(0.0, target - pace.floor)):
        return ""
    return (
        f"would take {seconds_in_words(pace.seconds)} per output token at p{targets.percentile} > timePerOutputToken "
        f"{seconds_in_words(target)}, with {rounded(pace.sequences):g} sequences each"
    )


def out_of_reach(signals: Signals, targets: ScalingTargets, *, is_sure: bool = False) -> str:
    """Why no number of replicas meets the target; empty = some number may. `is_sure`: by the step cost alone, as
    measurements scatter."""
    target, percentile = targets.time_per_output_token, targets.percentile
    if target is None:
        return ""
    pace = predicted_pace(1, signals.demand, percentile) if is_sure else expected_pace(1, signals, percentile)
    if pace is None or pace.floor <= target:
        return ""
    return (
        f"no number of replicas meets timePerOutputToken {seconds_in_words(target)}: "
        f"a single sequence takes {seconds_in_words(pace.floor)} per token"
    )


def _decode(sequences: float, demand: Demand, cost: StepCost) -> float:
    return step_seconds(cost, running=sequences, kv_tokens=sequences * demand.mean_context)
