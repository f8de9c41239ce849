"""Drawing tokens from logits: temperature, top-k, top-p, min-p, then one uniform number against the cumulative weights.

Inverting the cumulative distribution needs a single random number per token, which makes it cheap that a draw depends
on nothing but seed and position. Sums run in float64, so that a vocabulary of any size leaves no token out. Neither a
draw nor the likeliest tokens need a pass of their own over the whole vocabulary: both look at stretches of it first,
by their sums and their maxima, and then into few of them.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fairlead_engine.kernels.dispatch import triton_lacks
from fairlead_engine.kernels.staging import to_device
from fairlead_engine.types import SamplingParams

NUCLEUS_WIDTHS = (64, 1024)
"""Top-p looks among so many likeliest tokens first, then among more, and sorts the whole vocabulary only where those do
not suffice: sorting 150,000 logits takes milliseconds per row, and a nucleus is seldom wider."""
_STRETCH = 128
"""Weights whose sum says whether a draw falls among them."""
_CPU_BLOCK = 2**18
"""Logits that a CPU takes through all operations at a time: they stay in its cache."""

_LEAST_TEMPERATURE = 1e-6
"""Below it a draw is an argmax in float32 anyway, and dividing by it must not overflow."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Rows that each need a token."""

    scaled: Tensor
    """float32 [rows, vocab]: logits over temperature, the likeliest token's at 0."""
    params: Many[SamplingParams]
    uniforms: Many[float]
    """In [0, 1)."""

    @property
    def vocab_size(self) -> int:
        return self.scaled.shape[1]

    def pick(self, rows: list[int]) -> "Draws":
        """Only these rows, in ascending order."""
        if len(rows) == len(self.params):
            return self
        return Draws(self.scaled[rows], [self.params[row] for row in rows], [self.uniforms[row] for row in rows])


