"""The meeting of a model's ranks (torch.distributed's group and store), and rank 0's messages to the others.

A message is MessagePack with its length before it.
"""

import socket
import struct
from operator import attrgetter
from typing import IO, TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import torch

from fairlead_engine.config import EngineConfig
from fairlead_engine.model.shard import Shard
from fairlead_engine.runner.step_plan import StepPlan

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore  # which torch.distributed has, though its types do not say so

_HOST = "127.0.0.1"


def open_store() -> "TCPStore":
    """Rank 0's store, on a free port of the loopback alone: everybody who reaches the store may change it."""
    listening = socket.create_server((_HOST, 0))
    port = listening.getsockname()[1]
    store: TCPStore = torch.distributed.TCPStore(  # type: ignore[attr-defined]
        _HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
    )
    return store


def reach_store(port: int) -> "TCPStore":
    """The same store, from another rank."""
    store: TCPStore = torch.distributed.TCPStore(_HOST, port, is_master=False)  # type: ignore[attr-defined]
    return store


def join_group(shard: Shard, store: "TCPStore", device: torch.device) -> None:
    """Waits for all ranks. Sums go by NCCL on CUDA, else by gloo."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, store=store, rank=shard.rank, world_size=shard.size)


HERE, READY = b"here\n", b"ready\n"
"""Answers of a running rank, and of a rank that has loaded its part; else the JSON of `StartError.to_dict`."""
_LENGTH = struct.Struct("<I")


class Join(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The first message: load your part, and say that you have."""

    settings: EngineConfig
    rank: int
    size: int
    port: int
    """Port of the store in which the ranks find one another (`open_store`)."""
    log_level: str
    log_format: str
    """As rank 0 writes its log."""


PartMethod = Literal[
    "allocate", "allocate_places", "allocate_snapshots", "host.save", "host.load", "memory_for_cache", "capture",
    "host_adapters.read", "host_adapters.place", "host_adapters.forget",
]  # fmt: skip
"""Methods of `ModelPart` that every rank calls, as rank 0 does."""


class Call(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Call a method of your part of the model."""

    method: PartMethod
    arguments: tuple[Any, ...]

    def on(self, part: object) -> Any:
        return attrgetter(self.method)(part)(*self.arguments)


class Step(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Compute a step."""

    plan: StepPlan


Message = Join | Call | Step


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
