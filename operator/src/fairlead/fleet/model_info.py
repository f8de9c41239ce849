"""Asks an engine what it is: `GET /fairlead/v1/model`, with a timeout.

What it says of its limits goes into the `Replica`; its tokenizer goes to whoever keeps those.
"""

from dataclasses import replace
from typing import Protocol

import aiohttp
import msgspec

from fairlead.addresses import authority
from fairlead.routing.replica import Limits, Replica
from fairlead_protocol.messages import PATH_MODEL, ModelBrief, ModelInfo

TIMEOUT_SECONDS = 5.0


class TokenizerBook(Protocol):
    """Keeps the models' tokenizers; the gateway has one."""

    def get(self, digest: str) -> object | None:
        """The tokenizer of this digest, where it is known."""
        ...

    async def add(self, info: ModelBrief) -> None:
        """An engine says this of itself. Only a `ModelInfo` has a tokenizer, for digests that are not known."""
        ...


class ModelInfoError(Exception):
    """The engine did not tell; the text says why."""


class ModelInfoClient:
    """Asks over HTTP. Close it when done."""

    def __init__(self, *, timeout: float = TIMEOUT_SECONDS, tokenizers: TokenizerBook | None = None) -> None:
        """`timeout`: seconds for one whole attempt. `tokenizers`: told of every engine that answers."""
        self._tokenizers = tokenizers
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, replica: Replica) -> Replica:
        """The same replica with what its engine says of itself. One attempt; raises ModelInfoError."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout, connector=aiohttp.TCPConnector(limit=32))
        try:
            url = f"http://{authority(replica.host, replica.port)}{PATH_MODEL}"
            async with self._session.get(url) as response:
                if response.status != 200:
                    raise ModelInfoError(f"HTTP {response.status}")
                body = await response.read()
            brief = msgspec.json.decode(body, type=ModelBrief)
            if self._tokenizers is not None:
                is_known = self._tokenizers.get(brief.digest) is not None
                await self._tokenizers.add(brief if is_known else msgspec.json.decode(body, type=ModelInfo))
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
            raise ModelInfoError(str(error) or type(error).__name__) from error
        limits = Limits(
            max_num_seqs=brief.max_num_seqs,
            max_num_queued_tokens=brief.max_num_queued_tokens,
            block_size=brief.block_size,
            max_model_len=brief.max_model_len,
        )
        return replace(
            replica,
            limits=limits,
            served_name=brief.served_name,
            digest=brief.digest,
            adapters=frozenset(brief.adapters),
        )

    async def close(self) -> None:
        """Lets go of connections."""
        if self._session is not None:
            await self._session.close()
