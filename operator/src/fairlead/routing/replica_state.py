"""A replica at one moment: its engine's last load, corrected by this gateway's later requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from fairlead.routing.in_flight import InFlightRequest
from fairlead.routing.predictor import Dispatched, Work, predicted_ttft, prefill_seconds, step_seconds, tokens_per_step
from fairlead.routing.prompt import block_size_of
from fairlead.routing.replica import Load, Replica

HUNG_SECONDS = 5.0
HUNG_STEPS = 20.0
"""A hanging step is longer than HUNG_SECONDS and than so many full steps."""


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """One replica, now. Without a load, only this gateway's requests are known."""

    replica: Replica
    num_in_flight: int
    """Requests of this gateway that are there."""
    load: Load | None = None
    """Its last load, where fresh."""
    unseen: Sequence[InFlightRequest] = ()
    """This gateway's requests missing in the load, oldest first."""
    num_ended: int = 0
    """Sequences that ended but that the load includes."""
    context_per_token: float | None = None
    """Mean context of this gateway's prompt tokens under computation; None = none."""

    @property
    def num_seqs(self) -> int:
        """Sequences that are there, of whichever gateway."""
        if self.load is None:
            return self.num_in_flight
        num_unseen = sum(sent.num_seqs for sent in self.unseen)
        return max(self.num_in_flight, self.load.running + self.load.waiting - self.num_ended + num_unseen)

    def has_room(self, num_uncached_tokens: int) -> bool:
        """Whether a prompt can begin without waiting for another request to end: a slot is free, and free blocks hold
        the prompt (cached blocks may be in use, so they are not deducted). An idle replica takes any prompt."""
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
        """Whether the engine's step will hardly end."""
        return self.load is not None and is_hanging(self.load)

    def loading_seconds(self, adapter: str | None, now: float) -> float:
        """Seconds until the adapter is loaded, as the engine says, or earlier if a request sent since makes the engine
        load it."""
        if adapter is None or self.load is None:
            return 0.0
        under_way = (max(0.0, sent.adapter_ready_at - now) for sent in self.unseen if sent.adapter == adapter)
        return min(self.load.adapters.get(adapter, 0.0), *under_way, inf)

    def predicted_ttft(
        self, work: Work, now: float, not_before: float = -inf, adapter: str | None = None
    ) -> float | None:
        """By the model of steps, without overhead; None = load or step cost unknown.

        `not_before`: when the prefix under computation should be ready; the prompt's own steps follow. `adapter`: of
        the request.
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
    """Whether the engine's step is too long, against its step cost, to end soon."""
    tokens = tokens_per_step(load.token_budget, load.running)
    full = step_seconds(load.step_cost, running=load.running, kv_tokens=load.kv_tokens, prefill_tokens=tokens)
    return load.step_age_seconds > max(HUNG_SECONDS, HUNG_STEPS * full)
