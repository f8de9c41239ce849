"""Stretches of consecutive tokens through a recurrent layer, as prompts have them: what `recurrence.py` computes, many
tokens at a time.

Tokens are computed in chunks, with one triangular system each, as in section 3.3 of Gated Delta Networks (Yang et al.,
arXiv 2412.06464); results do not depend on the division of a prompt into stretches beyond rounding.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fairlead_engine.kernels.dispatch import with_kernel
from fairlead_engine.kernels.staging import to_device

_CHUNK = 64
TILE_TOKENS = 32
"""Most tokens of a kernel's chunk, and of a tile of its convolution."""
NOT_KEPT = -1
"""In place of a row in `Stretches.chunks`."""


class Stretch(NamedTuple):
    """Consecutive tokens of one sequence."""

    row: int
    """Row of the sequence's state."""
    first: int
    """First of the step's rows."""
    end: int
    keep: int | None
    """Row for a copy of the state behind the tokens; None = no copy."""


class Stretches(NamedTuple):
    """All stretches of a step, and the same for kernels: int64 tables on the device, for all layers."""

    listed: tuple[Stretch, ...]
    """In order, the stretches of a sequence side by side."""
    sequences: Tensor
    """[sequences, 7]: row of the state, first and end of the tokens, of `chunks`, and of `copies`."""
    chunks: Tensor
    """[chunks, 3]: first and end of the tokens, and the row for a copy of the matrices behind the tokens."""
    copies: Tensor
    """[copies, 2]: end of tokens, and a row that takes the last inputs before it; a sequence's own row comes last."""
    tiles: Tensor
    """[tiles, 2]: place of the sequence, and the first of up to `TILE_TOKENS` tokens."""

    @classmethod
    def of(cls, listed: Sequence[Stretch], device: torch.device) -> "Stretches":
        sequences: list[list[int]] = []
        chunks: list[tuple[int, int, int]] = []
        copies: list[tuple[int, int]] = []
        for row, first, end, keep in listed:
            if not sequences or sequences[-1][0] != row:
                sequences.append([row, first, end, len(chunks), 0, len(copies), 0])
            else:
                copies.pop()  # the row of a sequence that goes on
            starts = range(first, end, TILE_TOKENS)
            chunks += [(at, min(at + TILE_TOKENS, end), NOT_KEPT) for at in starts]
            if keep is not None:
                chunks[-1] = (*chunks[-1][:2], keep)
                copies.append((end, keep))
            copies.append((end, row))
            sequences[-1][2], sequences[-1][4], sequences[-1][6] = end, len(chunks), len(copies)
        tiles = [
            (place, at) for place, (_, first, end, *_) in enumerate(sequences) for at in range(first, end, TILE_TOKENS)
        ]
        tables = [np.array(table, np.int64) for table in (sequences, chunks, copies, tiles)]
        flat = to_device(np.concatenate([table.ravel() for table in tables]), device)
        parts = torch.split(flat, [table.size for table in tables])
        return cls(tuple(listed), *(part.view(table.shape) for part, table in zip(parts, tables, strict=True)))


@with_kernel("fairlead_engine.kernels.stretches_kernel")
def convolve_stretches(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    inputs: Tensor,
    stretches: Stretches,
    output: Tensor,
    *,
    activates: bool = True,
) -> None:
    """`recurrence.convolve` of the stretches alone: writes rows of `output`, and the last inputs."""
    kernel = weight.T.unsqueeze(1)
    for row, first, end, keep in stretches.listed:
        window = torch.cat((inputs[row], x[first:end]))
        summed = functional.conv1d(window.T.float().unsqueeze(0), kernel, bias, groups=x.shape[1])
        output[first:end] = activated(summed[0].T, activates)
        inputs[row] = window[end - first :]
        if keep is not None:
            inputs[keep] = inputs[row]


def activated(x: Tensor, activates: bool) -> Tensor:
    """Its silu, or x itself."""
    return functional.silu(x) if activates else x


@with_kernel("fairlead_engine.kernels.stretches_kernel")
def recur_stretches(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    strength: Tensor | None,
    matrices: Tensor,
    stretches: Stretches,
    output: Tensor,
) -> None:
    """`recurrence.recur` of the stretches alone: writes rows of `output`, and the matrices."""
    each = value.shape[1] // key.shape[1]
    query, key = query.repeat_interleave(each, 1), key.repeat_interleave(each, 1)
    for row, first, end, keep in stretches.listed:
        state = matrices[row]
        for at in range(first, end, _CHUNK):
            part = slice(at, min(at + _CHUNK, end))
            of_tokens = [each[part].transpose(0, 1) for each in (query, key, value, decay)]
            found, state = _chunk(of_tokens, None if strength is None else strength[part].T.unsqueeze(-1), state)
            output[part] = found.transpose(0, 1)
        matrices[row] = state
        if keep is not None:
            matrices[keep] = state


def _chunk(of_tokens: list[Tensor], strength: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs of consecutive tokens of one sequence, and the state behind them. `of_tokens`: the first arguments of
    `recur`, [heads, tokens, ...]. A token's change of the state depends on the earlier ones': (1 + L) changes =
    strength (value - decayed key S)."""
    query, key, changes, decay = of_tokens
    total = decay.cumsum(1)
    faded = (total.unsqueeze(2) - total.unsqueeze(1)).exp().tril()  # [heads, later, earlier]
    if strength is not None:
        system = (strength * faded * (key @ key.mT)).tril(-1)
        wanted = strength * (changes - total.exp().unsqueeze(-1) * (key @ state))
        changes = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    outputs = total.exp().unsqueeze(-1) * (query @ state) + (faded * (query @ key.mT)) @ changes
    last = total[:, -1:]
    state = last.exp().unsqueeze(-1) * state + (key * (last - total).exp().unsqueeze(-1)).mT @ changes
    return outputs, state
