"""The recurrent part of a layer in plain torch: a short convolution over tokens, and the gated delta rule or
Mamba-2's sum.

A sequence's state is a matrix for each head, S [key_dim, value_dim]. A token with query q, key k, value v, decay a
(0 to 1) and strength b makes S of it: S = a S; S = S + k (b (v - k S)), or of Mamba-2 S + k v;
its output is q S. Source: Gated Delta Networks
(Yang et al., arXiv 2412.06464). Tokens of one sequence are computed in chunks of `_CHUNK`, with one triangular system
each, as in section 3.3 there; results do not depend on the division of a prompt into steps beyond rounding.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

_CHUNK = 64


class StateCache(NamedTuple):
    """States of one layer: a row for each slot, a row of zeros, then rows of snapshots."""

    inputs: Tensor
    """[rows, kernel_size - 1, channels]: the last inputs of the convolution."""
    matrices: Tensor
    """float32 [rows, heads, key_dim, value_dim]."""
    stored: tuple[()] = ()
    """Keys and values: none."""

    def copy(self, sources: Tensor, targets: Tensor) -> None:
        """Copies rows, int64 [copies]; reads all before it writes."""
        for tensor in (self.inputs, self.matrices):
            tensor.index_copy_(0, targets, tensor[sources])

    def cleared(self) -> "StateCache":
        """Itself, with zeros in all rows."""
        for tensor in (self.inputs, self.matrices):
            tensor.zero_()
        return self


class Stretch(NamedTuple):
    """Consecutive tokens of one sequence."""

    row: int
    """Row of the sequence's state."""
    first: int
    """First of the step's rows."""
    end: int
    keep: int | None
    """Row that the state behind them is copied to; None = none."""


class StateRows(NamedTuple):
    """States that a step reads and writes: of the sequences with one token, which come first, and of the others."""

    single: Tensor
    """int64 [sequences]."""
    longer: tuple[Stretch, ...]
    """In order; stretches of one sequence follow each other."""


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, cache: StateCache, rows: StateRows) -> Tensor:
    """silu of the sum of each channel's last inputs, weighted: x [tokens, channels] → the same shape. weight float32
    [kernel_size, channels], bias float32 [channels]."""
    number, output = len(rows.single), torch.empty_like(x)
    if number:
        window = torch.cat((cache.inputs[rows.single], x[:number].unsqueeze(1)), 1)
        summed = (window.float() * weight).sum(1)
        output[:number] = functional.silu(summed if bias is None else summed + bias)
        cache.inputs.index_copy_(0, rows.single, window[:, 1:])
    kernel = weight.T.unsqueeze(1)
    for row, first, end, keep in rows.longer:
        window = torch.cat((cache.inputs[row], x[first:end]))
        summed = functional.conv1d(window.T.float().unsqueeze(0), kernel, bias, groups=x.shape[1])
        output[first:end] = functional.silu(summed[0].T)
        cache.inputs[row] = window[end - first :]
        if keep is not None:
            cache.inputs[keep] = cache.inputs[row]
    return output


def recur(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    strength: Tensor | None,
    cache: StateCache,
    rows: StateRows,
) -> Tensor:
    """query and key [tokens, key heads, key_dim], value [tokens, heads, value_dim], decay (its logarithm) and strength
    [tokens, heads], all float32 → [tokens, heads, value_dim]. strength None: values are added as they are."""
    each = value.shape[1] // key.shape[1]
    query, key = query.repeat_interleave(each, 1), key.repeat_interleave(each, 1)
    number, output = len(rows.single), torch.empty_like(value)
    if number:
        state = cache.matrices[rows.single] * decay[:number].exp()[..., None, None]
        change = value[:number]
        if strength is not None:
            known = (state * key[:number].unsqueeze(-1)).sum(2)
            change = strength[:number].unsqueeze(-1) * (change - known)
        state += key[:number].unsqueeze(-1) * change.unsqueeze(2)
        output[:number] = (state * query[:number].unsqueeze(-1)).sum(2)
        cache.matrices.index_copy_(0, rows.single, state)
    for row, first, end, keep in rows.longer:
        state = cache.matrices[row]
        for at in range(first, end, _CHUNK):
            part = slice(at, min(at + _CHUNK, end))
            of_tokens = [each[part].transpose(0, 1) for each in (query, key, value, decay)]
            found, state = _chunk(of_tokens, None if strength is None else strength[part].T.unsqueeze(-1), state)
            output[part] = found.transpose(0, 1)
        cache.matrices[row] = state
        if keep is not None:
            cache.matrices[keep] = state
    return output


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
