"""The group of torch.distributed in which the ranks of a model meet, and the store by which they find one another."""

import socket
from typing import TYPE_CHECKING

import torch

from fairlead_engine.model.shard import Shard

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore  # which torch.distributed has, though its types do not say so

_HOST = "127.0.0.1"


def open_store() -> "TCPStore":
    """Rank 0's, on a free port. Nobody has to say who they are to change what is in it, so it must not be reached from
    other machines; left to itself it listens on every address."""
    listening = socket.create_server((_HOST, 0))
    port = listening.getsockname()[1]
    store: TCPStore = torch.distributed.TCPStore(  # type: ignore[attr-defined]
        _HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
    )
    return store


def reach_store(port: int) -> "TCPStore":
    """That same one, for another rank."""
    store: TCPStore = torch.distributed.TCPStore(_HOST, port, is_master=False)  # type: ignore[attr-defined]
    return store


def join_group(shard: Shard, store: "TCPStore", device: torch.device) -> None:
    """Waits until all ranks are there. With CUDA the sums go by NCCL, without by gloo."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, store=store, rank=shard.rank, world_size=shard.size)
