"""Asks an engine what it is: `GET /fairlead/v1/model`, with a timeout, again and again until it answers."""

import asyncio
import logging
from dataclasses import replace
from typing import Protocol

import aiohttp
import msgspec

from fairlead.routing.replica import Limits, Replica
from fairlead_protocol.messages import PATH_MODEL

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 5.0
FIRST_BACKOFF_SECONDS = 0.2
LAST_BACKOFF_SECONDS = 10.0


class _Reply(msgspec.Struct):
    """The part of `fairlead_protocol.messages.ModelInfo` that is used here; the tokenizer is skipped unread."""

    served_name: str
    max_num_seqs: int
    max_num_waiting: int
    max_model_len: int | None = None


class ModelInfoError(Exception):
    """The engine did not tell; the text says why."""


class ModelInfoSource(Protocol):
    """Where replicas' limits and names come from; a fake needs only this."""

    async def fetch(self, replica: Replica) -> Replica:
        """The same replica with what its engine says of itself. One attempt; raises ModelInfoError."""
        ...

    async def close(self) -> None:
        """Lets go of connections."""
        ...


class ModelInfoClient:
    """Asks over HTTP. Close it when done."""

    def __init__(self, *, timeout: float = TIMEOUT_SECONDS) -> None:
        """`timeout`: seconds for one whole attempt."""
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, replica: Replica) -> Replica:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout, connector=aiohttp.TCPConnector(limit=32))
        try:
            async with self._session.get(_url(replica)) as response:
                if response.status != 200:
                    raise ModelInfoError(f"HTTP {response.status}")
                reply = msgspec.json.decode(await response.read(), type=_Reply)
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
            raise ModelInfoError(str(error) or type(error).__name__) from error
        limits = Limits(reply.max_num_seqs, reply.max_num_waiting, reply.max_model_len)
        return replace(replica, limits=limits, served_name=reply.served_name)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


async def fetch_until_known(source: ModelInfoSource, replica: Replica) -> Replica:
    """The replica, completed, however long it takes, with growing pauses. Cancel it when the replica leaves."""
    backoff = FIRST_BACKOFF_SECONDS
    while True:
        try:
            return await source.fetch(replica)
        except ModelInfoError as error:
            logger.warning("asking %s what it is: %s; again in %.1f s", replica.name, error, backoff)
        await asyncio.sleep(backoff)
        backoff = min(backoff * 2, LAST_BACKOFF_SECONDS)


def _url(replica: Replica) -> str:
    host = f"[{replica.host}]" if ":" in replica.host else replica.host
    return f"http://{host}:{replica.port}{PATH_MODEL}"
