"""The door for engines that are not ours: what the front asks of any of them. One class for each kind, and its line in
`kinds.py`.

Whatever a kind tells is made into blocks, loads and steps of our own protocol by the others here; a kind knows nothing
of that protocol.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

ForeignHash = int | bytes
"""What the server calls a block of its KV cache: a name and no more, since it cannot be computed here."""
MOST_TOKENS = 2**40
"""In a cache, and of anything that is counted."""


class NotServing(Exception):
    """The server does not answer, or not as one that serves; the text says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignModel:
    """What a server says of itself once it serves."""

    version: str
    max_model_len: int
    """Longest prompt plus answer, in tokens."""
    block_size: int
    """Tokens per block of the KV cache."""
    num_kv_blocks: int
    num_places: int | None = None
    """How many sequences keep what was computed for them, each in a place of its own; None = blocks share all the room.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """How a server stands, as its metrics say."""

    waiting: int
    """Sequences that it has not begun to compute."""
    kv_usage_ratio: float
    """Share of the KV cache's blocks that running sequences use."""
    num_tokens: float
    """Prompt and output tokens since its start: while they grow, it goes on."""

    @classmethod
    def told(cls, *, waiting: float, kv_usage_ratio: float, num_tokens: float) -> "Gauges":
        """Of numbers of any kind, infinite ones too, such as there may be."""
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
    """What else, besides tokens and adapter, decides what is in each block; empty where nothing does."""


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
    """A server that is not ours, as the front sees it. Every call is an attempt: a server that has just been started,
    or died, is asked again."""

    name: str
    """For people: what it is, without its version."""
    tells_blocks: bool
    """Whether it says what happens to its blocks."""
    keeps_connections: bool
    """Whether a connection may be used again: some close it after a stream, and say so to nobody."""

    async def describe(self) -> ForeignModel:
        """Raises NotServing until it serves."""
        ...

    async def gauges(self) -> Gauges:
        """Raises NotServing."""
        ...

    def block_events(self) -> AsyncIterator[BlockEvent]:
        """What happens to its blocks, without an end, where it tells; of a server that starts anew, first `Cleared`."""
        ...
