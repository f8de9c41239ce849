"""`GET /fairlead/v1/kv/blocks` and `GET /fairlead/v1/kv/events`: list the blocks, then watch them and the load."""

from collections.abc import AsyncIterator
from typing import Protocol
from urllib.parse import parse_qs

from starlette.responses import Response

from fairlead_engine.errors import Draining, EngineDead, RequestError
from fairlead_engine.server.engine_stream import EngineStream
from fairlead_engine.server.exchange import ClientDisconnected, Exchange
from fairlead_engine.server.followers import Follower
from fairlead_engine.server.kv_mirror import NotInRing
from fairlead_engine.server.openapi import NDJSON
from fairlead_engine.server.refusals import Gone
from fairlead_engine.server.struct_response import StructResponse


class Living(Protocol):
    """A core."""

    @property
    def alive(self) -> bool: ...


class Streaming(Protocol):
    """An engine that is followed."""

    @property
    def stream(self) -> EngineStream: ...

    @property
    def client(self) -> Living: ...

    def model(self) -> object:
        """Raises `NotReady` or `Draining` while there is none."""
        ...


class KVEndpoints:
    """The list and the watch of a follower. Neither counts as a running request, so neither keeps a drain waiting."""

    def __init__(self, service: Streaming) -> None:
        self._service = service

    async def kv_blocks(self) -> Response:
        """Every reusable block, and the point in the stream of changes from which to watch."""
        return StructResponse(self._stream().mirror.blocks())

    async def kv_events(self, exchange: Exchange) -> None:
        """Changes of the blocks since `epoch` and `seq` as they happen, and the load; it ends when the server stops."""
        stream = self._stream()
        query = parse_qs(exchange.scope["query_string"].decode("latin-1"))
        epoch, seq = query.get("epoch", [""])[-1], query.get("seq", [""])[-1]
        if not epoch:
            problem = "epoch is missing; list the blocks first and send the epoch and seq of the list"
            raise RequestError("epoch", problem)
        if not (seq.isascii() and seq.isdigit() and len(seq) < 16):
            raise RequestError("seq", f"seq must be the number of the last change you have, not {seq[:40]!r}")
        try:
            with stream.followed(epoch, int(seq)) as follower:
                await exchange.while_connected(self._send(exchange, follower))
        except NotInRing:
            raise Gone(
                f"changes since seq {int(seq)} of epoch {epoch!r} are not known here; list the blocks again"
            ) from None
        except ClientDisconnected:
            pass  # how a watch ends

    async def _send(self, exchange: Exchange, follower: Follower) -> None:
        if exchange.scope["method"] == "HEAD":
            follower.end()

        async def chunks() -> AsyncIterator[bytes]:
            while chunk := await follower.take():
                yield chunk

        await exchange.send_stream(chunks(), NDJSON)
        exchange.facts["cut_off"] = "true" if follower.was_cut_off else None

    def _stream(self) -> EngineStream:
        """Raises `NotReady`, `Draining` or `EngineDead` when nothing can be told."""
        self._service.model()
        if not self._service.client.alive:
            raise EngineDead
        if self._service.stream.has_ended:
            raise Draining
        return self._service.stream
