"""vLLM behind the door: its version, its one model, its metrics, its KV events."""

from collections.abc import AsyncIterator

import msgspec

from fairlead_engine.front.event_subscription import EventSubscription
from fairlead_engine.front.foreign_engine import BlockEvent, ForeignModel, Gauges
from fairlead_engine.front.model_cards import ModelCards
from fairlead_engine.front.server_questions import ServerQuestions
from fairlead_engine.front.vllm_metrics import read_cache, read_gauges
from fairlead_protocol.http.origin import Origin


class _Version(msgspec.Struct):
    version: str


class VllmServer:
    """A `ForeignEngine`."""

    name = "vLLM"
    keeps_connections = True

    def __init__(self, origin: Origin, served_name: str, events: str | None, replay: str | None) -> None:
        """`events`, `replay`: where it publishes its KV events, and where it tells them again; None = it does not."""
        self._served_name = served_name
        self._questions = ServerQuestions(origin, self.name)
        self.tells_blocks = events is not None
        self._subscription = EventSubscription(events or "", replay)

    async def describe(self) -> ForeignModel:
        version = (await self._questions.document("/version", _Version)).version
        length = (await self._questions.document("/v1/models", ModelCards)).length_of(self._served_name)
        block_size, num_blocks = read_cache(await self._questions.metrics())
        return ForeignModel(version=version, max_model_len=length, block_size=block_size, num_kv_blocks=num_blocks)

    async def gauges(self) -> Gauges:
        return read_gauges(await self._questions.metrics())

    def block_events(self) -> AsyncIterator[BlockEvent]:
        return self._subscription.events()
