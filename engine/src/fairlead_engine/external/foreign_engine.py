"""The interface of foreign engines, with a class per kind, listed in `KINDS` of `front_process.py`.

The front turns a kind's answers into blocks, loads and steps of our protocol; a kind knows nothing of the protocol.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

ForeignHash = int | bytes
"""The server's name of a KV-cache block, which cannot be computed here."""
MOST_TOKENS = 2**40
"""Bound on tokens in a cache, and on other counts."""


class NotServing(Exception):
    """The server does not answer, or not as expected; the text says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignModel:
    """A serving server's description of itself."""

    version: str
    max_model_len: int
    """Longest prompt plus answer, in tokens."""
    block_size: int
    """Tokens per block of the KV cache."""
    num_kv_blocks: int
    num_places: int | None = None
    """Number of sequences with a private cache; None = blocks share all the room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """A server's state, by metrics."""

    waiting: int
    """Sequences that the server has not begun to compute."""
    kv_usage_ratio: float
    """Share of the KV cache's blocks used by running sequences."""
    num_tokens: float
    """Prompt and output tokens since the server's start: growing while the server works."""

    @classmethod
    def told(cls, *, waiting: float, kv_usage_ratio: float, num_tokens: float) -> "Gauges":
        """From numbers of any kind, even infinite."""
        return cls(
            waiting=round(min(MOST_TOKENS, max(0.0, waiting))),
            kv_usage_ratio=min(1.0, max(0.0, kv_usage_ratio)),
            num_tokens=num_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Consecutive blocks can be shared from now on."""

    hashes: tuple[ForeignHash, ...]
    parent: ForeignHash | None
    """The block before the first; None = the first begins a prompt."""
    token_ids: tuple[int, ...]
    """Of all the blocks, `block_size` each."""
    block_size: int
    medium: str = ""
    """Where the blocks are: a block may be in several places."""
    adapter: str | None = None
    extra_keys: tuple[tuple[object, ...], ...] = ()
    """Input of each block's hash besides tokens and adapter; empty = none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Blocks are not there any more."""

    hashes: tuple[ForeignHash, ...]
    medium: str = ""


@dataclass(frozen=True, slots=True)
class Cleared:
    """The cache is empty."""


@dataclass(frozen=True, slots=True)
class EventsInterrupted:
    """From now on events may be missed."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """Events come again. `is_complete`: whether the events describe the whole cache."""

    is_complete: bool


BlockEvent = Stored | Removed | Cleared | EventsInterrupted | Resumed


class ForeignEngine(Protocol):
    """A foreign server. Every call is one attempt: the caller asks a starting or dead server again."""

    name: str
    """For people: the kind of server, without the version."""
    tells_blocks: bool
    """Whether the server reports changes of blocks."""
    keeps_connections: bool
    """Whether a connection may be reused; some servers silently close connections after a stream."""

    async def describe(self) -> ForeignModel:
        """Raises NotServing until it serves."""
        ...

    async def gauges(self) -> Gauges:
        """Raises NotServing."""
        ...

    def block_events(self) -> AsyncIterator[BlockEvent]:
        """Endless events of blocks, if `tells_blocks`; a restarted server's first event is `Cleared`."""
        ...
