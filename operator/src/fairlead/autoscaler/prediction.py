"""Time to first token and waiting requests on another number of replicas. Pure arithmetic, no targets.

The model, with λ requests, λu uncached prompt tokens and λo output tokens arriving per second, and k the mean context:
n replicas with equal shares run steps of

    S(n) = base / (1 - work / n)      work = prefill_token·λu + prefill_step·λ + (decode_seq + kv_token·k)·λo + …

seconds, infinite where a second brings more than a second of work. With more than a prompt per step, prefill_step is
paid once per step. With speculation λo is divided by the tokens per step of a sequence (`tokens_per_decode` of the step
cost). λo·S(n) requests run at a time (Little's law); more than the replicas' slots, or caches fuller than 90 %, are
infinite as well.

Requests beyond the slots wait. While all slots are taken, each is held for

    D = output tokens per request · a step of full slots + the prefill of one request for each slot

seconds, so n·max_num_seqs/D slots come free per second and the wait is W(n) = waiting · D / (n·max_num_seqs)
(`routing.waits`, as in the gateways' predictions). `waiting` counts requests that have waited for some seconds; with
arrivals above the rate of free slots, the queue at the start of a replica asked for now. On the present replicas W is
at least the age of the oldest request.

Then the request waits half a step, for the running step to end, and takes the time of the routers' predictor
(`routing.predictor`) with its share of the backlog and the uncached tokens of a request at the percentile. All results
fall with n and grow with the load (property tests).
"""

import math
from dataclasses import replace

from fairlead.autoscaler.signals import Capacity, Demand, Signals
from fairlead.routing import predictor, waits
from fairlead_common.wire.messages import StepCost

MAX_KV_USE = 0.9
"""Share of a cache for running requests, above which engines soon preempt."""
MIN_MEASURED = 10
"""First tokens needed for a measured percentile."""
TREND_TRUST = 0.5
"""Share of a rate's growth expected to go on while a replica starts."""
MAX_TREND = 1.5
"""Bound on the expected growth, as a multiple of the present rate."""
UNKNOWN_COLD_START_SECONDS = 10.0
"""Seconds a replica takes to start, before the first measurement."""
LOOK_PAST_START_SECONDS = 5.0
"""Seconds beyond its start until a replica helps: it is asked for a moment late, and begins with a queue."""
SURGE_TRUST = 3.0
"""A surge is expected to last this many times as long as so far."""


def step_seconds(num_replicas: int, demand: Demand, cost: StepCost) -> float:
    """S(n): seconds of a step on `num_replicas` in the long run; infinite = overloaded."""
    per_output_token = (cost.decode_seq + cost.kv_token * demand.mean_context) / cost.tokens_per_decode
    work = _prefill_seconds_per_request(demand, cost) * demand.arrivals_per_second
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
        prefill_seconds=_prefill_seconds_per_request(demand, cost) + cost.prefill_step,
    )


def num_sequences(num_replicas: int, demand: Demand, cost: StepCost | None) -> float:
    """Running requests on all replicas together: the larger of now and the long run."""
    if cost is None or not demand.output_tokens_per_second:
        return float(demand.running)
    decodes_per_second = demand.output_tokens_per_second / cost.tokens_per_decode
    return max(demand.running, decodes_per_second * step_seconds(num_replicas, demand, cost))


def predicted_ttft(num_replicas: int, signals: Signals, percentile: float) -> float | None:
    """Seconds at the percentile on `num_replicas`; infinite = overloaded, None = step cost unknown."""
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
    cost, sequences = capacity.step_cost, num_sequences(num_replicas, demand, capacity.step_cost)
    wait = seconds_to_slot(num_replicas, signals, capacity, cost)
    own = demand.uncached_per_request.percentile(percentile)
    own = max(demand.uncached_tokens_per_request if own is None else own, 1.0)

    def compute(queued: float) -> float:
        """Seconds from the next step to the first token, behind `queued` tokens; running requests are shared evenly.
        The context of each prompt token is taken as the whole prompt: the upper bound, and close where most of a prompt
        is cached."""
        return predictor.prefill_seconds(
            cost,
            tokens=queued + own,
            context=(queued + own) * demand.prompt_tokens_per_request,
            token_budget=capacity.token_budget,
            running=sequences / num_replicas,
            kv_tokens=max(float(demand.kv_tokens), sequences * demand.mean_context) / num_replicas,
        )

    # What waits in the gateways is computed while slots come free: whichever of the two takes longer.
    shared = compute(demand.queued_tokens / num_replicas), compute(demand.backlog_tokens / num_replicas)
    return step / 2.0 + max(wait + shared[0], shared[1])


