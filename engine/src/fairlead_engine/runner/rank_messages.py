"""What rank 0 sends to the other ranks, a message a line of MessagePack with its length before it."""

import struct
from typing import IO

import msgspec
import numpy as np

from fairlead_engine.config import EngineConfig
from fairlead_engine.runner.dummy_steps import StepLimits
from fairlead_engine.runner.step_plan import StepPlan

HERE, READY = b"here\n", b"ready\n"
"""What a rank answers once it runs, and once it has loaded its part; else the JSON of `StartError.to_dict`."""
_LENGTH = struct.Struct("<I")


class Join(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The first message: load your part, and say that you have."""

    settings: EngineConfig
    rank: int
    size: int
    port: int
    """Of the store in which the ranks find one another (`process_group`)."""
    log_level: str
    log_format: str
    """As rank 0 writes its log."""


class Allocate(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Make room for the cache."""

    num_blocks: int
    num_slots: int
    blocks_per_slot: int


class AllocatePlaces(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Make room for copies of blocks in the host's memory."""

    num_places: int


class SaveBlocks(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Copy blocks to places in the host's memory."""

    blocks: list[int]
    places: list[int]


class LoadBlocks(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Copy places in the host's memory to blocks."""

    places: list[int]
    blocks: list[int]


class Measure(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Say how much memory is left for a cache."""

    utilization: float
    limits: StepLimits


class Capture(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Capture the steps that are repeated."""

    max_num_batched_tokens: int


class Step(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Compute a step."""

    plan: StepPlan


class ReadAdapter(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Begin to read an adapter."""

    key: int
    folder: str


class PlaceAdapter(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Place one that was read."""

    key: int
    slot: int


class ForgetAdapter(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Take it out of the host's memory."""

    key: int


Message = (
    Join
    | Allocate
    | AllocatePlaces
    | SaveBlocks
    | LoadBlocks
    | Measure
    | Capture
    | ReadAdapter
    | PlaceAdapter
    | ForgetAdapter
    | Step
)


class Writer:
    """The sending end of a pipe."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._encoder = msgspec.msgpack.Encoder(enc_hook=np.ndarray.tobytes)  # of int64 (`StepPlan`)

    def send(self, message: Message) -> None:
        """Raises OSError where the reader is gone."""
        body = self._encoder.encode(message)
        self._pipe.write(_LENGTH.pack(len(body)) + body)
        self._pipe.flush()


class Reader:
    """The receiving end."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(
            Message, dec_hook=lambda _, raw: np.frombuffer(raw, np.int64)
        )

    def receive(self) -> Message | None:
        """The next message; None when the sender is gone."""
        head = self._pipe.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return None
        body = self._pipe.read(_LENGTH.unpack(head)[0])
        return self._decoder.decode(body) if body else None
