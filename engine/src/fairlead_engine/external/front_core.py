"""The server behind the front in the role of an engine's core: load, blocks and health. Watches the server as long as
the front runs; followers of the front hear from `EngineStream`."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fairlead_common.wire.blocks import BlockHash
from fairlead_common.wire.messages import StepCost
from fairlead_engine.core.messages import BlocksChanged
from fairlead_engine.errors import QueueFull
from fairlead_engine.external.foreign_blocks import ForeignBlocks, SequencePlace
from fairlead_engine.external.foreign_engine import BlockEvent, Cleared, ForeignEngine, ForeignModel, NotServing
from fairlead_engine.external.front_config import FrontConfig
from fairlead_engine.external.passing_requests import PassingRequest, PassingRequests
from fairlead_engine.types import EngineLoad

log = logging.getLogger(__name__)

BUSY_SECONDS = 0.25
"""Between two looks at the metrics of a busy server: each costs the server a millisecond or two."""
IDLE_SECONDS = 1.0
START_SECONDS = 0.2
"""Between two looks whether the server serves."""
NUM_TROUBLES = 3
"""Failed looks in a row before the server counts as gone."""
_STALE_SECONDS = 2.0
"""While requests run, a longer silence means a long step."""


class FrontCore:
    """The front's knowledge of the server."""

    def __init__(self, engine: ForeignEngine, config: FrontConfig, now: Callable[[], float]) -> None:
        self.engine = engine
        self.model: ForeignModel | None = None
        """None while the server does not serve."""
        self.trouble = "it has not answered yet"
        """Why the server does not serve."""
        self.requests = PassingRequests(config.max_num_batched_tokens)
        self.on_change: Callable[[BlocksChanged | None, int], None] = lambda changed, num_commands: None
        """As `StepListener.stepped`."""
        self.num_reports = 0
        """As an `EngineClient`'s; with one client never compared."""
        self.alive = True
        self.num_commands = 0
        self._config = config
        self._now = now
        self._blocks: ForeignBlocks | None = None
        """None also for a server without prefix caching."""
        self._places: dict[PassingRequest, list[SequencePlace | None]] = {}
        """Places of each request's prompts, for servers with places."""
        self._usage = 0.0
        self._num_tokens = 0.0
        self._moved_at = now()
        """When the server's counters grew last."""

    async def serving(self) -> ForeignModel:
        """Waits until the server describes the model."""
        while True:
            try:
                model = await self.engine.describe()
            except NotServing as error:
                self.trouble = str(error)
                await asyncio.sleep(START_SECONDS)
            else:
                break
        self.model = model
        if self._blocks is None and self._config.enable_prefix_caching:
            self._blocks = ForeignBlocks(model.block_size, model.num_kv_blocks, model.num_places)
        return model

    async def watch(self) -> None:
        """Reads the metrics repeatedly; after the server is gone, waits until the server is back."""
        num_troubles = 0
        while True:
            try:
                gauges = await self.engine.gauges()
            except NotServing as error:
                num_troubles += 1
                if num_troubles >= NUM_TROUBLES:
                    log.warning("the server is gone", extra={"engine": self.engine.name, "error": str(error)})
                    self.model, self.trouble, self._num_tokens = None, str(error), 0.0
                    self._lose_blocks()
                    await self.serving()
                    log.info("the server serves again", extra={"engine": self.engine.name})
                    num_troubles = 0
            else:
                num_troubles = 0
                if gauges.num_tokens < self._num_tokens:  # a restart between two looks
                    self._lose_blocks()
                self._usage = gauges.kv_usage_ratio
                self.requests.looked(gauges.waiting)
                if gauges.num_tokens != self._num_tokens:
                    self._num_tokens, self._moved_at = gauges.num_tokens, self._now()
                self.on_change(None, self.num_commands)
            await asyncio.sleep(BUSY_SECONDS if self.requests.num_seqs else IDLE_SECONDS)

    async def follow_blocks(self) -> None:
        """Follows the server's block events, if any."""
        if self.engine.tells_blocks:
            async for event in self.engine.block_events():
                self._apply(event)

    def _apply(self, event: BlockEvent) -> None:
        if isinstance(event, Cleared):  # after a restart the counters begin at 0, too
            self._num_tokens = 0.0
        if self._blocks is not None:
            self._pass_on(self._blocks.told([event]))

    def _lose_blocks(self) -> None:
        if self._blocks is not None:
            self._pass_on(self._blocks.lost())

    def _pass_on(self, changed: BlocksChanged | None) -> None:
        if changed is not None:
            self.on_change(changed, self.num_commands)

    @contextmanager
    def passing(
        self, chains: Sequence[Sequence[BlockHash]], num_prompt_tokens: int, *, num_seqs: int, is_streamed: bool
    ) -> Iterator[PassingRequest]:
        """Context of a request at the server. `chains`: the known blocks of the prompts. Raises QueueFull where too
        many prompt tokens wait already."""
        size = self.model.block_size if self.model is not None else 0
        held = sum(self._blocks.num_held(chain) for chain in chains) * size if self._blocks is not None else 0
        num_uncached = max(1, num_prompt_tokens - held)
        queued = self.requests.queued_tokens
        if queued and queued + num_uncached > self._config.queued_tokens:
            raise QueueFull
        request = self.requests.begin(
            num_prompt_tokens, num_uncached, num_seqs=num_seqs, is_streamed=is_streamed, now=self._now()
        )
        self.num_commands += 1
        blocks = self._blocks
        self._places[request] = [None if blocks is None else self._place(blocks, chain) for chain in chains]
        try:
            yield request
        finally:
            self.requests.end(request)
            for place in self._places.pop(request):
                if self._blocks is not None:
                    self._pass_on(self._blocks.ends(place))
            self.on_change(None, self.num_commands)

    def came(self, request: PassingRequest, chains: Sequence[Sequence[BlockHash]], num_tokens: int) -> None:
        is_first = not request.is_computed
        self.requests.came(request, num_tokens, self._now())
        if is_first and self._blocks is not None:
            places = self._places[request]
            for index, chain in enumerate(chains):
                places[index] = places[index] or self._place(self._blocks, chain)  # the request may have waited
                self._pass_on(self._blocks.computed(chain, places[index]))

    def _place(self, blocks: ForeignBlocks, chain: Sequence[BlockHash]) -> SequencePlace | None:
        place, changed = blocks.begins(chain)
        self._pass_on(changed)
        return place

    @property
    def is_exact(self) -> bool:
        """Whether the blocks are known exactly."""
        return self._blocks is not None and self._blocks.is_exact

    @property
    def load(self) -> EngineLoad:
        book, model = self.requests, self.model
        num_blocks = 0 if model is None else model.num_kv_blocks
        return EngineLoad(
            waiting=book.waiting,
            running=book.running,
            queued_prefill_tokens=book.queued_tokens,
            kv_blocks_free=round(num_blocks * (1.0 - self._usage)),
            kv_blocks_total=num_blocks,
            kv_tokens=book.kv_tokens,
            token_budget=self._config.max_num_batched_tokens,
            max_num_seqs=self._config.max_num_seqs,
            step_cost=StepCost(**book.cost.coefficients),
        )

    @property
    def step_age_seconds(self) -> float:
        """How long the server has been silent with requests: a hanging step shows here."""
        if not self.requests.num_seqs:
            return 0.0
        age = self._now() - max(self.requests.last_token_at, self._moved_at)
        return age if age > _STALE_SECONDS else 0.0
