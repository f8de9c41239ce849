"""The group of torch.distributed in which the ranks of a model meet."""

import torch

from fairlead_engine.model.shard import Shard


def join_group(shard: Shard, address: str, device: str) -> None:
    """Waits until all ranks are there. With CUDA the sums go by NCCL, without by gloo."""
    on_cuda = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    torch.distributed.init_process_group(
        "nccl" if on_cuda else "gloo", init_method=address, rank=shard.rank, world_size=shard.size
    )
