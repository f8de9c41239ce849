"""FakeCore: slots, queue, cache and steps of a fake engine, without tensors: a step sleeps for what it would cost."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from fairlead.routing.load import StepCost
from fairlead.routing.replica import Limits
from fairlead_protocol.blocks import BlockHash, hash_blocks, num_cacheable_blocks
from fairlead_testing.fake_engine.blocks_stream import BlocksStream
from fairlead_testing.fake_engine.cache import FakeCache


@dataclass(slots=True, eq=False)
class FakeSequence:
    """One request in the engine. What it generates is not cached, and not counted as blocks."""

    num_prompt_tokens: int
    max_tokens: int
    """How many tokens it will generate."""
    hashes: list[BlockHash]
    """Of the whole blocks of its prompt."""
    num_cacheable: int
    """So many of them may be taken from the cache."""
    num_computed: int = 0
    """Tokens in the cache, generated ones too."""
    num_cached_tokens: int = 0
    num_published: int = 0
    """Leading blocks that it uses under their hashes."""
    num_unnamed: int = 0
    """Blocks that it uses beside them."""
    num_ready: float = 0
    """Tokens that may be sent; infinite where steps cost nothing."""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def num_uncomputed(self) -> int:
        """Prompt tokens that are still to be computed."""
        return max(0, self.num_prompt_tokens - self.num_computed)

    async def until_ready(self, index: int) -> None:
        """Until token `index` has been generated."""
        while self.num_ready <= index:
            self.news.clear()
            await self.news.wait()

    def ready(self, num_tokens: float) -> None:
        self.num_ready = num_tokens
        self.news.set()


class FakeCore:
    """Sequences wait, run and go. With a step cost, `run` computes them step by step: decodes of all that run, and
    prefill in chunks within the token budget. Without one they are computed at once, and run until they are removed.

    A waiting prompt whose next block is being computed by a running one waits for it, as in a real engine.
    """

    def __init__(self, limits: Limits, *, num_blocks: int, token_budget: int, step_cost: StepCost | None) -> None:
        self.limits = limits
        self.token_budget = token_budget
        self.step_cost = step_cost
        self.cache = FakeCache(num_blocks, limits.block_size)
        self.stream = BlocksStream(self.cache)
        self.waiting: list[FakeSequence] = []
        self.running: list[FakeSequence] = []
        self.num_steps = 0
        self.step_started: float | None = None
        """By the loop's clock; None while no step runs."""
        self.gate = asyncio.Event()
        """While cleared, steps hang."""
        self.gate.set()
        self._work = asyncio.Event()

    def sequence(self, token_ids: Sequence[int], max_tokens: int) -> FakeSequence:
        """A sequence for this prompt."""
        size = self.limits.block_size
        hashes = hash_blocks(token_ids, size)
        return FakeSequence(len(token_ids), max_tokens, hashes, num_cacheable_blocks(len(token_ids), size))

    def refuses(self, sequence: FakeSequence) -> bool:
        """Whether the queue is too full for it. An empty queue takes any one, unless nothing may wait at all."""
        if not self.waiting and self._fits(sequence, self._match(sequence)):
            return False
        limit = self.limits.max_num_queued_tokens
        return not limit or bool(self.waiting and self.num_queued_tokens + sequence.num_prompt_tokens > limit)

    @property
    def num_queued_tokens(self) -> int:
        """Prompt tokens that wait."""
        return sum(sequence.num_prompt_tokens for sequence in self.waiting)

    def add(self, sequence: FakeSequence) -> None:
        """Queues it; admits it where there is room."""
        self.waiting.append(sequence)
        self._work.set()
        if self.step_cost is None:
            self._compute_at_once()

    def remove(self, sequence: FakeSequence) -> None:
        """It has ended, or its client has left. Does nothing for one that is gone."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        elif sequence in self.running:
            self.running.remove(sequence)
            self.cache.free(sequence.hashes[: sequence.num_published], sequence.num_unnamed)
        if self.step_cost is None:
            self._compute_at_once()

    def restart(self) -> None:
        """As after a crash: nothing runs, and the cache is empty."""
        self.waiting, self.running = [], []
        self.cache = FakeCache(self.cache.num_blocks, self.cache.block_size)
        self.stream.restart(self.cache)

    async def run(self) -> None:
        """Step after step while there is work; for engines whose steps cost something. Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            if not self.waiting and not self.running:
                self._work.clear()
                await self._work.wait()
            self.step_started = loop.time()
            await self.gate.wait()
            work = self._schedule()
            await asyncio.sleep(self._seconds(work))
            self._commit(work)
            self.step_started = None

    # -- steps -----------------------------------------------------------------------------------------------------

    def _schedule(self) -> list[tuple[FakeSequence, int]]:
        """What the next step computes: sequences and how many tokens of each."""
        work: list[tuple[FakeSequence, int]] = []
        budget = self.token_budget - sum(1 for sequence in self.running if not sequence.num_uncomputed)
        for sequence in self.running:
            num_tokens = min(sequence.num_uncomputed, max(0, budget)) if sequence.num_uncomputed else 1
            budget -= num_tokens if sequence.num_uncomputed else 0
            work.append((sequence, num_tokens))
        under_way = self._under_way()
        for sequence in list(self.waiting):
            if budget <= 0:
                break
            matched = self._match(sequence)
            if matched < sequence.num_cacheable and sequence.hashes[matched] in under_way:
                continue
            if not self._fits(sequence, matched):
                break
            self._admit(sequence, matched)
            work.append((sequence, min(sequence.num_uncomputed, budget)))
            budget -= work[-1][1]
            under_way.update(sequence.hashes[matched:])
        return [(sequence, num_tokens) for sequence, num_tokens in work if num_tokens > 0]

    def _seconds(self, work: list[tuple[FakeSequence, int]]) -> float:
        """`StepCost`'s formula. A prompt's last single token counts as a decode, as in the engine's own fit."""
        cost = self.step_cost
        if cost is None:
            return 0.0
        seconds = cost.base
        for sequence, num_tokens in work:
            start = sequence.num_computed
            if num_tokens == 1:
                seconds += cost.decode_seq + cost.kv_token * (start + 1)
            else:
                context = num_tokens * (2 * start + num_tokens - 1) / 2
                seconds += cost.prefill_token * num_tokens + cost.prefill_context * context
        return seconds

    def _commit(self, work: list[tuple[FakeSequence, int]]) -> None:
        """The step is over: its blocks can be found, and who is past its prompt has one more token."""
        self.num_steps += 1
        running = set(self.running)
        for sequence, num_tokens in work:
            if sequence in running:
                self._advance(sequence, num_tokens)
        self.stream.flush()

    def _advance(self, sequence: FakeSequence, num_tokens: int) -> None:
        sequence.num_computed += num_tokens
        self._publish(sequence)
        if not sequence.num_uncomputed:
            sequence.ready(sequence.num_ready + 1)
            if sequence.num_ready >= sequence.max_tokens:
                self.remove(sequence)

    def _compute_at_once(self) -> None:
        """Admits whoever fits, and computes its prompt in no time."""
        while self.waiting and self._fits(self.waiting[0], matched := self._match(self.waiting[0])):
            sequence = self.waiting[0]
            self._admit(sequence, matched)
            sequence.num_computed = sequence.num_prompt_tokens
            self._publish(sequence)
            sequence.ready(math.inf)
        self.stream.flush()

    # -- cache -----------------------------------------------------------------------------------------------------

    def _match(self, sequence: FakeSequence) -> int:
        return self.cache.match(sequence.hashes[: sequence.num_cacheable])

    def _under_way(self) -> set[BlockHash]:
        """Blocks that running prompts are going to publish."""
        return {
            each for sequence in self.running if sequence.num_uncomputed
            for each in sequence.hashes[sequence.num_published :]
        }  # fmt: skip

    def _fits(self, sequence: FakeSequence, matched: int) -> bool:
        """Whether there is a slot, and blocks for the whole prompt; alone it always fits."""
        if not self.running:
            return True
        needed = self._num_blocks(sequence) - matched
        return len(self.running) < self.limits.max_num_seqs and needed <= self.cache.num_free - matched

    def _num_blocks(self, sequence: FakeSequence) -> int:
        return min(-(-sequence.num_prompt_tokens // self.limits.block_size), self.cache.num_blocks)

    def _admit(self, sequence: FakeSequence, matched: int) -> None:
        self.waiting.remove(sequence)
        self.running.append(sequence)
        self.cache.share(sequence.hashes[:matched])
        sequence.num_published = matched
        sequence.num_unnamed = self._num_blocks(sequence) - matched
        self.cache.take(sequence.num_unnamed)
        sequence.num_computed = sequence.num_cached_tokens = matched * self.limits.block_size

    def _publish(self, sequence: FakeSequence) -> None:
        """Names the blocks of its prompt that are whole now."""
        end = min(sequence.num_computed // self.limits.block_size, len(sequence.hashes))
        while sequence.num_published < end and sequence.num_unnamed:
            index = sequence.num_published
            self.cache.publish(sequence.hashes[index - 1] if index else None, sequence.hashes[index])
            sequence.num_published += 1
            sequence.num_unnamed -= 1
