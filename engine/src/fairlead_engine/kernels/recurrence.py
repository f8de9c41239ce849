"""The recurrent part of a layer: a short convolution over tokens, and the gated delta rule or
Mamba-2's sum.

A sequence's state is a matrix for each head, S [key_dim, value_dim]. A token with query q, key k, value v, decay a
(0 to 1) and strength b makes S of it: S = a S; S = S + k (b (v - k S)), or of Mamba-2 S + k v;
its output is q S. Source: Gated Delta Networks
(Yang et al., arXiv 2412.06464). Consecutive tokens of one sequence are computed together (`stretches.py`).

Drafts are computed token by token, as decodes are, in a copy of the state: what a cache holds goes no further than the
known tokens. The inputs of drafts are held until the accepted ones are known, and then computed again (`advance`):
they are a few KiB for each draft, states behind each draft would be megabytes.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fairlead_engine.kernels.dispatch import with_kernel
from fairlead_engine.kernels.stretches import Stretches, activated, convolve_stretches, recur_stretches


@dataclass(slots=True)
class HeldDrafts:
    """Inputs of the last step's drafts by their number, of the sequences of `DraftedRows`."""

    channels: list[Tensor] = field(default_factory=list)
    """[sequences, channels]: inputs of the convolution."""
    changes: list[tuple[Tensor, Tensor, Tensor, Tensor | None]] = field(default_factory=list)
    """Keys, values, decays and strengths, as `recur` has them."""

    def clear(self) -> None:
        self.channels.clear()
        self.changes.clear()


@dataclass(frozen=True, slots=True)
class StateCache:
    """States of one layer: a row for each slot, a row of zeros, then rows of snapshots."""

    inputs: Tensor
    """[rows, kernel_size - 1, channels]: the last inputs of the convolution."""
    matrices: Tensor
    """float32 [rows, heads, key_dim, value_dim]; empty where a layer only convolves."""
    held: HeldDrafts = field(default_factory=HeldDrafts)
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


class DraftedRows(NamedTuple):
    """Sequences with drafts behind a known token, those with the most first."""

    slots: Tensor
    """int64 [sequences]."""
    rounds: tuple[Tensor, ...]
    """The step's rows of all known tokens, of all first drafts, and so on: int64, of ever fewer sequences."""


class StateRows(NamedTuple):
    """States that a step reads and writes: of the sequences with one token, which come first, and of the others."""

    single: Tensor
    """int64 [sequences]."""
    longer: Stretches | None
    """None = no sequence has more."""
    drafted: DraftedRows | None = None
    """None = no sequence has drafts."""


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, cache: StateCache, rows: StateRows, *, activates: bool = True
) -> Tensor:
    """The sum of each channel's last inputs, weighted, and with `activates` its silu: x [tokens, channels] → the same
    shape. weight float32 [kernel_size, channels], bias float32 [channels]."""
    number = len(rows.single)
    if number == len(x):
        return convolve_one(x, weight, bias, cache.inputs, rows.single, activates=activates)
    output = torch.empty_like(x)
    if number:
        output[:number] = convolve_one(x[:number], weight, bias, cache.inputs, rows.single, activates=activates)
    if rows.drafted is not None:
        _convolve_drafts(x, weight, bias, cache, rows.drafted, output, activates)
    if rows.longer is not None:
        convolve_stretches(x, weight, bias, cache.inputs, rows.longer, output, activates=activates)
    return output


def _convolve_drafts(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cache: StateCache,
    rows: DraftedRows,
    output: Tensor,
    activates: bool,
) -> None:
    known, places = cache.inputs[rows.slots], torch.arange(len(rows.slots), device=x.device)
    for number, at in enumerate(rows.rounds):
        added = x[at]
        output[at] = convolve_one(added, weight, bias, known, places[: len(at)], activates=activates)
        if number:
            cache.held.channels.append(added)
        else:
            cache.inputs.index_copy_(0, rows.slots, known)


@with_kernel("fairlead_engine.kernels.recurrence_kernel")
def convolve_one(
    x: Tensor, weight: Tensor, bias: Tensor | None, inputs: Tensor, rows: Tensor, *, activates: bool = True
) -> Tensor:
    """`convolve` of one token of each sequence, x [sequences, channels]. `rows` int64 [sequences] of `inputs`, which
    takes the tokens in."""
    window = torch.cat((inputs[rows], x.unsqueeze(1)), 1)
    inputs.index_copy_(0, rows, window[:, 1:])
    summed = (window.float() * weight).sum(1)
    return activated(summed if bias is None else summed + bias, activates).to(x.dtype)


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
    number = len(rows.single)
    if number == len(value):
        return recur_one(query, key, value, decay, strength, cache.matrices, rows.single)
    output = torch.empty_like(value)
    if number:
        inputs = _picked(slice(number), key, value, decay, strength)
        output[:number] = recur_one(query[:number], *inputs, cache.matrices, rows.single)
    if rows.drafted is not None:
        _recur_drafts((query, key, value, decay, strength), cache, rows.drafted, output)
    if rows.longer is not None:
        recur_stretches(query, key, value, decay, strength, cache.matrices, rows.longer, output)
    return output


def advance(cache: StateCache, number: int, picks: Tensor, slots: Tensor) -> None:
    """Takes the states of `slots` int64 [sequences] behind their draft of this number, from 0 on. `picks` int64
    [sequences]: places among the last step's sequences with drafts."""
    known, added = cache.inputs[slots], cache.held.channels[number][picks]
    cache.inputs.index_copy_(0, slots, torch.cat((known[:, 1:], added.unsqueeze(1)), 1))
    if cache.held.changes:  # else the layer only convolves
        changes = _picked(picks, *cache.held.changes[number])
        recur_one(changes[0], *changes, cache.matrices, slots)


def _recur_drafts(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None], cache: StateCache, rows: DraftedRows, output: Tensor
) -> None:
    states, places = cache.matrices[rows.slots], torch.arange(len(rows.slots), device=output.device)
    query, key, value, decay, strength = inputs
    for number, at in enumerate(rows.rounds):
        added = _picked(at, key, value, decay, strength)
        output[at] = recur_one(query[at], *added, states, places[: len(at)])
        if number:
            cache.held.changes.append(added)
        else:
            cache.matrices.index_copy_(0, rows.slots, states)


def _picked(
    rows: Tensor | slice, key: Tensor, value: Tensor, decay: Tensor, strength: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    return key[rows], value[rows], decay[rows], None if strength is None else strength[rows]


@with_kernel("fairlead_engine.kernels.recurrence_kernel")
def recur_one(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, strength: Tensor | None, matrices: Tensor, rows: Tensor
) -> Tensor:
    """`recur` of one token of each sequence. `rows` int64 [sequences] of `matrices`, which take the tokens in."""
    each = value.shape[1] // key.shape[1]
    query, key = (vectors.repeat_interleave(each, 1).unsqueeze(-1) for vectors in (query, key))
    state = matrices[rows] * decay.exp()[..., None, None]
    if strength is not None:
        value = strength.unsqueeze(-1) * (value - (state * key).sum(2))
    state += key * value.unsqueeze(2)
    matrices.index_copy_(0, rows, state)
    return (state * query).sum(2)