def seconds_to_slot(num_replicas: int, signals: Signals, capacity: Capacity, cost: StepCost) -> float:
    """W(n): seconds until the last request in the queue has a slot; with a surge, the queue when a replica asked for
    now helps."""
    demand, slots = signals.demand, num_replicas * capacity.max_num_seqs
    held = slot_seconds(demand, capacity, cost)
    if not held or not slots:
        return 0.0
    per_second = slots / held
    queue, is_ready = demand.lasting_waiting, num_replicas <= signals.ready
    surge = max(demand.surge.per_second, demand.surge.per_second_high if is_ready else 0.0)
    if surge > per_second:
        start = UNKNOWN_COLD_START_SECONDS if signals.cold_start_seconds is None else signals.cold_start_seconds
        ahead = min(start + LOOK_PAST_START_SECONDS, SURGE_TRUST * demand.surge.seconds)
        queue = max(queue, demand.waiting + (surge - per_second) * ahead)
    wait = waits.seconds_to_slot(demand.running + queue - slots, per_second)
    return max(wait, demand.oldest_wait_seconds) if is_ready else wait


def has_slots(num_replicas: int, demand: Demand, capacity: Capacity, *, deviations: float = 0.0) -> bool:
    """Whether the slots suffice for the running requests plus `deviations` standard deviations of chance."""
    sequences = num_sequences(num_replicas, demand, capacity.step_cost)
    if math.isinf(sequences):
        return False
    return sequences + deviations * math.sqrt(sequences) <= capacity.max_num_seqs * num_replicas


def has_cache(num_replicas: int, demand: Demand, capacity: Capacity) -> bool:
    """Whether the present cache use fits into the caches of `num_replicas`."""
    return demand.kv_blocks_used <= MAX_KV_USE * capacity.kv_blocks * num_replicas


def measured_ttft(demand: Demand, percentile: float) -> float | None:
    """Seconds at the percentile, exceeded both over the last minute and in its last seconds; None = too few first
    tokens."""
    if demand.ttft.total < MIN_MEASURED:
        return None
    long, short = demand.ttft.percentile(percentile), demand.recent_ttft.percentile(percentile)
    return None if long is None or short is None else min(long, short)


def recent_ttft(demand: Demand, percentile: float) -> float | None:
    """Seconds at the percentile in the last seconds. None where too few first tokens were seen."""
    return demand.recent_ttft.percentile(percentile) if demand.recent_ttft.total >= MIN_MEASURED else None


def expected_ttft(num_replicas: int, signals: Signals, percentile: float, measured: float | None) -> float | None:
    """The prediction, corrected by the measurement on the ready replicas; None = neither is known.

    The larger of the two where both are known: more replicas share the measured time, fewer are no faster. Without a
    prediction, the measured time is shared in proportion, as by Kubernetes' own autoscaler.
    """
    predicted = predicted_ttft(num_replicas, signals, percentile)
    if measured is None or not signals.ready:
        return predicted
    share = signals.ready / num_replicas
    return measured * share if predicted is None else max(predicted, measured * min(1.0, share))


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


def foreseen(signals: Signals) -> Signals:
    """The signals with the arrivals expected when a replica asked for now will be ready. Never fewer than now.

    Half of a certain growth is taken to go on for a cold start, up to half as many again: a rise that ends as a step is
    hardly overdone, and a longer rise finds its replica earlier.
    """
    demand = signals.demand
    grown = demand.arrivals_growth * TREND_TRUST * (signals.cold_start_seconds or 0.0)
    arrivals = min(demand.arrivals_per_second + grown, demand.arrivals_per_second * MAX_TREND)
    high, low = max(arrivals, demand.arrivals_per_second_high), demand.arrivals_per_second_low
    if low is not None and demand.arrivals_per_second:
        low *= arrivals / demand.arrivals_per_second
    expected = replace(demand, arrivals_per_second=arrivals, arrivals_per_second_high=high, arrivals_per_second_low=low)
    return replace(signals, demand=expected)


def worked_off(signals: Signals) -> Signals:
    """The signals with the queue left when a replica asked for now is ready. The ready replicas serve the rest
    themselves, even at the upper estimate of arrivals."""
    demand, capacity = signals.demand, signals.demand.capacity
    if not demand.waiting or capacity is None or capacity.step_cost is None:
        return signals
    held = slot_seconds(demand, capacity, capacity.step_cost)
    per_second = signals.ready * capacity.max_num_seqs / held if held else 0.0
    arrivals = max(demand.likely_arrivals_per_second, demand.arrivals_per_second_high)
    gone = max(0.0, per_second - arrivals) * (signals.cold_start_seconds or 0.0)
    share = max(0.0, 1.0 - gone / demand.waiting)
    left = replace(
        demand,
        waiting=math.ceil(demand.waiting * share),
        waiting_uncached_tokens=math.ceil(demand.waiting_uncached_tokens * share),
        lasting_waiting=max(0.0, demand.lasting_waiting - gone),
        oldest_wait_seconds=demand.oldest_wait_seconds if share else 0.0,
    )
    return replace(signals, demand=left)


def _prefill_seconds_per_request(demand: Demand, cost: StepCost) -> float:
    """Seconds added by the prompt of one request to the steps with its prefill."""
    uncached = demand.uncached_tokens_per_request
    context = predictor.prefill_context(max(0.0, demand.prompt_tokens_per_request - uncached), uncached)
    return cost.prefill_token * uncached + cost.prefill_context * context
