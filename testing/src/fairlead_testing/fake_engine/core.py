"""FakeCore: the engine model driven by the event loop's clock. A step sleeps for what it would cost."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from fairlead.routing.replica import Limits
from fairlead.simulator.counted_blocks import CountedBlocks
from fairlead.simulator.engine_model import EngineModel, ModelSequence
from fairlead.simulator.loaded_adapters import LoadedAdapters
from fairlead_common.wire.blocks import NO_EXTRA, hash_blocks, num_cacheable_blocks
from fairlead_common.wire.messages import StepCost
from fairlead_testing.fake_engine.blocks_stream import BlocksStream


@dataclass(slots=True, eq=False, kw_only=True)
class FakeSequence(ModelSequence):
    """One request, whose answer can be waited for."""

    num_ready: float = 0
    """Tokens that may be sent; infinite where steps cost nothing."""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def until_ready(self, index: int) -> None:
        """Until token `index` has been generated."""
        while self.num_ready <= index:
            self.news.clear()
            await self.news.wait()

    def ready(self, num_tokens: float) -> None:
        self.num_ready = num_tokens
        self.news.set()


class FakeCore(EngineModel):
    """With a step cost, `run` computes step by step. Without one, prompts are computed at once, and their sequences run
    until they are removed."""

    def __init__(
        self,
        limits: Limits,
        *,
        num_blocks: int,
        token_budget: int,
        step_cost: StepCost | None,
        adapters: LoadedAdapters | None = None,
    ) -> None:
        super().__init__(
            limits,
            num_blocks=num_blocks,
            token_budget=token_budget,
            step_cost=step_cost or StepCost(),
            adapters=adapters,
        )
        self.stream = BlocksStream(self.cache)
        self.step_started: float | None = None
        """By the loop's clock; None while no step runs."""
        self.spent_seconds = 0.0
        """What all steps cost that have ended: its time, however busy the machine is."""
        self.gate = asyncio.Event()
        """While cleared, steps hang."""
        self.gate.set()
        self._work = asyncio.Event()

    def sequence(
        self, token_ids: Sequence[int], max_tokens: int, extra: bytes = NO_EXTRA, adapter: str | None = None
    ) -> FakeSequence:
        """A sequence for this prompt; `extra` goes into its blocks' hashes."""
        size = self.limits.block_size
        return FakeSequence(
            num_prompt_tokens=len(token_ids),
            max_tokens=max_tokens,
            hashes=hash_blocks(token_ids, size, extra=extra),
            num_cacheable=num_cacheable_blocks(len(token_ids), size),
            adapter=adapter,
        )

    def refuses(self, sequence: ModelSequence) -> bool:
        """Whether the queue is too full. An empty queue takes any prompt, unless the limit is 0."""
        if not self.waiting and self._fits(sequence, self._match(sequence)):
            return False
        limit = self.limits.max_num_queued_tokens
        queued = sum(each.num_prompt_tokens for each in self.waiting)
        return not limit or bool(self.waiting and queued + sequence.num_prompt_tokens > limit)

    def add(self, sequence: ModelSequence) -> None:
        """Queues it; admits it where there is room."""
        super().add(sequence)
        self._work.set()
        self._compute_what_costs_nothing()

    def remove(self, sequence: ModelSequence) -> None:
        """It has ended, or its client has left."""
        super().remove(sequence)
        self._compute_what_costs_nothing()

    def restart(self) -> None:
        """As after a crash: nothing runs, and the cache is empty."""
        self.waiting.clear()
        self.running, self.step = [], None
        self.cache = CountedBlocks(self.cache.num_blocks, self.cache.block_size)
        self.stream.restart(self.cache)

    async def run(self) -> None:
        """Step after step while there is work; for engines whose steps cost something. Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            if not self.num_requests:
                self._work.clear()
                await self._work.wait()
            self.step_started = loop.time()
            await self.gate.wait()
            step = self.begin_step()
            await asyncio.sleep(step.seconds if step is not None else 0.0)
            if self.step is not None:
                self.spent_seconds += self.step.seconds
                for sequence in self.end_step().answered:
                    assert isinstance(sequence, FakeSequence)
                    sequence.ready(sequence.num_generated)
            self.stream.flush()
            self.step_started = None

    def _compute_what_costs_nothing(self) -> None:
        if self.step_cost.is_known:
            return
        while self.waiting and self._fits(sequence := self.waiting[0], matched := self._match(sequence)):
            assert isinstance(sequence, FakeSequence)
            self._admit(sequence, matched)
            sequence.num_computed = sequence.num_prompt_tokens
            self._publish(sequence)
            sequence.ready(math.inf)
        self.stream.flush()
