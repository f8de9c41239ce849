"""Tensor parallelism: the part of a model on one rank, and the joining of the ranks' results.

As in Megatron-LM (arXiv 1909.08053): the first product of a pair is divided by its outputs, the second by its inputs,
and one sum over the ranks follows each pair.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part among `size`, which compute every step together, in the same order."""

    rank: int = 0
    size: int = 1

    def part(self, size: int) -> slice:
        """This rank's part of `size` things: equal parts, of which the last ones may be shorter."""
        each = -(-size // self.size)
        return slice(min(size, self.rank * each), min(size, (self.rank + 1) * each))

    def key_heads(self, num_kv_heads: int) -> slice:
        """This rank's heads of keys and values; ranks share one where heads are fewer than ranks."""
        if num_kv_heads >= self.size:
            return self.part(num_kv_heads)
        head = self.rank * num_kv_heads // self.size
        return slice(head, head + 1)

    def mean(self, part: Tensor, num_kv_heads: int) -> Tensor:
        """Numbers of this rank's `key_heads` [rows, heads] → the mean over the ranks that share a head."""
        if num_kv_heads >= self.size:
            return part
        heads = self.key_heads(num_kv_heads)
        of_all = part.new_zeros(len(part), num_kv_heads)
        of_all[:, heads] = part
        return self.sum(of_all)[:, heads] * (num_kv_heads / self.size)

    def sum(self, part: Tensor) -> Tensor:
        """The sum of all ranks' tensors of this shape, in place."""
        if self.size > 1 and part.numel():
            torch.distributed.all_reduce(part)
        return part

    def gather(self, part: Tensor, num_columns: int) -> Tensor:
        """The ranks' columns side by side, [rows, num_columns]."""
        if self.size == 1:
            return part
        if not len(part):
            return part.new_empty(0, num_columns)
        each = -(-num_columns // self.size)
        padded = pad(part, (0, each - part.shape[1])).contiguous()
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        torch.distributed.all_gather(parts, padded)
        return torch.cat(parts, dim=1)[:, :num_columns]

    def tell(self, tensor: Tensor) -> Tensor:
        """Writes rank 0's tensor into the others'."""
        if self.size > 1 and tensor.numel():
            torch.distributed.broadcast(tensor, src=0)
        return tensor

    def least(self, number: int, device: torch.device) -> int:
        """The least of the ranks' numbers."""
        if self.size == 1:
            return number
        numbers = torch.tensor(number, device=device)
        torch.distributed.all_reduce(numbers, torch.distributed.ReduceOp.MIN)
        return int(numbers)


ALONE = Shard()
"""The whole model."""


def side_by_side(parts: Iterable[tuple[int, slice]]) -> Iterator[slice]:
    """Places of parts of things that lie behind one another: a size each, and the part."""
    first = 0
    for size, part in parts:
        yield slice(first + part.start, first + part.stop)
        first += size


def scaled(part: slice, size: int) -> slice:
    """Elements of heads with `size` each."""
    return slice(part.start * size, part.stop * size)
