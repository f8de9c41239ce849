"""Seconds to the first token, and requests that would wait, on another number of replicas. Pure arithmetic, no targets.

The model, with λ the requests, λu the uncached prompt tokens and λo the output tokens that come per second and k the
mean context: n replicas that share them evenly run steps of

    S(n) = base / (1 - work / n)      work = prefill_token·λu + prefill_step·λ + (decode_seq + kv_token·k)·λo + …

seconds, endless where the work of a second takes longer than a second; with more than a prompt per step, the steps'
prefill_step is paid once per step. Where engines speculate, λo is over the tokens that a step brings a sequence, which
their step costs tell (`tokens_per_decode`). λo·S(n) requests run at a time (Little's law): more than the replicas'
slots, or caches fuller than 90 %, are endless as well.

A request waits for a slot where more are there than slots. While all slots are taken, each is held for

    D = output tokens per request · a step of full slots + the prefill of one request for each slot

seconds, so n·max_num_seqs/D slots come free per second and what waits takes W(n) = waiting · D / (n·max_num_seqs)
(`routing.waits`, with which gateways foresee the wait of each request). What
waits is what has waited for some seconds or, where the arrivals have risen above those slots, what will wait when a
replica asked for now is ready. On the replicas there are now W is never less than the age of the oldest.

Then the request waits half a step for the running one to end and goes through what the routers' predictor says
(`routing.predictor`) with its share of the backlog and the uncached tokens of a request at the percentile. Everything
falls with n and grows with the load (property tests).
"""

import math
from dataclasses import replace

from fairlead.autoscaler.signals import Capacity, Demand, Signals
from fairlead.routing import predictor, waits
from fairlead_common.messages import StepCost

MAX_KV_USE = 0.9
"""Share of a cache that running requests may hold: above it, engines soon have to preempt."""
MIN_MEASURED = 10
"""First tokens that must have been seen before their percentile says anything."""
TREND_TRUST = 0.5
"""Share of a rate's growth that is expected to go on while a replica starts."""
MAX_TREND = 1.5
"""Times the present rate, at most, that the growth makes of it."""
UNKNOWN_COLD_START_SECONDS = 10.0
"""How long a replica takes to start, before one was seen to."""
LOOK_PAST_START_SECONDS = 5.0
"""What a replica takes beyond its start to be a help: it is asked for a moment late, and begins with what waits."""
SURGE_TRUST = 3.0
"""A rate that has lasted so and so long is expected to last so many times as long again, and not for ever."""


def step_seconds(num_replicas: int, demand: Demand, cost: StepCost) -> float:
    """S(n): one step of each of so many replicas in the long run; infinite where they could not keep up."""
    per_output_token = (cost.decode_seq + cost.kv_token * demand.mean_context) / cost.tokens_per_decode
    work = _prefill_seconds_per_request(demand, cost) * demand.arrivals_per_second
    work += per_output_token * demand.output_tokens_per_second

    def lasting(base: float, work: float) -> float:
        idle = 1.0 - work / num_replicas
        return base / idle if idle > 0.0 else math.inf

    each_pays = lasting(cost.base, work + cost.prefill_step * demand.arrivals_per_second)
    return min(each_pays, lasting(cost.base + cost.prefill_step, work))


def slot_seconds(demand: Demand, capacity: Capacity, cost: StepCost) -> float:
    """D: for how long a request holds its slot while all slots are taken. In that time every slot is filled anew
    once."""
    slots = capacity.max_num_seqs
    return waits.slot_seconds(
        cost,
        slots=slots,
        kv_tokens=slots * demand.mean_context,
        output_tokens=demand.output_tokens_per_request,
        prefill_seconds=_prefill_seconds_per_request(demand, cost) + cost.prefill_step,
    )


def num_sequences(num_replicas: int, demand: Demand, cost: StepCost | None) -> float:
    """Requests that run at a time on all of them together: what runs now, or will in the long run."""
    if cost is None or not demand.output_tokens_per_second:
        return float(demand.running)
    decodes_per_second = demand.output_tokens_per_second / cost.tokens_per_decode
    return max(demand.running, decodes_per_second * step_seconds(num_replicas, demand, cost))


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
    cost, sequences = capacity.step_cost, num_sequences(num_replicas, demand, capacity.step_cost)
    wait = seconds_to_slot(num_replicas, signals, capacity, cost)
    own = demand.uncached_per_request.percentile(percentile)
    own = max(demand.uncached_tokens_per_request if own is None else own, 1.0)

    def compute(queued: float) -> float:
        """From the next step to the one with the first token, behind so many tokens. All that runs is shared evenly. No
        prompt token has more before it than the prompt, and where most of a prompt is cached it has nearly as much."""
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
    """W(n): until it is the turn of the last that waits, or will wait when a replica asked for now is a help."""
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


def recent_ttft(demand: Demand, percentile: float) -> float | None:
    """Seconds at the percentile in the last seconds. None where too few first tokens were seen."""
    return demand.recent_ttft.percentile(percentile) if demand.recent_ttft.total >= MIN_MEASURED else None


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
    high, low = max(arrivals, demand.arrivals_per_second_high), demand.arrivals_per_second_low
    if low is not None and demand.arrivals_per_second:
        low *= arrivals / demand.arrivals_per_second
    expected = replace(demand, arrivals_per_second=arrivals, arrivals_per_second_high=high, arrivals_per_second_low=low)
    return replace(signals, demand=expected)


def worked_off(signals: Signals) -> Signals:
    """The same with the queue that will be left when a replica asked for now is ready: of what the ready ones get
    through until then, even with as many arrivals as there may well be, no other relieves them."""
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
    """What a request's prompt adds to the steps that compute it."""
    uncached = demand.uncached_tokens_per_request
    context = predictor.prefill_context(max(0.0, demand.prompt_tokens_per_request - uncached), uncached)
    return cost.prefill_token * uncached + cost.prefill_context * context
