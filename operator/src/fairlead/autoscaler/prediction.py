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

seconds, so n·max_num_seqs/D slots come free per second. The wait for a slot, W(n), is the longest of

- that of a request that comes when a replica asked for now could be ready, behind the queue of then: what waits now,
  with the arrivals of the last seconds (the worst of several times, as far as they are likely), on the replicas that
  are ready and then on those that are on their way;
- that which chance leaves in the long run at the percentile (`waiting.lasting_wait`);
- on the present replicas, the age of the oldest request.

Then the request waits half a step, for the running step to end, and takes the time of the routers' predictor
(`routing.predictor`) with its share of the backlog and the uncached tokens of a request at the percentile. All results
fall with n and grow with the load (property tests).
"""

import math
from dataclasses import dataclass

from fairlead.autoscaler.arrivals import LIKELY
from fairlead.autoscaler.buckets import Buckets
from fairlead.autoscaler.recommendation import counted, per_second, rounded, seconds_in_words
from fairlead.autoscaler.signals import Capacity, Demand, Signals
from fairlead.autoscaler.waiting import after, lasting_wait
from fairlead.routing import predictor, waits
from fairlead_common.wire.messages import StepCost

MAX_KV_USE = 0.9
"""Share of a cache for running requests, above which engines soon preempt."""
MIN_MEASURED = 10
"""Answers needed for a measured percentile."""
HARDLY_CHANCE, LONG_SECONDS = 2.0, 8.0
"""Standard deviations by which a recent rate is taken for less, unless requests wait and it was counted for so long."""
TRUST = 3.0
"""A recent rate is expected to last this many times as long as it was counted."""


@dataclass(frozen=True, slots=True)
class Queue:
    """The requests without a slot when a replica asked for now could be ready."""

    waiting: float
    seconds: float
    """Until the last of them has a slot."""
    gone_seconds: float
    """Until none waits; infinite = more come than leave."""
    per_second: float
    """The arrivals that make it so long."""
    ahead: float
    """Seconds from now."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The longest wait for a slot."""

    seconds: float
    why: str
    """Its cause, to follow a sentence."""


NO_QUEUE, WORKED_OFF = (Queue(0.0, 0.0, 0.0, 0.0, 0.0) for _ in range(2))
"""The second instead of a queue that will soon be gone."""


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


def predicted_ttft(num_replicas: int, signals: Signals, percentile: float, queue: Queue | None = None) -> float | None:
    """Seconds at the percentile on `num_replicas`; infinite = overloaded, None = step cost unknown. `queue`: behind
    which a request waits for its slot; None = that of `queue_ahead`."""
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
    queue = queue or queue_ahead(num_replicas, signals) or NO_QUEUE
    wait = longest_wait(num_replicas, signals, percentile, queue).seconds
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
    is_past = queue is WORKED_OFF or (signals.ready and not queue.waiting)
    backlog = demand.queued_tokens if is_past else demand.backlog_tokens
    shared = compute(demand.queued_tokens / num_replicas), compute(backlog / num_replicas)
    return step / 2.0 + max(wait + shared[0], shared[1])


def longest_wait(num_replicas: int, signals: Signals, percentile: float, queue: Queue) -> Wait:
    """For a slot of `num_replicas`, behind `queue`. The step cost must be known."""
    demand, capacity = signals.demand, signals.demand.capacity
    assert capacity is not None
    assert capacity.step_cost is not None
    held, slots = slot_seconds(demand, capacity, capacity.step_cost), num_replicas * capacity.max_num_seqs
    chance = lasting_wait(percentile, per_second=demand.arrivals_per_second, slots=slots, held=held) if held else 0.0
    taken = 100.0 * demand.arrivals_per_second * held / slots
    ahead = f"{counted(math.ceil(queue.waiting), 'request')} would wait in {seconds_in_words(queue.ahead)}"
    waits = (
        Wait(chance, f"{rounded(taken):g} % of its slots would be taken on average"),
        Wait(queue.seconds, f"{ahead} at {per_second(queue.per_second)}"),
        Wait(demand.oldest_wait_seconds if num_replicas <= signals.ready else 0.0, "a request has waited so long"),
    )
    longest = max(waits, key=lambda each: each.seconds)
    return longest if longest.seconds else Wait(0.0, "prompts take so long to compute")


