"""The engine's reports after a step: outputs of sequences, load, and the wait of a new request."""

from fairlead_common.wire import messages
from fairlead_engine.core.adapter_places import Adapters
from fairlead_engine.core.grammars import Grammars
from fairlead_engine.core.injections import Injection
from fairlead_engine.core.requests import RequestRefusal, ended, no_choice
from fairlead_engine.core.scheduler import Scheduler
from fairlead_engine.core.step_cost import StepCostModel, StepWork
from fairlead_engine.core.waiting_queue import num_awaited_tokens
from fairlead_engine.types import EngineLoad, FinishReason, Injected, SequenceOutput
from fairlead_engine.types.batch import Decodes
from fairlead_engine.types.sequences import SampledToken, ScheduledSequence, Sequence

_NO_TOKEN = "no next token could be chosen: the model computed logits that are not finite"


def outputs_of_decodes(
    decodes: Decodes, sampled: list[SampledToken | None], grammars: Grammars
) -> list[SequenceOutput]:
    """One output per decode; `sampled` begins with their tokens. Most have nothing but the next token."""
    return [
        SequenceOutput(
            request_id=sequence.request_id,
            new_token_ids=[token.token_id],
            num_cached_tokens=sequence.num_cached_tokens,
        )
        if sequence.finish_reason is None and token is not None and token.logprobs is None
        else output_of(sequence, token, None, grammars)
        for sequence, token in zip(decodes.sequences, sampled, strict=False)
    ]


def output_of(
    sequence: Sequence, token: SampledToken | None, item: ScheduledSequence | None, grammars: Grammars
) -> SequenceOutput:
    """A sequence's output of a step; `item`: its share, None for a decode. `grammars` know the reason of an end."""
    if sequence.finish_reason is FinishReason.INVALID:
        problem, grammar = grammars.problem(sequence), sequence.sampling.grammar
        if problem is not None and grammar is not None:
            refusal = RequestRefusal(
                FinishReason.INVALID, f"{grammar.field} cannot be kept to: {problem}", grammar.field
            )
        else:
            refusal = no_choice(sequence)
        return ended(sequence.request_id, refusal)
    if sequence.finish_reason is FinishReason.ERROR:
        return ended(sequence.request_id, RequestRefusal(FinishReason.ERROR, _NO_TOKEN))
    tokens = item.chosen if item is not None and item.drafts else [token] if token is not None else []
    is_first = item is not None and item.end == sequence.num_prompt_tokens
    return SequenceOutput(
        request_id=sequence.request_id,
        new_token_ids=[each.token_id for each in tokens],
        finish_reason=sequence.finish_reason,
        num_cached_tokens=sequence.num_cached_tokens,
        logprobs=[each.logprobs for each in tokens if each.logprobs is not None] or None,
        prompt_logprobs=item.prompt_logprobs or None if item is not None else None,
        embedding=item.embedding if item is not None else None,
        stop_token_id=tokens[-1].token_id if tokens and sequence.finish_reason is FinishReason.STOP else None,
        first_scheduled_time=sequence.first_scheduled_time if is_first else None,
    )


def told(sequence: Sequence, injection: Injection) -> SequenceOutput:
    """Reports an injection, before all tokens computed with the injected ones."""
    injection.done(None)
    return SequenceOutput(
        request_id=sequence.request_id,
        new_token_ids=[],
        injected=Injected(injection.mark, len(injection.token_ids)),
    )


class LoadGauge:
    """Reads the counts of the engine's parts after every step, without a look at running sequences."""

    def __init__(
        self, scheduler: Scheduler, step_cost: StepCostModel, grammars: Grammars, adapters: Adapters | None
    ) -> None:
        """`adapters`: None without room for any."""
        self._scheduler = scheduler
        self._step_cost = step_cost
        self._grammars = grammars
        self._adapters = adapters

    def load(self, num_failed_checks: int) -> EngineLoad:
        scheduler, counters, drafting = self._scheduler, self._scheduler.counters, self._scheduler.drafting
        num_held_back, host, states = scheduler.num_held_back, scheduler.blocks.host, scheduler.blocks.states
        if drafting is None:
            step_cost = messages.StepCost(**self._step_cost.coefficients)
        else:
            step_cost = self._step_cost.told(drafting.rows_per_decode, drafting.tokens_per_decode)
        parts = (self._grammars if self._grammars.num_masks else None, drafting, self._adapters)
        return EngineLoad(
            waiting=len(scheduler.waiting) - num_held_back,
            held_back=num_held_back,
            running=len(scheduler.running),
            queued_prefill_tokens=scheduler.num_prefill_tokens,
            kv_blocks_free=scheduler.blocks.num_free,
            kv_blocks_total=scheduler.blocks.num_blocks,
            kv_blocks_host=host.num_places,
            kv_states=0 if states is None else states.num_places,
            kv_tokens=scheduler.slots.num_kv_tokens,
            num_steps=self._step_cost.num_steps,
            num_preemptions=counters.num_preemptions,
            prefix_query_tokens=counters.prefix_query_tokens,
            prefix_hit_tokens=counters.prefix_hit_tokens,
            prompt_tokens=counters.prompt_tokens,
            generation_tokens=counters.generation_tokens,
            last_step_tokens=self._step_cost.last_step_tokens,
            last_step_seconds=self._step_cost.last_step_seconds,
            token_budget=scheduler.limits.max_num_batched_tokens,
            max_num_seqs=scheduler.num_slots,
            step_cost=step_cost,
            num_failed_checks=num_failed_checks,
            num_blocks_saved=host.num_saved,
            num_blocks_loaded=host.num_loaded,
            **{name: value for part in parts if part is not None for name, value in part.figures.items()},
        )

    @property
    def predicted_wait(self) -> float:
        """Seconds until a new request would begin: after the prefill of the prompts before it, and with a free slot.
        Slots come free as their sequences end, after as many tokens as recent sequences had."""
        scheduler, limits, sequences = self._scheduler, self._scheduler.limits, self._scheduler.sequences()
        if not scheduler.waiting:
            return 0.0
        num_slots = scheduler.num_slots
        num_busy = min(num_slots, len(sequences))
        num_kv_tokens = num_busy * sum(sequence.num_tokens for sequence in sequences) / len(sequences)
        before = scheduler.queue.first_in_line
        num_before = min(len(sequences) - scheduler.num_held_back, len(scheduler.running) + len(before))
        num_slots_awaited = max(0, num_before + 1 - num_slots)
        num_decode_steps = scheduler.mean_output_tokens * num_slots_awaited / num_slots
        num_tokens = scheduler.slots.num_prompt_tokens + sum(map(num_awaited_tokens, before))
        num_rows = float(num_busy)
        if (drafting := scheduler.drafting) is not None:
            num_decode_steps /= drafting.tokens_per_decode
            num_rows, num_kv_tokens = num_rows * drafting.rows_per_decode, num_kv_tokens * drafting.rows_per_decode
        context = sum(sequence.num_tokens * sequence.num_uncomputed_tokens / 2 for sequence in before)
        num_prefill_steps = -(-num_tokens // max(1, limits.max_num_batched_tokens - num_busy))
        return (
            num_decode_steps * self._step_cost.predict(StepWork(1, 0, 0, 0, num_rows, num_kv_tokens))
            + num_prefill_steps * self._step_cost.predict(StepWork(1, 1, 0, 0, 0, 0))
            + self._step_cost.predict(StepWork(0, 0, num_tokens, context, 0, 0))
        )
