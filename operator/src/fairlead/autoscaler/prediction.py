"""Seconds to the first token, and requests that would wait, on another number of replicas. Pure arithmetic, no targets.

The model, with λu and λo the uncached prompt tokens and the output tokens that come per second and k the mean context:
n replicas that share them evenly run steps of

    S(n) = base / (1 - (prefill_token·λu + (decode_seq + kv_token·k)·λo) / n)

seconds, endless where the work of a second takes longer than a second. A request waits half a step for the running one
to end and then goes through what the routers' predictor says (`routing.predictor`) with its share of the backlog and
the uncached tokens of a request at the percentile. λo·S(n) requests run at a time (Little's law): more than the
replicas' slots, or caches fuller than 90 %, are endless as well. Everything falls with n and grows with the load
(property tests).
"""

import math
from dataclasses import replace

from fairlead.autoscaler.demand import Capacity, Demand
from fairlead.autoscaler.signals import Signals
from fairlead.routing.load import StepCost
from fairlead.routing.predictor import prefill_seconds

MAX_KV_USE = 0.9
"""Share of a cache that running requests may hold: above it, engines soon have to preempt."""
MIN_MEASURED = 10
"""First tokens that must have been seen before their percentile says anything."""
TREND_TRUST = 0.5
"""Share of a rate's growth that is expected to go on while a replica starts."""
MAX_TREND = 1.5
"""Times the present rate, at most, that the growth makes of it."""


def step_seconds(num_replicas: int, demand: Demand, cost: StepCost) -> float:
    """S(n): one step of each of so many replicas in the long run; infinite where they could not keep up."""
    per_output_token = cost.decode_seq + cost.kv_token * demand.mean_context
    work = cost.prefill_token * demand.uncached_tokens_per_second + per_output_token * demand.output_tokens_per_second
    idle = 1.0 - work / num_replicas
    return cost.base / idle if idle > 0.0 else math.inf


def num_sequences(num_replicas: int, demand: Demand, cost: StepCost | None) -> float:
    """Requests that run at a time on all of them together: what runs now, or will in the long run."""
    if cost is None or not demand.output_tokens_per_second:
        return float(demand.running)
    return max(demand.running, demand.output_tokens_per_second * step_seconds(num_replicas, demand, cost))


def predicted_ttft(num_replicas: int, signals: Signals, percentile: float) -> float | None:
    """Seconds at the percentile on so many replicas; infinite where they do not suffice at all. None where no engine
    has told what its steps cost."""
    demand, capacity = signals.demand, signals.demand.capacity
    if capacity is None or capacity.step_cost is None:
        return None
    step = step_seconds(num_replicas, demand, capacity.step_cost)
    if (
        math.isinf(step)
        or not has_slots(num_replicas, demand, capacity)
        or not has_cache(num_replicas, demand, capacity)
    ):
        return math.inf
    return step / 2.0 + _seconds_to_compute(num_replicas, demand, capacity, capacity.step_cost, percentile)


def has_slots(num_replicas: int, demand: Demand, capacity: Capacity, *, deviations: float = 0.0) -> bool:
    """Whether so many replicas can run what runs at a time, plus so many standard deviations of chance."""
    sequences = num_sequences(num_replicas, demand, capacity.step_cost)
    if math.isinf(sequences):
        return False
    return sequences + deviations * math.sqrt(sequences) <= capacity.max_num_seqs * num_replicas


def has_cache(num_replicas: int, demand: Demand, capacity: Capacity) -> bool:
    """Whether what runs now fits into the caches of so many replicas."""
    return demand.kv_blocks_used <= MAX_KV_USE * capacity.kv_blocks * num_replicas


def measured_ttft(demand: Demand, percentile: float) -> float | None:
    """Seconds at the percentile that were exceeded persistently: over the last minute and in its last seconds as well.
    None where too few first tokens were seen."""
    if demand.ttft.total < MIN_MEASURED:
        return None
    long, short = demand.ttft.percentile(percentile), demand.recent_ttft.percentile(percentile)
    return None if long is None or short is None else min(long, short)


def expected_ttft(num_replicas: int, signals: Signals, percentile: float, measured: float | None) -> float | None:
    """The prediction, corrected by what was measured on the replicas that are ready; None where neither is known.

    Where both are known it is the larger of the two: more replicas share what was measured, fewer are no faster than
    it. Where nothing can be predicted, what was measured is shared in proportion, as by Kubernetes' own autoscaler.
    """
    predicted = predicted_ttft(num_replicas, signals, percentile)
    if measured is None or not signals.ready:
        return predicted
    share = signals.ready / num_replicas
    return measured * share if predicted is None else max(predicted, measured * min(1.0, share))


def predicted_waiting(num_replicas: int, signals: Signals) -> float:
    """Requests that would wait in the gateways: those that do, and with fewer replicas than are ready those that run
    now and would find no slot. Where the slots are not known, the share of the replicas that there would be fewer of.

    So replicas that keep the queue empty by working on it are not taken for idle ones (docs/adr/0007).
    """
    demand, capacity = signals.demand, signals.demand.capacity
    if not signals.ready:
        return demand.waiting + demand.running
    if num_replicas >= signals.ready:
        return demand.waiting
    if capacity is None:
        return demand.waiting + demand.running * (1.0 - num_replicas / signals.ready)
    return demand.waiting + max(0.0, demand.running - capacity.max_num_seqs * num_replicas)


def foreseen(signals: Signals) -> Signals:
    """The same with the arrivals to expect when a replica asked for now will be ready. Never fewer than now.

    Half of a growth that is certain is taken to go on for as long as a cold start takes, up to half as many again: a
    rise that turns out to be a step is hardly overdone, and one that goes on finds its replica earlier.
    """
    demand = signals.demand
    grown = demand.arrivals_growth * TREND_TRUST * (signals.cold_start_seconds or 0.0)
    arrivals = min(demand.arrivals_per_second + grown, demand.arrivals_per_second * MAX_TREND)
    high = max(arrivals, demand.arrivals_per_second_high)
    return replace(signals, demand=replace(demand, arrivals_per_second=arrivals, arrivals_per_second_high=high))


def carefully(signals: Signals) -> Signals:
    """The same with as many arrivals as there may well be: what must find room before a replica goes."""
    demand = signals.demand
    return replace(signals, demand=replace(demand, arrivals_per_second=demand.arrivals_per_second_high))


def _seconds_to_compute(
    num_replicas: int, demand: Demand, capacity: Capacity, cost: StepCost, percentile: float
) -> float:
    """From the next step to the one with the first token. The backlog and all that runs are shared evenly. No prompt
    token has more before it than the prompt, and where most of a prompt is cached it has nearly as much."""
    own = demand.uncached_per_request.percentile(percentile)
    tokens = demand.backlog_tokens / num_replicas + max(demand.uncached_tokens_per_request if own is None else own, 1.0)
    sequences = num_sequences(num_replicas, demand, cost)
    return prefill_seconds(
        cost,
        tokens=tokens,
        context=tokens * demand.prompt_tokens_per_request,
        token_budget=capacity.token_budget,
        running=sequences / num_replicas,
        kv_tokens=max(float(demand.kv_tokens), sequences * demand.mean_context) / num_replicas,
    )
