"""vLLM behind the door: its version, its one model, its metrics, its KV events."""

from collections.abc import AsyncIterator

import msgspec

from fairlead_engine.front.event_subscription import EventSubscription
from fairlead_engine.front.foreign_engine import BlockEvent, ForeignModel, Gauges, NotServing
from fairlead_engine.front.vllm_metrics import read_cache, read_gauges
from fairlead_protocol.http.client import HttpClient, TimeLimits
from fairlead_protocol.http.client_connection import TransportError, cause_of
from fairlead_protocol.http.origin import Origin

_SECONDS = 5.0
_LIMITS = TimeLimits(connect=_SECONDS, first_byte=_SECONDS, silence=_SECONDS, whole=_SECONDS)
_MAX_BYTES = 16 * 2**20


class _Version(msgspec.Struct):
    version: str


class _Card(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Cards(msgspec.Struct):
    data: list[_Card]


class VllmServer:
    """A `ForeignEngine`."""

    name = "vLLM"

    def __init__(self, origin: Origin, served_name: str, events: str | None, replay: str | None) -> None:
        """`events`, `replay`: where it publishes its KV events, and where it tells them again; None = it does not."""
        self._origin = origin
        self._served_name = served_name
        self._http = HttpClient(max_idle=1)
        self.tells_blocks = events is not None
        self._subscription = EventSubscription(events or "", replay)

    async def describe(self) -> ForeignModel:
        try:
            version = msgspec.json.decode(await self._get("/version"), type=_Version).version
            cards = msgspec.json.decode(await self._get("/v1/models"), type=_Cards).data
        except msgspec.DecodeError as error:
            raise NotServing(f"it answers other than vLLM does: {error}") from error
        lengths = [card.max_model_len for card in cards if card.id == self._served_name and card.max_model_len]
        if not lengths:
            names = ", ".join(card.id for card in cards)
            raise NotServing(f"it serves no model {self._served_name!r}, but {names or 'none'}")
        block_size, num_blocks = read_cache(await self._metrics())
        return ForeignModel(version=version, max_model_len=lengths[0], block_size=block_size, num_kv_blocks=num_blocks)

    async def gauges(self) -> Gauges:
        return read_gauges(await self._metrics())

    def block_events(self) -> AsyncIterator[BlockEvent]:
        return self._subscription.events()

    async def _metrics(self) -> str:
        return (await self._get("/metrics")).decode(errors="replace")

    async def _get(self, path: str) -> bytes:
        """Raises NotServing."""
        try:
            async with self._http.request(self._origin, "GET", path, _LIMITS) as response:
                if response.status != 200:
                    raise NotServing(f"{path} answers HTTP {response.status}")
                return await response.read(_MAX_BYTES)
        except (TransportError, TimeoutError) as error:
            raise NotServing(f"{path}: {cause_of(error)}") from error
