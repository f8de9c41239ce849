"""What clients and a core say to each other, whether they share a process or not.

A client sends commands; the core answers with `Started` or `Failed`, and from then on with one `Stepped` for each step
and for each round of commands that needs no step. Where several clients share a core, the first of them, which has
started it, hears all of that; the others what is theirs. Not to be confused with the HTTP protocol between gateway and
engine.
"""

import msgspec

from fairlead_engine.types import EngineInfo, EngineLoad, EngineRequest, Held, SequenceOutput
from fairlead_protocol.blocks import BlockHash


class Add(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Run this request."""

    request: EngineRequest


class Abort(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Nobody reads this request's outputs any more."""

    request_id: str


class Forget(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Another client of the core is gone: end what it has asked for, and tell it nothing more. The first client's."""

    client: int
    """Its place among the clients; the first has 0."""


class Ping(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Nothing but an answer is asked for. The first client's."""


class LoadAdapter(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Have an adapter that requests may ask for; answered with `Answer`."""

    ask: int
    """The client's number for it."""
    name: str
    folder: str
    """Relative to `EngineConfig.adapter_folder`, or below it."""


class UnloadAdapter(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Have it no more; answered in the same way."""

    ask: int
    name: str


class Hold(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Keep this for requests that will come (`EngineRequest.hold`), until the hold is aborted."""

    hold: str
    held: Held


class Inject(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Put these tokens into a running answer; answered with `Answer` when they are there, or cannot be."""

    ask: int
    request_id: str
    mark: str
    """By which the output that tells of it names it."""
    token_ids: list[int]


class Stop(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """End the core now, whatever runs. The first client's."""


Command = Add | Abort | Forget | Ping | LoadAdapter | UnloadAdapter | Hold | Inject | Stop


class Started(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The model is loaded and has run."""

    info: EngineInfo
    load: EngineLoad


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The core could not start (`StartError.to_dict`); it ends."""

    reason: str
    message: str


class BlocksChanged(msgspec.Struct, frozen=True, array_like=True):
    """How the set of reusable blocks changed in one step: first `removed` goes, then `stored` comes."""

    stored: list[tuple[BlockHash, list[BlockHash]]]
    """Chains, each with its parent: the block before the first one, or ROOT."""
    removed: list[BlockHash]


class Stepped(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A client's outputs of one step, and of its requests that were refused before it."""

    outputs: list[SequenceOutput]
    load: EngineLoad
    num_commands: int
    """The client's commands obeyed since the start; the core owes an answer while this is less than was sent."""
    changed: BlocksChanged | None = None
    """None when no reusable block came or went, and for all clients but the first."""
    number: int = 0
    """Of this report, from 1; all who hear of it hear the same number."""


class Answer(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """An adapter has come or gone, which all clients have been told, or tokens are where they were to be; or why not.
    Only who has asked hears of it."""

    ask: int
    problem: str | None


class Died(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A step failed, so that what the cache holds is unknown; the core ends."""

    message: str


Reply = Started | Failed | Stepped | Answer | Died
