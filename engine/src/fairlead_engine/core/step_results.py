"""A step's results, written into its sequences: tokens, finished blocks, and which sequences end."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from fairlead_engine.core.block_manager import BlockManager
from fairlead_engine.core.coming_blocks import ComingBlocks
from fairlead_engine.core.running_slots import RunningSlots
from fairlead_engine.types import FinishReason, SamplingParams
from fairlead_engine.types.batch import Batch, Decodes
from fairlead_engine.types.sequences import NO_SLOT, NO_TOKEN, SampledToken, ScheduledSequence, Sequence


class SequenceEnds:
    """The ends of a sequence that nobody aborts, computed when the sequence is queued."""

    def __init__(self, eos_token_ids: Collection[int], max_len: int) -> None:
        """`max_len`: tokens that fit the context, and the cache."""
        self._eos_token_ids = frozenset(eos_token_ids)
        self._max_len = max_len

    def token_ids_of(self, sampling: SamplingParams) -> frozenset[int]:
        """Tokens that end an answer of sufficient length; requests without their own share one set."""
        own = frozenset(sampling.stop_token_ids)
        if sampling.ignore_eos:
            return own
        return own | self._eos_token_ids if own else self._eos_token_ids

    def max_num_tokens_of(self, sequence: Sequence) -> int:
        """Prompt and output tokens at which the sequence ends."""
        most = sequence.sampling.max_tokens
        return self._max_len if most is None else min(self._max_len, sequence.num_prompt_tokens + most)


def reason_to_end(sequence: Sequence) -> FinishReason | None:
    """Why the sequence ends with its last token; None = it goes on. Only a grammar ends before `min_tokens`."""
    sampling = sequence.sampling
    is_long_enough = sequence.num_output_tokens >= sampling.min_tokens or sampling.grammar is not None
    if is_long_enough and sequence.token_ids[-1] in sequence.end_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if sequence.num_tokens >= sequence.max_num_tokens else None


def failed_sequences(
    batch: Batch, sampled: list[SampledToken | None], token_ids: list[int]
) -> dict[Sequence, FinishReason]:
    """Sequences with a computed number that is not finite, or without a token to choose. `token_ids`: of decodes, where
    one `min` finds that all are tokens."""
    found = {item.sequence: FinishReason.ERROR for item in batch.chunks if item.reads_prompt and item.is_spoilt}
    of_chunks = sampled[len(token_ids) :]
    if min(token_ids, default=0) < 0 or any(token is not None and not token.is_there for token in of_chunks):
        sequences = [*batch.decodes.sequences, *(item.sequence for item in batch.chunks)]
        for sequence, token in zip(sequences, sampled, strict=True):
            if token is not None and not token.is_there:
                reason = FinishReason.ERROR if token == NO_TOKEN else FinishReason.INVALID
                found.setdefault(sequence, reason)
    return found


@dataclass(slots=True)
class Counters:
    """Counts since the start; `EngineLoad` documents them."""

    num_preemptions: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0


class StepResults:
    """Appends tokens, publishes full blocks, and finds ended sequences. Plans and frees nothing."""

    def __init__(self, blocks: BlockManager, coming: ComingBlocks, slots: RunningSlots, counters: Counters) -> None:
        self._blocks = blocks
        self._coming = coming
        self._slots = slots
        self._counters = counters

    def write(self, batch: Batch, sampled: list[SampledToken | None], preempted: list[Sequence]) -> list[Sequence]:
        """Returns the sequences that end with this step.

        A sequence without a token, or with scores that are not finite, ends with ERROR, and its blocks, a possible
        cause, are not reused. A sequence that ruled out every token itself ends with INVALID and keeps its blocks
        usable. For sequences `preempted` since the planning only the token counts: their blocks belong to others.
        """
        decodes, num_decodes = batch.decodes, len(batch.decodes)
        token_ids = [token.token_id for token in sampled[:num_decodes] if token is not None]
        failed = failed_sequences(batch, sampled, token_ids)
        for sequence, reason in failed.items():
            sequence.finish_reason = reason
            if reason is FinishReason.ERROR:
                self._blocks.retract(sequence)
        if failed:
            rows = [row for row, sequence in enumerate(decodes.sequences) if sequence.finish_reason is None]
            decodes, token_ids = decodes.pick(rows), [token_ids[row] for row in rows]
        finished = [*failed] + self._write_decodes(decodes, token_ids, preempted)
        for item, token in zip(batch.chunks, sampled[num_decodes:], strict=True):
            if item.sequence.finish_reason is None and self._write_chunk(item, token):
                finished.append(item.sequence)
        return finished

    def _write_decodes(self, decodes: Decodes, token_ids: list[int], preempted: list[Sequence]) -> list[Sequence]:
        """Appends a token to each sequence and returns the sequences that end."""
        sequences, ends, block_size = decodes.sequences, decodes.ends.tolist(), self._blocks.block_size
        ending: list[Sequence] = []
        for sequence, end, token_id in zip(sequences, ends, token_ids, strict=True):  # once: each is far away in memory
            sequence.token_ids.append(token_id)
            sequence.num_computed_tokens = end
            if token_id in sequence.end_token_ids:
                ending.append(sequence)
        self._counters.generation_tokens += len(token_ids)
        self._slots.num_kv_tokens += len(token_ids)
        for sequence in preempted:  # of these only the token counts
            if sequence.slot == NO_SLOT:
                self._slots.num_kv_tokens -= sequence.num_computed_tokens > 0
                sequence.num_computed_tokens = 0
        for row in np.flatnonzero(decodes.ends % block_size == 0).tolist():
            if sequences[row].block_table:
                self._publish(sequences[row], ends[row] - 1, ends[row])
        ending += [sequences[row] for row in np.flatnonzero(decodes.ends + 1 >= decodes.most).tolist()]
        for sequence in ending:
            sequence.finish_reason = reason_to_end(sequence)
        return [sequence for sequence in dict.fromkeys(ending) if sequence.finish_reason is not None]

    def _write_chunk(self, item: ScheduledSequence, token: SampledToken | None) -> bool:
        """Whether the sequence has ended."""
        if item.drafts:
            return self._write_drafted(item)
        assert item.samples == (token is not None), "the runner must sample exactly where a sequence's end is reached"
        sequence, end = item.sequence, item.end
        if sequence.under_way is item:
            sequence.under_way = None
        if sequence.block_table is item.block_table:
            self._computed(sequence, item.start, end)
        if token is not None:
            self._append(sequence, token.token_id)
        elif end == len(sequence.token_ids):  # no more than its prompt was wanted
            sequence.finish_reason = FinishReason.LENGTH if sequence.pooling is None else FinishReason.STOP
            self._counters.prompt_tokens += sequence.num_prompt_tokens
        if item.reads_prompt:
            sequence.num_read_tokens += len(item.scores) + len(item.pools)
        return sequence.finish_reason is not None

    def _write_drafted(self, item: ScheduledSequence) -> bool:
        """Appends the accepted drafts and the token behind them, up to the sequence's end. The next step overwrites the
        KV of rejected drafts. Returns whether the sequence has ended."""
        sequence, chosen = item.sequence, item.chosen
        for count, token in enumerate(chosen, start=1):
            self._append(sequence, token.token_id)
            if sequence.finish_reason is not None:
                del chosen[count:]
                break
        self._computed(sequence, item.start, item.start + len(chosen))
        self._slots.decoding.gained(sequence.slot, len(chosen) - 1)
        return sequence.finish_reason is not None

    def _computed(self, sequence: Sequence, start: int, end: int) -> None:
        """The sequence's tokens from `start` to `end` are in the cache from here on."""
        self._slots.computed(sequence, end)
        self._publish(sequence, start, end)

    def _publish(self, sequence: Sequence, start: int, end: int) -> None:
        self._blocks.publish(sequence, start)
        self._coming.made(sequence, start, end)

    def _append(self, sequence: Sequence, token_id: int) -> None:
        sequence.token_ids.append(token_id)
        self._counters.generation_tokens += 1
        if sequence.num_output_tokens == 1:
            self._counters.prompt_tokens += sequence.num_prompt_tokens
        sequence.finish_reason = reason_to_end(sequence)
