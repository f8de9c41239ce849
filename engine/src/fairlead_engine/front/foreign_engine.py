"""The interface of engines that are not ours, with a class per kind and its line in `KINDS` of `front_process.py`.

The front turns a kind's answers into blocks, loads and steps of our own protocol; a kind knows nothing of the protocol.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

ForeignHash = int | bytes
"""The server's own name of a KV-cache block; it cannot be computed here."""
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
    """Number of sequences with a cache of their own; None = blocks share all the room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """How a server stands, as its metrics say."""

    waiting: int
    """Sequences that it has not begun to compute."""
    kv_usage_ratio: float
    """Share of the KV cache's blocks used by running sequences."""
    num_tokens: float
    """Prompt and output tokens since its start: while they grow, it goes on."""

    @classmethod
    def told(cls, *, waiting: float, kv_usage_ratio: float, num_tokens: float) -> "Gauges":
        """From numbers of any kind, even infinite ones."""
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
    """The block before the first; None where that begins a prompt."""
    token_ids: tuple[int, ...]
    """Of all the blocks, `block_size` each."""
    block_size: int
    medium: str = ""
    """Where they are: a block may be in several places."""
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
    """They come again. `is_complete`: whether none that still matters was missed."""

    is_complete: bool


BlockEvent = Stored | Removed | Cleared | EventsInterrupted | Resumed


class ForeignEngine(Protocol):
    """A foreign server as the front sees it. Every call is one attempt: a server that was just started, or died, is
    asked again."""

    name: str
    """For people: what it is, without its version."""
    tells_blocks: bool
    """Whether it says what happens to its blocks."""
    keeps_connections: bool
    """Whether a connection may be reused; some servers silently close it after a stream."""

    async def describe(self) -> ForeignModel:
        """Raises NotServing until it serves."""
        ...

    async def gauges(self) -> Gauges:
        """Raises NotServing."""
        ...

    def block_events(self) -> AsyncIterator[BlockEvent]:
        """Endless events of its blocks, if the server tells them; a restarted server's first event is `Cleared`."""
        ...
