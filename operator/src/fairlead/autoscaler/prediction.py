"""Late requests, first tokens and waiting requests on another number of replicas. Pure arithmetic, no targets.

The model, with λ requests, λu uncached prompt tokens and λo output tokens arriving per second, and k the mean context:
n replicas with equal shares run steps of

    S(n) = base / (1 - work / n)      work = prefill_token·λu + prefill_step·λ + (decode_seq + kv_token·k)·λo + …

seconds, infinite where a second brings more than a second of work. With more than a prompt per step, prefill_step is
paid once per step. With speculation λo is divided by the tokens per step of a sequence (`tokens_per_decode` of the step
cost). λo·S(n) requests run at a time (Little's law).

Requests beyond the slots wait. While all slots are taken, each is held for

    D = output tokens per request · a step of full slots + the prefill of one request for each slot

seconds, so n·max_num_seqs/D slots come free per second. Of the requests that come within a window from the moment when
a replica asked for now could be ready, these wait longer than is allowed (`forecast`):

- those behind the queue of then: what waits and runs now, with the arrivals until then, on the replicas that are ready
  and those on their way; until the n replicas have worked off what is too much;
- of the rest, as many as chance lets wait so long at a steady rate (`waiting.share_waiting`).

A first token then takes half a step, and the prefill (`routing.predictor`) of the share of the queue in the engines and
of the uncached tokens of a request at the percentile. All results fall with n and grow with the load (property tests).
"""

import math
from dataclasses import dataclass

from fairlead.autoscaler.waiting import after, share_waiting
from fairlead.demand.buckets import Buckets
from fairlead.demand.signals import Capacity, Demand, Signals
from fairlead.routing import predictor, waits
from fairlead_common.wire.messages import StepCost

MAX_KV_USE = 0.9
"""Share of a cache for running requests, above which engines soon preempt."""
MIN_MEASURED = 10
"""Answers needed for a measured percentile."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The requests of a window."""

    late: float
    """The share that waits longer than is allowed."""
    waiting: float
    """Requests without a slot at its beginning."""
    taken: float
    """The share of the slots that is taken on average."""


def step_seconds(num_replicas: int, demand: Demand, cost: StepCost) -> float:
    """S(n): seconds of a step on `num_replicas` in the long run; infinite = overloaded."""
    per_output_token = (cost.decode_seq + cost.kv_token * demand.mean_context) / cost.tokens_per_decode
    work = prefill_seconds_per_request(demand, cost) * demand.arrivals_per_second
    work += per_output_token * demand.output_tokens_per_second

    def lasting(base: float, work: float) -> float:
        idle = 1.0 - work / num_replicas
        return base / idle if idle > 0.0 else math.inf

    each_pays = lasting(cost.base, work + cost.prefill_step * demand.arrivals_per_second)
    return min(each_pays, lasting(cost.base + cost.prefill_step, work))


def slot_seconds(demand: Demand, capacity: Capacity, cost: StepCost) -> float:
    """D: seconds for which a request holds its slot while all slots are taken; every slot is refilled once in this
    time."""
    slots = capacity.max_num_seqs
    return waits.slot_seconds(
        cost,
        slots=slots,
        kv_tokens=slots * demand.mean_context,
        output_tokens=demand.output_tokens_per_request,
        prefill_seconds=prefill_seconds_per_request(demand, cost) + cost.prefill_step,
    )


def num_sequences(num_replicas: int, demand: Demand, cost: StepCost | None) -> float:
    """Running requests on all replicas together: the larger of those that last and the long run."""
    if cost is None or not demand.output_tokens_per_second:
        return demand.lasting_running
    decodes_per_second = demand.output_tokens_per_second / cost.tokens_per_decode
    return max(demand.lasting_running, decodes_per_second * step_seconds(num_replicas, demand, cost))


def own_ttft(num_replicas: int, signals: Signals, percentile: float) -> float | None:
    """Seconds to the first token at the percentile from the moment a request has its slot; infinite = overloaded, None
    = step cost unknown."""
    demand, capacity = signals.demand, signals.demand.capacity
    if capacity is None or capacity.step_cost is None:
        return None
    cost, step = capacity.step_cost, step_seconds(num_replicas, demand, capacity.step_cost)
    if math.isinf(step):
        return math.inf
    sequences = num_sequences(num_replicas, demand, cost)
    own = demand.uncached_per_request.percentile(percentile)
    tokens = demand.queued_tokens / num_replicas + max(demand.uncached_tokens_per_request if own is None else own, 1.0)
    # The context of each prompt token is taken as the whole prompt: the upper bound, and close where most of a prompt
    # is cached. Running requests are shared evenly.
    return step / 2.0 + predictor.prefill_seconds(
        cost,
        tokens=tokens,
        context=tokens * demand.prompt_tokens_per_request,
        token_budget=capacity.token_budget,
        running=min(sequences / num_replicas, capacity.max_num_seqs),
        kv_tokens=max(float(demand.kv_tokens), sequences * demand.mean_context) / num_replicas,
    )


