"""SGLang's server behind the door: what it says of itself, its one model, its metrics, its KV events."""

from collections.abc import AsyncIterator

import msgspec

from fairlead_engine.front.event_subscription import EventSubscription
from fairlead_engine.front.foreign_engine import BlockEvent, ForeignModel, Gauges, NotServing
from fairlead_engine.front.model_cards import ModelCards
from fairlead_engine.front.prometheus_lines import total, values
from fairlead_engine.front.server_questions import ServerQuestions
from fairlead_protocol.http.origin import Origin

_ROOM, _WAITING, _USAGE = "sglang:max_total_num_tokens", "sglang:num_queue_reqs", "sglang:token_usage"
_TOKENS = ("sglang:realtime_tokens_total", "sglang:prompt_tokens_total", "sglang:generation_tokens_total")
"""The first grows with every step, the others when requests end."""
_MOST_TOKENS = 2**40
"""In a cache, and of anything that is counted."""


class _Information(msgspec.Struct):
    version: str
    page_size: int
    max_total_num_tokens: int


class SglangServer:
    """A `ForeignEngine`."""

    name = "SGLang"
    keeps_connections = True

    def __init__(self, origin: Origin, served_name: str, events: str | None, replay: str | None) -> None:
        """`events`, `replay`: where it publishes its KV events, and where it tells them again; None = it does not."""
        self._served_name = served_name
        self._questions = ServerQuestions(origin, self.name)
        self.tells_blocks = events is not None
        self._subscription = EventSubscription(events or "", replay)

    async def describe(self) -> ForeignModel:
        """It answers before it has warmed up: until then `/health` says that it does not serve."""
        await self._questions.health()
        said = await self._questions.document("/server_info", _Information)
        length = (await self._questions.document("/v1/models", ModelCards)).length_of(self._served_name)
        read_gauges(await self._questions.metrics())
        if not 0 < said.page_size <= said.max_total_num_tokens <= _MOST_TOKENS:
            raise NotServing(f"it says pages of {said.page_size} tokens, and room for {said.max_total_num_tokens}")
        return ForeignModel(
            version=said.version,
            max_model_len=length,
            block_size=said.page_size,
            num_kv_blocks=said.max_total_num_tokens // said.page_size,
        )

    async def gauges(self) -> Gauges:
        return read_gauges(await self._questions.metrics())

    def block_events(self) -> AsyncIterator[BlockEvent]:
        return self._subscription.events()


def read_gauges(text: str) -> Gauges:
    """Of `/metrics`. How many wait is told once for all and once more for each priority; before the first step it is
    not told. Raises NotServing."""
    if not values(text, _ROOM):
        raise NotServing(f"its metrics have no {_ROOM}: it needs --enable-metrics")
    return Gauges(
        waiting=round(min(_MOST_TOKENS, max([0.0, *values(text, _WAITING)]))),
        kv_usage_ratio=min(1.0, max([0.0, *values(text, _USAGE)])),
        num_tokens=total(text, *_TOKENS),
    )
