"""A model's signals at one moment: its counters, its line, and its replicas' loads. Pure but for what it reads.

Who calls it: `SignalsStream`, once per line and model.
"""

from fairlead.api.signals_message import ModelSignals, ReplicaSignals
from fairlead.gateway.dispatch.admission import ModelPool
from fairlead.routing.replica_state import is_hanging

MAX_PROMPTS_LOOKED_AT = 64
"""Waiting prompts that are looked up in the replicas' caches for one line; of a longer queue, a sample this large."""


def model_signals(pool: ModelPool, now: float) -> ModelSignals:
    """Everything this gateway can say of one model at this moment."""
    counters = pool.counters
    return ModelSignals(
        num_arrivals=counters.num_arrivals,
        num_ended=counters.num_ended,
        num_answered=counters.num_answered,
        prompt_tokens=counters.prompt_tokens,
        uncached_prompt_tokens=counters.uncached_prompt_tokens,
        output_tokens=counters.output_tokens,
        waiting=len(pool.queue),
        waiting_uncached_tokens=_waiting_uncached_tokens(pool),
        oldest_wait_seconds=pool.queue.oldest_wait_seconds(now),
        running=pool.router.in_flight.total,
        ttft=counters.ttft,
        predicted_ttft=counters.predicted_ttft,
        uncached_per_request=counters.uncached_per_request,
        num_ready=pool.num_ready,
        replicas=_replicas(pool, now),
    )


def _waiting_uncached_tokens(pool: ModelPool) -> int:
    """What the best replica would have to compute of every waiting prompt; from an even sample where many wait."""
    prompts = pool.waiting_prompts()
    stride = -(-len(prompts) // MAX_PROMPTS_LOOKED_AT) or 1
    sample = prompts[::stride]
    uncached = sum(pool.router.expected_uncached(prompt) for prompt in sample)
    if stride == 1:
        return uncached
    return round(uncached * sum(prompt.num_tokens for prompt in prompts) / max(1, sum(p.num_tokens for p in sample)))


def _replicas(pool: ModelPool, now: float) -> dict[str, ReplicaSignals]:
    loads = ((replica, pool.datastore.load(replica.uid, now)) for replica in pool.router.replicas)
    return {
        replica.uid: ReplicaSignals(
            name=replica.name, age_seconds=max(0.0, now - load.time), hangs=is_hanging(load), **load.figures
        )
        for replica, load in loads
        if load is not None
    }