def slot_rate(signals: Signals) -> float | None:
    """Slots that come free per second on one replica while all are taken; None = step cost unknown, infinite = requests
    cost nothing."""
    demand, capacity = signals.demand, signals.demand.capacity
    if capacity is None or capacity.step_cost is None:
        return None
    held = slot_seconds(demand, capacity, capacity.step_cost)
    return capacity.max_num_seqs / held if held else math.inf


def forecast(
    num_replicas: int, signals: Signals, *, patience: float, depth: float = math.inf, window: float, ahead: float
) -> Forecast:
    """`patience`: the allowed wait for a slot, in seconds. `depth`: the allowed number of waiting requests for each
    replica. `window`: of so many seconds, which begins in `ahead` seconds. The step cost must be known."""
    demand, capacity, per_replica = signals.demand, signals.demand.capacity, slot_rate(signals)
    assert capacity is not None
    assert per_replica is not None
    rate, most = demand.arrivals_per_second, num_replicas * per_replica
    slots, held = num_replicas * capacity.max_num_seqs, capacity.max_num_seqs / per_replica
    if not held:
        return Forecast(0.0, 0.0, 0.0)
    waiting = max(0.0, _inside(ahead, num_replicas, signals, held) - slots)
    if rate >= most:
        return Forecast(1.0, waiting, rate / most)
    too_many = max(0.0, waiting - min(patience * most, depth * num_replicas)) if waiting else 0.0
    oldest = demand.oldest_wait_seconds - patience if num_replicas <= signals.ready else 0.0
    behind = min(1.0, max(too_many / (most - rate), oldest) / window)
    chance = share_waiting(patience, per_second=rate, slots=slots, held=held)
    return Forecast(1.0 - (1.0 - behind) * (1.0 - chance), waiting, rate / most)


def _inside(ahead: float, num_replicas: int, signals: Signals, held: float) -> float:
    """Requests that wait or run in `ahead` seconds."""
    demand, each = signals.demand, signals.demand.capacity
    assert each is not None
    inside, now = float(demand.waiting + demand.running), 0.0
    for time in sorted({ahead, *(at for at, _ in signals.coming if at < ahead)}):
        ready = max([signals.ready, *(number for at, number in signals.coming if at <= now)])
        slots = min(num_replicas, ready) * each.max_num_seqs
        inside = after(time - now, inside=inside, per_second=demand.arrivals_per_second, slots=slots, held=held)
        now = time
    return inside


def has_cache(num_replicas: int, demand: Demand, capacity: Capacity) -> bool:
    """Whether the present cache use fits into the caches of `num_replicas`."""
    return demand.kv_blocks_used <= MAX_KV_USE * capacity.kv_blocks * num_replicas


def lasting_percentile(minute: Buckets, recent: Buckets, percentile: float) -> float | None:
    """Seconds at the percentile, exceeded both over the last minute and in its last seconds; None = too few figures."""
    if minute.total < MIN_MEASURED:
        return None
    long, short = minute.percentile(percentile), recent.percentile(percentile)
    return None if long is None or short is None else min(long, short)


def recent_ttft(demand: Demand, percentile: float) -> float | None:
    """Seconds at the percentile in the last seconds. None where too few first tokens were seen."""
    return demand.recent_ttft.percentile(percentile) if demand.recent_ttft.total >= MIN_MEASURED else None


def predicted_waiting(num_replicas: int, signals: Signals) -> float:
    """Requests waiting in the gateways, plus running requests without a slot on fewer replicas than are ready. With
    unknown slots, running requests in proportion to the removed replicas.

    Replicas with an empty queue are thus not idle while they work (docs/adr/0007).
    """
    demand, capacity = signals.demand, signals.demand.capacity
    if not signals.ready:
        return demand.waiting + demand.running
    if num_replicas >= signals.ready:
        return demand.waiting
    if capacity is None:
        return demand.waiting + demand.running * (1.0 - num_replicas / signals.ready)
    return demand.waiting + max(0.0, demand.running - capacity.max_num_seqs * num_replicas)


def prefill_seconds_per_request(demand: Demand, cost: StepCost) -> float:
    """Seconds added by the prompt of one request to the steps with its prefill."""
    uncached = demand.uncached_tokens_per_request
    context = predictor.prefill_context(max(0.0, demand.prompt_tokens_per_request - uncached), uncached)
    return cost.prefill_token * uncached + cost.prefill_context * context