def draw(logits: Tensor, params: Many[SamplingParams], uniforms: npt.NDArray[np.float64]) -> Tensor:
    """One token id per row of float32 logits [rows, vocab], int64 [rows]; `uniforms` [rows] are in [0, 1).

    On CUDA a kernel does it, which goes through the vocabulary in its own order instead of the likeliest first: so with
    the same seed a GPU and a CPU may choose differently. The other way looks at what it found before it goes on, and so
    waits for a GPU that has no kernel.
    """
    if _has_kernel(logits):
        return _draw_by_kernel(logits, params, uniforms)
    most = max(1, _CPU_BLOCK // logits.shape[1]) if logits.device.type == "cpu" else len(params)
    drawn: list[int] = []
    for first in range(0, len(params), most):
        block = slice(first, first + most)
        drawn += _draw_block(logits[block], params[block], uniforms[block].tolist())
    return to_device(np.array(drawn), logits.device)


def _has_kernel(logits: Tensor) -> bool:
    return logits.is_cuda and triton_lacks() is None


def _draw_by_kernel(logits: Tensor, params: Many[SamplingParams], uniforms: npt.NDArray[np.float64]) -> Tensor:
    """All numbers go to the device in one copy."""
    from fairlead_engine.kernels import draw_kernel

    columns = np.empty((5, len(params)))  # each of them consecutive, as the kernel reads them
    columns[:4] = np.array([(max(p.temperature, _LEAST_TEMPERATURE), p.top_k, p.top_p, p.min_p) for p in params]).T
    columns[4] = uniforms
    temperatures, top_k, top_p, min_p, shares = to_device(columns, logits.device)
    return draw_kernel.draw(logits, temperatures.float(), top_k.int(), top_p.float(), min_p.float(), shares).long()


def _draw_block(logits: Tensor, params: Many[SamplingParams], uniforms: Many[float]) -> list[int]:
    temperatures = _column([max(p.temperature, _LEAST_TEMPERATURE) for p in params], logits)
    draws = Draws((logits - logits.amax(dim=-1, keepdim=True)).div_(temperatures), params, uniforms)
    truncated = [p.top_p < 1.0 or 0 < p.top_k < draws.vocab_size for p in params]
    drawn = [0] * len(params)
    for wanted, method in ((True, _draw_sorted), (False, _draw_dense)):
        rows = [row for row, is_truncated in enumerate(truncated) if is_truncated is wanted]
        if rows:
            _fill(drawn, rows, method(draws.pick(rows)))
    return drawn


def truncate(draws: Draws, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """The weights that top-k, top-p and min-p leave to the `width` likeliest tokens of each row.

    Returns weights [rows, width], best first and 0 where dropped; their token ids [rows, width]; and whether each row's
    candidates are surely all among them [rows].
    """
    scaled, params, vocab_size = draws.scaled, draws.params, draws.vocab_size
    top_k = _column([p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params], scaled)
    top_p = _column([p.top_p if p.top_p < 1.0 else float("inf") for p in params], scaled)
    min_p = _column([p.min_p for p in params], scaled)
    values, token_ids = likeliest(scaled, width)
    values = values.masked_fill(torch.arange(width, device=scaled.device) >= top_k, float("-inf"))
    among = values.logsumexp(-1, keepdim=True)
    if not all(0 < p.top_k <= width for p in params):
        among = torch.where(top_k <= width, among, scaled.logsumexp(-1, keepdim=True))
    probabilities = (values - among).exp()
    cumulative = probabilities.cumsum(dim=-1)
    dropped = (cumulative - probabilities >= top_p) | (probabilities < min_p * probabilities[:, :1])
    dropped[:, 0] = False  # whatever a share too small for float32 rounds to, the likeliest token stays
    complete = (top_k <= width) | (cumulative[:, -1:] >= top_p)
    return probabilities.masked_fill(dropped, 0.0), token_ids, complete.squeeze(-1)


def _draw_sorted(draws: Draws) -> list[int]:
    """Rows with top-k or top-p: among as many likeliest tokens as they probably need, then among more."""
    most = max(p.top_k if 0 < p.top_k < draws.vocab_size else NUCLEUS_WIDTHS[0] for p in draws.params)
    drawn, rows = [0] * len(draws.params), list(range(len(draws.params)))
    for width in (most, *NUCLEUS_WIDTHS[1:], draws.vocab_size):
        if rows and width >= most:
            found, incomplete = _draw_among(draws.pick(rows), min(width, draws.vocab_size))
            _fill(drawn, rows, found)
            rows = [rows[index] for index in incomplete]
    return drawn


def _draw_among(draws: Draws, width: int) -> tuple[list[int], list[int]]:
    """Tokens drawn among each row's `width` likeliest, and the rows for which those do not suffice."""
    weights, token_ids, complete = truncate(draws, width)
    drawn: list[int] = token_ids.gather(1, _invert(weights, draws.uniforms)).squeeze(1).tolist()
    return drawn, [row for row, suffices in enumerate(complete.tolist()) if not suffices]


def _draw_dense(draws: Draws) -> list[int]:
    """Rows that keep the whole vocabulary, or what min-p leaves of it: nothing needs sorting."""
    weights = draws.scaled.exp()
    if any(p.min_p > 0.0 for p in draws.params):
        weights = weights.masked_fill(weights < _column([p.min_p for p in draws.params], weights), 0.0)
    return _invert(weights, draws.uniforms).squeeze(1).tolist()


def likeliest(scaled: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` largest of each row of [rows, vocab], largest first, and their columns, each [rows, width].

    They are all in the stretches with the `width` largest maxima, and in what is left over behind the last stretch.
    """
    vocab_size = scaled.shape[1]
    size = int((vocab_size / width) ** 0.5)
    num_stretches = vocab_size // size
    if size < 2 or num_stretches <= width:
        values, columns = scaled.topk(width, dim=-1)
        return values, columns
    stretches = scaled[:, : num_stretches * size].view(len(scaled), num_stretches, size)
    chosen = stretches.amax(-1).topk(width, dim=-1).indices.unsqueeze(-1)
    found = stretches.gather(1, chosen.expand(-1, -1, size)).flatten(1)
    columns = (chosen * size + torch.arange(size, device=scaled.device)).flatten(1)
    rest = torch.arange(num_stretches * size, vocab_size, device=scaled.device).expand(len(scaled), -1)
    values, places = torch.cat((found, scaled[:, num_stretches * size :]), dim=1).topk(width, dim=-1)
    return values, torch.cat((columns, rest), dim=1).gather(1, places)


def _invert(weights: Tensor, uniforms: Many[float]) -> Tensor:
    """Columns [rows, 1] where each row's cumulative weight first exceeds its uniform's share of the total."""
    num_columns = weights.shape[1]
    whole = num_columns // _STRETCH * _STRETCH
    sums = weights[:, :whole].view(len(weights), whole // _STRETCH, _STRETCH).sum(-1, dtype=torch.float64)
    sums = torch.cat((sums, weights[:, whole:].sum(-1, keepdim=True, dtype=torch.float64)), dim=1)
    cumulative = sums.cumsum(-1)
    shares = torch.tensor(uniforms, dtype=torch.float64, device=weights.device).unsqueeze(1) * cumulative[:, -1:]
    stretch = _first_above(cumulative, shares)
    columns = stretch * _STRETCH + torch.arange(_STRETCH, device=weights.device)
    among = weights.gather(1, columns.clamp(max=num_columns - 1)).masked_fill_(columns >= num_columns, 0.0)
    shares -= (cumulative - sums).gather(1, stretch)
    return columns.gather(1, _first_above(among.cumsum(-1, dtype=torch.float64), shares))


def _first_above(cumulative: Tensor, shares: Tensor) -> Tensor:
    """Columns [rows, 1] where cumulative sums [rows, columns] first exceed shares [rows, 1]; where rounding leaves
    none, the last that adds to the sum, never one of weight 0."""
    last = (cumulative < cumulative[:, -1:]).sum(-1, keepdim=True)
    return torch.searchsorted(cumulative, shares, right=True).minimum(last)


def _column(values: Many[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device).unsqueeze(1)


def _fill(drawn: list[int], rows: list[int], token_ids: list[int]) -> None:
    for row, token_id in zip(rows, token_ids, strict=True):
        drawn[row] = token_id
