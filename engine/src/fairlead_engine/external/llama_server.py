"""llama.cpp's server: properties, model, metrics. The server reports no changes of the cache, which consists of slots,
each with the sequence computed there last."""

from collections.abc import AsyncIterator

import msgspec

from fairlead_engine.external.foreign_engine import MOST_TOKENS, BlockEvent, ForeignModel, Gauges, NotServing
from fairlead_engine.external.front_config import FrontConfig
from fairlead_engine.external.server_questions import Busy, ServerQuestions, total, values

_WAITING, _RUNNING = "llamacpp:requests_deferred", "llamacpp:requests_processing"
_TOKENS = ("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total")
_MOST_SLOTS = 2**16


class _Slot(msgspec.Struct):
    n_ctx: int


class _Properties(msgspec.Struct):
    default_generation_settings: _Slot
    total_slots: int
    build_info: str = "of an unknown version"


class _LlamaModel(msgspec.Struct):
    id: str
    aliases: list[str] = []


class _LlamaModels(msgspec.Struct):
    data: list[_LlamaModel]


class LlamaServer:
    """A `ForeignEngine`."""

    name = "llama.cpp"
    tells_blocks = False
    keeps_connections = False

    def __init__(self, config: FrontConfig) -> None:
        self._served_name = config.name
        self._block_size = config.block_size
        self._questions = ServerQuestions(config.origin, self.name)
        self._num_slots = 1
        self._last: Gauges | None = None

    async def describe(self) -> ForeignModel:
        properties = await self._questions.document("/props", _Properties)
        names = [
            name
            for card in (await self._questions.document("/v1/models", _LlamaModels)).data
            for name in (card.id, *card.aliases)
        ]
        if self._served_name not in names:
            raise NotServing(f"it serves no model {self._served_name!r}, but {', '.join(names) or 'none'}")
        read_gauges(await self._questions.metrics(), 1)
        length, self._num_slots = properties.default_generation_settings.n_ctx, properties.total_slots
        if not 1 <= length <= MOST_TOKENS or not 1 <= self._num_slots <= _MOST_SLOTS:
            raise NotServing(f"it says {self._num_slots} slots of {length} tokens")
        return ForeignModel(
            version=properties.build_info,
            max_model_len=length,
            block_size=self._block_size,
            num_kv_blocks=max(1, length // self._block_size) * self._num_slots,
            num_places=self._num_slots,
        )

    async def gauges(self) -> Gauges:
        """The server answers between steps, which may take long on CPUs; meanwhile the last answer counts."""
        try:
            self._last = read_gauges(await self._questions.metrics(), self._num_slots)
        except Busy:
            if self._last is None or not await self._questions.is_well():
                raise
        return self._last

    async def block_events(self) -> AsyncIterator[BlockEvent]:
        nothing: tuple[BlockEvent, ...] = ()
        for event in nothing:
            yield event


def read_gauges(text: str, num_slots: int) -> Gauges:
    """Gauges in `/metrics`. A busy slot counts with the slot's whole share of the cache. Raises NotServing."""
    waiting, running = values(text, _WAITING), values(text, _RUNNING)
    if not waiting or not running:
        raise NotServing(f"its metrics have no {_WAITING} or no {_RUNNING}: it needs --metrics")
    return Gauges.told(
        waiting=sum(waiting),
        kv_usage_ratio=sum(running) / num_slots,
        num_tokens=total(text, *_TOKENS),
    )
