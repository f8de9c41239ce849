"""The scheduler: which tokens of which sequences the next step computes.

`Engine.step()` calls `schedule` before the runner and `commit` after it. Only the scheduler changes sequences; the
block manager supplies blocks. No tensors, text or sockets.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from fairlead_engine.core.adapter_places import Adapters
from fairlead_engine.core.block_manager import BlockManager
from fairlead_engine.core.coming_blocks import ComingBlocks
from fairlead_engine.core.injections import Injection, Injections
from fairlead_engine.core.recurrent_states import RecurrentStates
from fairlead_engine.core.requests import RequestRefusal
from fairlead_engine.core.running_slots import RunningSlots
from fairlead_engine.core.step_results import Counters, SequenceEnds, StepResults
from fairlead_engine.core.waiting_queue import ClientParts, WaitingQueue, num_awaited_tokens, rank
from fairlead_engine.speculative.drafting import Drafting
from fairlead_engine.types import FinishReason
from fairlead_engine.types.batch import Batch
from fairlead_engine.types.sequences import NO_SLOT, SampledToken, ScheduledSequence, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Limits of steps and of the queue; all counts are tokens but `max_num_seqs`."""

    max_model_len: int
    """Longest prompt plus output."""
    max_num_seqs: int
    """Sequences that one step may run; at most `max_num_batched_tokens`, as each takes a token of every step."""
    max_num_batched_tokens: int
    """Token budget of one step."""
    max_num_queued_tokens: int
    """Tokens that may wait before new requests are refused."""
    max_batch_weight: int | None = None
    """Prompt and output tokens of all running sequences together; None = as many as the cache holds."""
    whole_prompts: bool = False
    """Whether each prompt is computed in one step; no prompt is longer than a step then."""
    whole_images: bool = False
    """Whether no step ends within an image; every step has room for one and a token of each other sequence then."""


_USUAL_OUTPUT_TOKENS = 128.0
"""Assumed length of answers before the first end; each ended answer then counts for a 32nd."""