def queue_ahead(num_replicas: int, signals: Signals, *, soon: bool = False) -> Queue | None:
    """The queue by the likely arrivals of the last seconds; None = the step cost is unknown. `soon`: after the time
    that one request holds its slot, instead of a start."""
    demand, capacity = signals.demand, signals.demand.capacity
    if capacity is None or capacity.step_cost is None:
        return None
    held = slot_seconds(demand, capacity, capacity.step_cost)
    if not held:
        return NO_QUEUE
    ahead = min(held, signals.start_seconds) if soon else signals.start_seconds
    lately = ((each, demand.waiting and each.seconds >= LONG_SECONDS) for each in demand.lately)
    rates = [(each.less(LIKELY if is_sure else HARDLY_CHANCE), TRUST * each.seconds) for each, is_sure in lately]
    slots, worst = num_replicas * capacity.max_num_seqs, NO_QUEUE
    for rate, lasts in [(demand.arrivals_per_second, math.inf), *rates]:
        waiting = _inside(ahead, num_replicas, signals, rate, lasts, held) - slots
        if waiting > worst.waiting:
            lasting = rate if lasts >= ahead else min(rate, demand.arrivals_per_second)
            growth = lasting - slots / held
            gone = waiting / -growth if growth < 0.0 else math.inf
            worst = Queue(waiting, waiting * held / slots, max(gone, worst.gone_seconds), rate, ahead)
    return worst


def _inside(ahead: float, num_replicas: int, signals: Signals, rate: float, lasts: float, held: float) -> float:
    """Requests that wait or run in `ahead` seconds. `lasts`: for how long the rate is expected; then the lasting one
    follows."""
    demand, each = signals.demand, signals.demand.capacity
    assert each is not None
    inside, now = float(demand.waiting + demand.running), 0.0
    times = sorted({min(lasts, ahead), ahead, *(at for at, _ in signals.coming if at < ahead)})
    for time in times:
        ready = max([signals.ready, *(number for at, number in signals.coming if at <= now)])
        slots = min(num_replicas, ready) * each.max_num_seqs
        per_second = rate if now < lasts else min(rate, demand.arrivals_per_second)
        inside = after(time - now, inside=inside, per_second=per_second, slots=slots, held=held)
        now = time
    return inside


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
    return lasting_percentile(demand.ttft, demand.recent_ttft, percentile)


def lasting_percentile(minute: Buckets, recent: Buckets, percentile: float) -> float | None:
    """Seconds at the percentile, exceeded in both; None = too few figures."""
    if minute.total < MIN_MEASURED:
        return None
    long, short = minute.percentile(percentile), recent.percentile(percentile)
    return None if long is None or short is None else min(long, short)


def recent_ttft(demand: Demand, percentile: float) -> float | None:
    """Seconds at the percentile in the last seconds. None where too few first tokens were seen."""
    return demand.recent_ttft.percentile(percentile) if demand.recent_ttft.total >= MIN_MEASURED else None


def expected_ttft(
    num_replicas: int, signals: Signals, percentile: float, measured: float | None, queue: Queue | None = None
) -> float | None:
    """The prediction, corrected by the measurement on the ready replicas; None = neither is known.

    The larger of the two where both are known: more replicas share the measured time, fewer are no faster. Without a
    prediction, the measured time is shared in proportion, as by Kubernetes' own autoscaler. `queue`: as of
    `predicted_ttft`.
    """
    predicted = predicted_ttft(num_replicas, signals, percentile, queue)
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


def prefill_seconds_per_request(demand: Demand, cost: StepCost) -> float:
    """Seconds added by the prompt of one request to the steps with its prefill."""
    uncached = demand.uncached_tokens_per_request
    context = predictor.prefill_context(max(0.0, demand.prompt_tokens_per_request - uncached), uncached)
    return cost.prefill_token * uncached + cost.prefill_context * context
