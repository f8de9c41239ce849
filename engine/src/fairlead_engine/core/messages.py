"""Messages between clients and a core, in one process or between two.

A client sends commands; the core answers with `Started` or `Failed`, and then with one `Stepped` for each step and for
each round of commands without a step. Where several clients share a core, client 0, the starter, hears everything;
others hear what concerns them. Unrelated to the HTTP protocol between gateway and engine.
"""

import msgspec

from fairlead_common.wire.blocks import BlockHash
from fairlead_engine.types import EngineInfo, EngineLoad, EngineRequest, HeldPrompt, SequenceOutput


class Add(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Run this request."""

    request: EngineRequest


class Abort(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Outputs of this request are no longer read."""

    request_id: str


class Forget(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """From client 0: another client is gone; end its requests and send it nothing more."""

    client: int


class Ping(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """From client 0: asks for a report only."""


class LoadAdapter(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Load an adapter for requests; answered with `Answer`."""

    ask: int
    """The client's number for this command."""
    name: str
    folder: str
    """Relative to `EngineConfig.adapter_folder`, or below it."""


class UnloadAdapter(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Unload an adapter; answered with `Answer`."""

    ask: int
    name: str


class Hold(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Keep a prompt for later requests (`EngineRequest.hold`), until the hold is aborted."""

    hold: str
    held: HeldPrompt


class Inject(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Put the tokens into a running answer; answered with `Answer` after the insertion or its failure."""

    ask: int
    request_id: str
    mark: str
    """Name in the output that reports the injection."""
    token_ids: list[int]


class Stop(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """From client 0: end the core now, whatever runs."""


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
    """A step's changes to the set of reusable blocks: first `removed` leave, then `stored` enter."""

    stored: list[tuple[BlockHash, list[BlockHash]]]
    """Chains, each with its parent: the block before the first one, or ROOT."""
    removed: list[BlockHash]


class Stepped(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A client's outputs of one step, and of its requests refused before the step."""

    outputs: list[SequenceOutput]
    load: EngineLoad
    num_commands: int
    """The client's commands obeyed since the start; the core owes an answer while more were sent."""
    changed: BlocksChanged | None = None
    """None = no reusable block came or went, or the client is not client 0."""
    number: int = 0
    """Number of this report, from 1; the same for all clients."""


class Answer(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Result of a command about an adapter, after the report to all clients, or of an injection; to its sender."""

    ask: int
    problem: str | None


class Died(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A step failed, and the cache's contents are unknown; the core ends."""

    message: str


Reply = Started | Failed | Stepped | Answer | Died
