"""How a replica stands at one moment: what its engine last said, corrected by what this gateway has done since."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from fairlead.routing.in_flight import InFlightRequest
from fairlead.routing.predictor import (
    Dispatched,
    Work,
    predicted_ttft,
    prefill_seconds,
    step_seconds,
    tokens_per_step,
)
from fairlead.routing.prompt import block_size_of
from fairlead.routing.replica import Load, Replica

HUNG_SECONDS = 5.0
HUNG_STEPS = 20.0
"""A step that takes longer than HUNG_SECONDS, and longer than so many full ones should, hangs."""


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """One replica, now. Without a load, only what this gateway has there is known."""

    replica: Replica
    num_in_flight: int
    """Requests of this gateway that are there."""
    load: Load | None = None
    """Its last load, where fresh."""
    unseen: Sequence[InFlightRequest] = ()
    """Requests of this gateway that the load does not include; the oldest first."""
    num_ended: int = 0
    """Sequences that the load includes though they ended since."""
    context_per_token: float | None = None
    """Mean context of the prompt tokens that are computed there, as far as they are ours; None where none are."""

    @property
    def num_seqs(self) -> int:
        """Sequences that are there, of whichever gateway."""
        if self.load is None:
            return self.num_in_flight
        num_unseen = sum(sent.num_seqs for sent in self.unseen)
        return max(self.num_in_flight, self.load.running + self.load.waiting - self.num_ended + num_unseen)

    def has_room(self, num_uncached_tokens: int) -> bool:
        """Whether one more prompt can begin there without waiting for another request to end.

        By a load: a slot is free, and the free blocks hold the prompt (those in it that are cached may be in use, so
        they are not counted). A replica with nothing to do takes any prompt.
        """
        load, limits = self.load, self.replica.limits
        if load is None:
            return limits is None or self.num_in_flight < limits.max_num_seqs
        num_seqs = self.num_seqs
        if num_seqs <= 0:
            return not load.draining
        block_size = block_size_of(self.replica)
        num_blocks = ceil(num_uncached_tokens / block_size)
        num_blocks += sum(ceil(sent.work.tokens / block_size) for sent in self.unseen)
        return not load.draining and num_seqs < load.max_num_seqs and num_blocks <= load.kv_blocks_free

    def hangs(self) -> bool:
        """Whether the engine's step takes so long that it will hardly end."""
        return self.load is not None and is_hanging(self.load)

    def loading_seconds(self, adapter: str | None, now: float) -> float:
        """What a request that came now would wait for this adapter to be loaded: what the engine says, but no longer
        than until it is there for a request that this gateway has sent since."""
        if adapter is None or self.load is None:
            return 0.0
        under_way = (max(0.0, sent.adapter_ready_at - now) for sent in self.unseen if sent.adapter == adapter)
        return min(self.load.adapters.get(adapter, 0.0), *under_way, inf)

    def predicted_ttft(
        self, work: Work, now: float, not_before: float = -inf, adapter: str | None = None
    ) -> float | None:
        """By the model alone, without overhead; None where load or step cost is unknown.

        `not_before`: when a prefix that the prompt has to wait for should be computed; its own steps come after that.
        `adapter`: what it is to be read with.
        """
        load = self.load
        if load is None or not load.step_cost.is_known:
            return None
        loading = self.loading_seconds(adapter, now)
        ttft = predicted_ttft(
            load,
            load.step_cost,
            [Dispatched(sent.dispatched_at, sent.work) for sent in self.unseen],
            work,
            now=now,
            num_ended=self.num_ended,
            context_per_token=self.context_per_token,
            loading=loading,
        )
        if not_before > now:
            alone = prefill_seconds(
                load.step_cost,
                tokens=work.tokens,
                context=work.context,
                token_budget=load.token_budget,
                running=load.running,
                kv_tokens=load.kv_tokens,
            )
            ttft = max(ttft, not_before - now + alone + loading)
        return ttft


def is_hanging(load: Load) -> bool:
    """Whether the engine's step takes so long, for what a step of this engine may cost, that it will hardly end."""
    tokens = tokens_per_step(load.token_budget, load.running)
    full = step_seconds(load.step_cost, running=load.running, kv_tokens=load.kv_tokens, prefill_tokens=tokens)
    return load.step_age_seconds > max(HUNG_SECONDS, HUNG_STEPS * full)