class Scheduler:
    """One token budget per step and no phases: a sequence has one or many tokens to compute.

    Running sequences come first, then waiting ones, both by priority and arrival. A prompt beyond the budget is
    computed in chunks beside decodes. When blocks run out, the last running sequence is preempted: the sequence gives
    all blocks back, waits at the same rank (before sequences that never ran), and computes tokens again later, except
    for own published blocks still in the cache. The first running sequence is never preempted for another and always
    fits the cache: every step makes progress.

    The parts of one request (its prompts, its `n` answers) never hold all slots: another request gets a slot at once
    however many and long the parts are.

    A waiting sequence waits while a running sequence computes its next block or the host's memory loads it: a common
    prefix of many prompts is computed once even when they come together. Sequences behind may pass, but only into slots
    and blocks that the waiting sequence will not need.

    Sources: the unified budget of vLLM's V1 scheduler; chunked prefill of Sarathi-Serve (Agrawal et al., 2024).
    """

    def __init__(
        self,
        blocks: BlockManager,
        limits: SchedulerLimits,
        *,
        eos_token_ids: Collection[int],
        now: Callable[[], float],
        predict_wait: Callable[[], float] = lambda: 0.0,
        is_ready: Callable[[Sequence], bool] = lambda _: True,
        drafting: Drafting | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        """`predict_wait`: seconds until a new request would begin. `is_ready`: whether a sequence has everything
        besides slots, blocks and adapters; others pass. With `drafting` no step is planned while another is under
        way."""
        assert limits.max_num_seqs <= limits.max_num_batched_tokens
        self.blocks = blocks
        self._states = None if blocks.states is None else RecurrentStates(blocks, blocks.states)
        self.coming = ComingBlocks(blocks.block_size, blocks.holds)
        self.limits = limits
        self.counters = Counters()
        self.num_ended = 0
        self.max_num_parts = max(1, limits.max_num_seqs - max(1, limits.max_num_seqs // 8))
        """Slots that one request may hold."""
        # The last token of a full context is never fed back, so it needs no room in the cache.
        self.max_len = min(limits.max_model_len, blocks.num_blocks * blocks.block_size + 1)
        self.ends = SequenceEnds(eos_token_ids, self.max_len)
        self.queue = WaitingQueue(limits.max_num_queued_tokens, self.max_num_parts, predict_wait, now)
        self.waiting = self.queue.sequences
        self.slots = RunningSlots(limits.max_num_seqs, blocks.block_size)
        self.running = self.slots.sequences
        self._sequences: dict[str, Sequence] = {}
        self._parts = ClientParts(self.max_num_parts)
        self._preempted: list[Sequence] = []
        """Sequences preempted since the last commit; results in the next commit are possible."""
        self._share = blocks.num_blocks * blocks.block_size // limits.max_num_seqs
        """Tokens per sequence for which the cache has room, with equal lengths."""
        self.mean_output_tokens = _USUAL_OUTPUT_TOKENS
        """Fading mean over the sequences that ended."""
        self._now = now
        self._is_ready = is_ready
        self.drafting = drafting
        self._adapters = adapters
        self.injections = Injections(self.max_len)
        self.injected: list[tuple[Sequence, Injection]] = []
        """Tokens that `schedule` has put into answers."""
        self._results = StepResults(blocks, self.coming, self.slots, self.counters)

    # -- requests come and go --------------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> RequestRefusal | None:
        """Queues a sequence, or returns why not."""
        refusal = self._cannot_run(sequence)
        if refusal is None:
            sequence.num_parts_before = max(sequence.num_parts_before, self._parts.number_of(sequence))
            self._look_up(sequence)
            refusal = self.queue.refusal(sequence)
        if refusal is None:
            self._sequences[sequence.request_id] = sequence
            self._parts.come(sequence)
            sequence.max_num_tokens = self.ends.max_num_tokens_of(sequence)
            sequence.end_token_ids = self.ends.token_ids_of(sequence.sampling)
            self.coming.expect(sequence)
            self.queue.add(sequence)
            if self._adapters is not None:
                self._adapters.added(sequence)
        return refusal

    def abort(self, request_id: str) -> Sequence | None:
        """Ends a sequence now and frees its blocks; None = it has ended already. A step under way may still write to
        the blocks: later steps run after it."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        sequence.finish_reason = FinishReason.ABORT
        self._remove([sequence])
        return sequence

    def inject(self, request_id: str, injection: Injection) -> None:
        """Puts tokens into an answer at the next possible place: the answer has begun, no step under way computes a
        token for it, and its last token is outside of blocks that must stay whole. Nothing is computed again."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            injection.done("the answer has ended; send it with a new request")
        elif sequence.injectable is None:
            injection.done("nothing can be put into this answer; it was not asked for as injectable")
        else:
            self.injections.add(sequence, injection)

    def rename(self, sequence: Sequence, extra: bytes) -> None:
        """Hashes all blocks of the sequence anew, with `extra` in place of the old value."""
        self.coming.gone(sequence)
        sequence.extra, sequence.block_hashes, sequence.awaited, sequence.kept_end = extra, [], None, 0
        self._look_up(sequence)
        if sequence.slot == NO_SLOT:
            self.coming.expect(sequence)
        else:
            self.coming.begin(sequence, sequence.num_computed_tokens // self.blocks.block_size)

    def reset(self) -> None:
        """Resets the blocks, with an empty prefix cache; only while nothing waits or runs."""
        assert not self._sequences
        self.blocks.reset()
        self.coming.reset()

    def sequences(self) -> Collection[Sequence]:
        """All that wait or run."""
        return self._sequences.values()

    @property
    def num_slots(self) -> int:
        """Sequences of the present mean weight that may run at once."""
        limits, sequences = self.limits, self.sequences()
        if limits.max_batch_weight is None or not sequences:
            return limits.max_num_seqs
        mean_weight = sum(self._weight(sequence) for sequence in sequences) / len(sequences)
        return max(1, min(limits.max_num_seqs, int(limits.max_batch_weight / mean_weight)))

    @property
    def num_held_back(self) -> int:
        """Waiting sequences whose request is at its limit of slots; they block nobody."""
        return self._parts.num_held_back

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens still to be computed except decodes: of waiting sequences and running prompts."""
        return self.queue.num_tokens + self.slots.num_prompt_tokens

    def _cannot_run(self, sequence: Sequence) -> RequestRefusal | None:
        if not sequence.num_tokens:
            return RequestRefusal(FinishReason.ERROR, "the prompt is empty; it needs at least one token")
        if sequence.request_id in self._sequences:
            return RequestRefusal(
                FinishReason.ERROR, f"a request with the id {sequence.request_id!r} is running already"
            )
        if sequence.num_tokens >= self.max_len:
            virtual = f", {sequence.num_virtual_tokens} of them its adapter's" if sequence.num_virtual_tokens else ""
            return RequestRefusal(
                FinishReason.ERROR,
                f"the prompt has {sequence.num_tokens} tokens{virtual}; "
                f"at most {self.max_len - 1} leave room for an output within the context of {self.max_len}",
            )
        return None

    def _look_up(self, sequence: Sequence) -> list[int]:
        """The cached prefix of a waiting sequence; records the prefix expected when it runs."""
        matched = self.blocks.match(sequence)
        num_cached = len(matched) + len(self.blocks.hosted(sequence, len(matched)))
        num_expected = num_cached + self.coming.num_coming(sequence, num_cached)
        sequence.num_expected_cached_tokens = num_expected * self.blocks.block_size
        return matched

    # -- before the step -------------------------------------------------------------------------------------------

    def schedule(self) -> Batch:
        """Plans one step: divides the token budget, and provides all blocks that the step writes. One step may be under
        way: its tokens count as computed and chosen; sequences that surely end with it are left out."""
        num_preemptions = self.counters.num_preemptions
        self.blocks.settle()
        self.injected = self.injections.put_in(self.slots) if self.injections else []
        batch = self._schedule_running()
        if self.waiting and self.counters.num_preemptions == num_preemptions:
            batch.chunks += self._admit_waiting(self.limits.max_num_batched_tokens - batch.num_tokens)
        self.slots.complete([item for item in batch.chunks if item.samples])
        batch.chunks.sort(key=lambda item: item.num_tokens > 1)
        if self.drafting is not None:
            self._add_drafts(batch, self.drafting)
        if self._states is not None:
            self._states.plan(batch)
        self.blocks.host.flush()  # the step will overwrite what was evicted for it
        return batch

    def _schedule_running(self) -> Batch:
        """Plans a token of everyone past the prompt, and prompts with the rest of the budget."""
        slots, grown, chunks = self.slots, self._grow(), []
        budget = self.limits.max_num_batched_tokens - len(slots.decoding.going_on)
        num_behind = len(slots.prefilling)
        for sequence in list(slots.prefilling):
            if sequence.slot == NO_SLOT:  # preempted for one before it
                continue
            num_behind -= 1
            before = sequence.under_way
            num_tokens = sequence.num_uncomputed_tokens if before is None else sequence.num_left_after(before)
            if num_tokens > 1:
                # One token is kept for each sequence behind it, so that a long prompt never stops others.
                num_tokens = min(num_tokens, budget - num_behind)
            start = sequence.num_computed_tokens if before is None else before.end
            num_tokens = self._up_to_image(sequence, start, num_tokens)
            if num_tokens and self._make_room(sequence, start + num_tokens):
                chunks.append(self._plan_chunk(sequence, num_tokens))
                budget -= num_tokens
        return Batch(chunks, slots.decoding.take([sequence for sequence in grown if sequence.slot != NO_SLOT]))

    def _add_drafts(self, batch: Batch, drafting: Drafting) -> None:
        """Adds drafts to decodes as far as budget and blocks are left, without preemption, up to a sequence's end."""
        decodes, drafted, plain = batch.decodes, list[ScheduledSequence](), list[int]()
        budget = self.limits.max_num_batched_tokens - batch.num_tokens
        num_spare = self.blocks.num_free - self.slots.num_reserved_blocks
        columns = (decodes.sequences, decodes.ends.tolist(), decodes.most.tolist())
        for row, (sequence, end, most) in enumerate(zip(*columns, strict=True)):
            num_blocks = len(sequence.block_table)
            room = (num_blocks + max(0, num_spare)) * self.blocks.block_size - end
            drafts = drafting.propose(sequence, min(budget, room, most - 1 - end))
            if not drafts.token_ids:
                plain.append(row)
                continue
            number = len(drafts.token_ids)
            self._extend(sequence, end + number)
            num_spare -= len(sequence.block_table) - num_blocks
            budget -= number
            drafted.append(ScheduledSequence(sequence, 1 + number, drafts=drafts.token_ids, depth=drafts.depth))
        if drafted:
            batch.decodes = decodes.pick(plain)
            first = sum(item.num_tokens == 1 for item in batch.chunks)
            batch.chunks[first:first] = drafted

    def _grow(self) -> list[Sequence]:
        """Adds a block to each sequence whose next token needs one; by rank where blocks are too few."""
        growing = self.slots.decoding.without_room()
        if is_short := len(growing) > self.blocks.num_free:
            growing.sort(key=rank)
        for sequence in growing:
            end = len(sequence.block_table) * self.blocks.block_size + 1
            if not is_short or (sequence.slot != NO_SLOT and self._make_room(sequence, end)):
                self._extend(sequence, end)
        return growing

    def _up_to_image(self, sequence: Sequence, start: int, num_tokens: int) -> int:
        """Of the next tokens, as many as end within no image; 0 = the budget is too small for the image that is next,
        which then waits for a step in which sequences before it take less."""
        if not (self.limits.whole_images and sequence.images):
            return num_tokens
        end = start + num_tokens
        cut = next((image for image in sequence.images if image.start < end < image.end), None)
        return num_tokens if cut is None else max(0, cut.start - start)

    def _make_room(self, sequence: Sequence, end: int) -> bool:
        """Makes blocks for the sequence up to `end` by preempting the last sequences; False if it is the last."""
        while not self.blocks.can_extend(sequence, end):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _plan_chunk(self, sequence: Sequence, num_tokens: int) -> ScheduledSequence:
        item = ScheduledSequence(sequence, num_tokens)
        sequence.under_way = item
        self._extend(sequence, item.end)
        return item

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._leave(sequence)
        self.coming.gone(sequence)
        self.blocks.free(sequence)
        sequence.num_computed_tokens, sequence.under_way, sequence.kept_end = 0, None, 0
        sequence.num_preemptions += 1
        self._preempted.append(sequence)
        self.counters.num_preemptions += 1
        self._look_up(sequence)
        self.coming.expect(sequence)
        self.queue.put_back(sequence)

    def _admit_waiting(self, budget: int) -> list[ScheduledSequence]:
        items: list[ScheduledSequence] = []
        num_slots = self.limits.max_num_seqs - len(self.running)
        num_blocks = self.blocks.num_free - self.slots.num_reserved_blocks
        num_awaiting: Counter[str | None] = Counter()  # parts that will take slots once their prefixes are there
        most = self.limits.max_batch_weight
        weight = math.inf if most is None else most - sum(self._weight(sequence) for sequence in self.running)
        if self._adapters is not None:
            self._adapters.look()
        position = 0
        while position < len(self.waiting) and budget and num_slots:
            sequence = self.waiting[position]
            may_run = self._parts.may_run(sequence, num_awaiting[sequence.part_of])
            adapters, adapter = self._adapters, sequence.adapter
            lacks_adapter = adapters is not None and adapter is not None and not adapters.may_begin(adapter)
            if not may_run or lacks_adapter or not self._is_ready(sequence):
                position += 1
                continue
            if self.limits.whole_prompts and sequence.num_tokens > budget:
                break
            matched = None if self.coming.still_awaited(sequence) else self._look_up(sequence)
            if matched is not None and self.coming.under_way(sequence, len(matched)):
                matched = None
            if matched is None:  # more of its prefix is under way: what it will take once that is there
                num_needed = self.blocks.num_blocks_for(num_awaited_tokens(sequence))
            else:
                num_needed = self.blocks.num_needed(sequence, matched)
            if num_needed > num_blocks:
                break
            if most is not None:
                if self._weight(sequence) > weight and weight < most:  # who is alone runs, however long
                    break
                weight -= self._weight(sequence)
            num_slots -= 1
            num_blocks -= num_needed + 1  # as `num_reserved_blocks` would count
            if matched is not None:
                matched = self.blocks.fetched(sequence, matched)
            if matched is None:
                num_awaiting[sequence.part_of] += 1
                position += 1
                continue
            num_cached = len(matched) * self.blocks.block_size
            num_tokens = self._up_to_image(sequence, num_cached, min(sequence.num_tokens - num_cached, budget))
            if not num_tokens:
                break
            del self.waiting[position]
            self._admit(sequence, matched)
            items.append(self._plan_chunk(sequence, num_tokens))
            budget -= items[-1].num_tokens
        return items

    def _weight(self, sequence: Sequence) -> float:
        """Expected final tokens of a sequence: its prompt and its output limit, or the mean output without a limit."""
        num_output_tokens = sequence.sampling.max_tokens
        expected = sequence.num_prompt_tokens + (num_output_tokens or self.mean_output_tokens)
        return max(sequence.num_tokens, min(expected, sequence.max_num_tokens))

    def _admit(self, sequence: Sequence, matched: list[int]) -> None:
        self.slots.begin(sequence)
        self._parts.begin(sequence)
        if self._adapters is not None and sequence.adapter is not None:
            self._adapters.begin(sequence.adapter)
        if self._states is not None:
            self._states.begin(sequence, len(matched))
        self.blocks.share(sequence, matched)
        self.coming.begin(sequence, len(matched))
        self.slots.computed(sequence, len(matched) * self.blocks.block_size)
        if sequence.first_scheduled_time is None:
            sequence.first_scheduled_time = self._now()
            sequence.num_cached_tokens = max(0, sequence.num_computed_tokens - sequence.num_virtual_tokens)
            self.counters.prefix_query_tokens += sequence.num_prompt_tokens
            self.counters.prefix_hit_tokens += sequence.num_cached_tokens

    def _extend(self, sequence: Sequence, end: int) -> None:
        """Adds blocks for the sequence's tokens up to `end`; expected growth: at most a share of the cache."""
        self.blocks.extend(sequence, end, max(sequence.num_tokens, min(sequence.max_num_tokens, self._share)))
        self.slots.decoding.grew(sequence)

    # -- after the step --------------------------------------------------------------------------------------------

    def commit(self, batch: Batch, sampled: list[SampledToken | None]) -> list[Sequence]:
        """Takes a step's results (`StepResults.write`), and frees ended sequences. `sampled` has one entry per item: a
        token exactly where the item `samples`. Returns the sequences that ended."""
        finished = self._results.write(batch, sampled, self._preempted)
        if self._states is not None:
            self._states.keep(batch)
        if self.drafting is not None:
            self.drafting.observe(len(batch.decodes), [item for item in batch.chunks if item.drafts])
        self._preempted.clear()
        self._remove(finished)
        return finished

    def _remove(self, ended: list[Sequence]) -> None:
        """Forgets ended sequences, and frees their blocks."""
        if not ended:
            return
        self.num_ended += len(ended)
        for sequence in ended:
            if sequence.num_output_tokens:
                self.mean_output_tokens += (sequence.num_output_tokens - self.mean_output_tokens) / 32
            self.coming.gone(sequence)
            if sequence.slot == NO_SLOT:
                self.queue.remove(sequence)
            self._leave(sequence)
            self.blocks.free(sequence)
            del self._sequences[sequence.request_id]
            self._parts.ended(sequence)
            if self._adapters is not None:
                self._adapters.ended(sequence)
        if self.drafting is not None:
            self.drafting.forget(ended)
        if self.injections:
            self.injections.forget(ended)
        self.running[:] = [sequence for sequence in self.running if sequence.finish_reason is None]

    def _leave(self, sequence: Sequence) -> None:
        if sequence.slot == NO_SLOT:
            return
        self._parts.leave(sequence)
        if self._adapters is not None and sequence.adapter is not None:
            self._adapters.end(sequence.adapter)
        self.slots.leave(sequence)

    def check(self) -> None:
        """Raises AssertionError for a block or slot that is leaked, wrongly shared or wrongly counted."""
        self.blocks.check(self.sequences())
        self.coming.check(self.sequences())
        self.slots.check()
        assert all(sequence.slot == NO_SLOT for sequence in self.waiting), "who waits has a slot"
        self._parts.check(self.sequences(), self.running)
        if self._adapters is not None:
            self._adapters.check(self.running, self.sequences())
