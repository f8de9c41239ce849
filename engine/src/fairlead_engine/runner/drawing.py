"""Drawing tokens from logits: temperature, top-k, top-p, min-p, then one uniform number against the cumulative weights.

Random numbers have no state: each is a function of the request and the output position. A seeded request draws the same
numbers whatever runs beside it, after a preemption, and on another replica; inverting the cumulative distribution needs
a single number per token. Sums run in float64: a vocabulary of any size leaves no token out. Nothing sorts a
vocabulary: top-k and the draw look at maxima and sums of stretches first, and then into few stretches; top-p draws
first, and again where it drops the drawn token.
"""

import struct
from collections.abc import Sequence as Many
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fairlead_engine.kernels.dispatch import has_kernels
from fairlead_engine.kernels.staging import to_device
from fairlead_engine.types import SamplingParams

_BITS = 52
"""Bits of a uniform: exact in a float, and its product with a sum never rounds up to the sum."""


def draw_key(seed: int | None, engine_seed: int, request_id: str) -> int:
    """Key of a draw, in 64 bits: of the request's seed; without a seed, of the engine's seed and the request's id."""
    if seed is not None:
        digest = blake2b(struct.pack("<q", seed), digest_size=8, person=b"request")
    else:
        digest = blake2b(struct.pack("<q", engine_seed), digest_size=8, person=b"engine")
        digest.update(request_id.encode())
    return int.from_bytes(digest.digest(), "little")


def uniforms(keys: list[int], positions: list[int]) -> npt.NDArray[np.float64]:
    """For each key the number in [0, 1) that decides the output token at its position, [keys]. The counter-based
    generator SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)."""
    return _drawn(np.array(keys, np.uint64), np.array(positions, np.uint64))


def other_uniforms(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """[rows] in [0, 1), derived from the given numbers, for a second draw."""
    return _drawn(numbers.view(np.uint64), np.uint64(0))


def _drawn(keys: npt.NDArray[np.uint64], counters: npt.NDArray[np.uint64] | np.uint64) -> npt.NDArray[np.float64]:
    state = keys + (counters + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    drawn: npt.NDArray[np.float64] = (state >> np.uint64(64 - _BITS)).astype(np.float64) * 2.0**-_BITS
    return drawn


_STRETCH = 128
"""Weights per partial sum when a draw is located."""
_CPU_BLOCK = 2**18
"""Logits that a CPU takes through all operations at a time: a size that stays in its cache."""

_SPARE_WIDTH = 8
"""Columns beyond the largest top-k that are searched for equals of the last kept token."""

_LEAST_TEMPERATURE = 1e-6
"""A draw below is an argmax in float32 anyway, and the division must not overflow."""

Uniforms = npt.NDArray[np.float64]
"""[rows], in [0, 1)."""


def draw(logits: Tensor, params: Many[SamplingParams], uniforms: Uniforms) -> Tensor:
    """One token id per row of float32 logits [rows, vocab], int64 [rows]. On CUDA a kernel truncates before it draws:
    with the same seed a GPU and a CPU may choose differently. The torch version looks at intermediate results, and
    therefore waits for a GPU without the kernel."""
    if has_kernels(logits):
        return _draw_by_kernel(logits, params, uniforms)
    most = max(1, _CPU_BLOCK // logits.shape[1]) if logits.device.type == "cpu" else len(params)
    blocks = [slice(first, first + most) for first in range(0, len(params), most)]
    return torch.cat([_draw_block(logits[block], params[block], uniforms[block]) for block in blocks])


def _draw_by_kernel(logits: Tensor, params: Many[SamplingParams], uniforms: Uniforms) -> Tensor:
    """One copy to the device."""
    from fairlead_engine.kernels import draw_kernel

    columns = np.empty((5, len(params)))  # each of them consecutive, as the kernel reads them
    columns[:4] = np.array([(max(p.temperature, _LEAST_TEMPERATURE), p.top_k, p.top_p, p.min_p) for p in params]).T
    columns[4] = uniforms
    temperatures, top_k, top_p, min_p, shares = to_device(columns, logits.device)
    settings = temperatures.float(), top_k.int(), top_p.float(), min_p.float()
    truncates = any(p.top_k > 0 or p.top_p < 1.0 for p in params)
    return draw_kernel.draw(logits, *settings, shares, truncates).long()


def _draw_block(logits: Tensor, params: Many[SamplingParams], uniforms: Uniforms) -> Tensor:
    temperatures = _column([max(p.temperature, _LEAST_TEMPERATURE) for p in params], logits)
    scaled = (logits - logits.amax(dim=-1, keepdim=True)).div_(temperatures)
    has_top_k = [0 < p.top_k < logits.shape[1] for p in params]
    if not any(has_top_k):
        return _draw_from_all(scaled, params, uniforms)
    drawn = torch.empty(len(params), dtype=torch.int64, device=logits.device)
    for method, wanted in ((_draw_from_top_k, True), (_draw_from_all, False)):
        rows = [row for row, has in enumerate(has_top_k) if has is wanted]
        if rows:
            drawn[rows] = method(scaled[rows], [params[row] for row in rows], uniforms[rows])
    return drawn


def _draw_from_top_k(scaled: Tensor, params: Many[SamplingParams], uniforms: Uniforms) -> Tensor:
    """int64 [rows], for rows with top-k of scaled logits [rows, vocab], 0 the largest of each. Equals of the last kept
    token are kept too, as in transformers, and equals are in the order of the vocabulary: half precision has many, and
    their order must not depend on other rows' top-k."""
    top_k = torch.tensor([p.top_k for p in params], device=scaled.device).unsqueeze(1)
    top_p = _column([p.top_p if p.top_p < 1.0 else float("inf") for p in params], scaled)
    min_p = _column([p.min_p for p in params], scaled)
    values, token_ids, least = _likeliest_with_equals(scaled, top_k, max(p.top_k for p in params))
    token_ids, order = token_ids.sort(-1)
    values, order = values.gather(1, order).sort(stable=True, dim=-1, descending=True)
    token_ids = token_ids.gather(1, order)
    probabilities = values.masked_fill(values < least, float("-inf")).softmax(-1)
    likelier = probabilities.cumsum(-1) - probabilities
    dropped = (likelier >= top_p) | (probabilities < min_p * probabilities[:, :1])
    dropped[:, 0] = False  # whatever a share too small for float32 rounds to, the likeliest token stays
    return token_ids.gather(1, _invert(probabilities.masked_fill(dropped, 0.0), uniforms)).squeeze(1)


def _draw_from_all(scaled: Tensor, params: Many[SamplingParams], uniforms: Uniforms) -> Tensor:
    """int64 [rows], for rows without top-k of scaled logits [rows, vocab], 0 the largest of each.

    Top-p drops a token if the likelier tokens have the whole share already: a sum over the row for one token, cheaper
    than locating the share's end. After a dropped draw, a likelier token is drawn: each kept token is drawn as often as
    its weight says.
    """
    weights = scaled.exp()
    rows = [row for row, p in enumerate(params) if p.top_p < 1.0]
    all_weights = weights if len(rows) == len(params) else weights[rows]
    share = _column([params[row].top_p for row in rows], scaled) * all_weights.sum(-1, keepdim=True)
    if any(p.min_p > 0.0 for p in params):
        weights = weights.masked_fill(weights < _column([p.min_p for p in params], weights), 0.0)
    drawn = _invert(weights, uniforms)
    where, weights, uniforms = torch.tensor(rows, device=weights.device), all_weights, uniforms[rows]
    while len(where):
        weight = weights.gather(1, drawn[where])
        weights = weights.masked_fill(weights <= weight, 0.0)
        # The likeliest is kept, whatever a share too small for float32 rounds to.
        dropped = ((weights.sum(-1, keepdim=True) >= share) & (weight < 1.0)).squeeze(1)
        where, weights, share = where[dropped], weights[dropped], share[dropped]
        uniforms = other_uniforms(uniforms[dropped.cpu().numpy()])
        drawn[where] = _invert(weights, uniforms)
    return drawn.squeeze(1)


def _likeliest_with_equals(scaled: Tensor, top_k: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Results of `likeliest` that include each row's `top_k` [rows, 1] largest (`most` at most) and all equals of the
    last of them, the third result [rows, 1]; ruled-out tokens equal nothing."""
    width = min(most + _SPARE_WIDTH, scaled.shape[1])
    while True:
        values, token_ids = likeliest(scaled, width)
        least, last = values.gather(1, top_k - 1), values[:, -1:]
        if width == scaled.shape[1] or not bool(((last >= least) & last.isfinite()).any()):
            return values, token_ids, least
        width = min(2 * width, scaled.shape[1])


def likeliest(scaled: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` largest of each row of [rows, vocab], largest first, and their columns, each [rows, width]. All lie
    in the stretches with the `width` largest maxima, or in the rest behind the last stretch."""
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


def _invert(weights: Tensor, uniforms: Uniforms) -> Tensor:
    """Columns [rows, 1] where each row's cumulative weight first exceeds its uniform's share of the total."""
    num_columns = weights.shape[1]
    whole = num_columns // _STRETCH * _STRETCH
    sums = weights[:, :whole].view(len(weights), whole // _STRETCH, _STRETCH).sum(-1, dtype=torch.float64)
    sums = torch.cat((sums, weights[:, whole:].sum(-1, keepdim=True, dtype=torch.float64)), dim=1)
    cumulative = sums.cumsum(-1)
    shares = to_device(uniforms, weights.device).unsqueeze(1) * cumulative[:, -1:]
    stretch = _first_above(cumulative, shares)
    columns = stretch * _STRETCH + torch.arange(_STRETCH, device=weights.device)
    among = weights.gather(1, columns.clamp(max=num_columns - 1)).masked_fill_(columns >= num_columns, 0.0)
    shares -= (cumulative - sums).gather(1, stretch)
    return columns.gather(1, _first_above(among.cumsum(-1, dtype=torch.float64), shares))


def _first_above(cumulative: Tensor, shares: Tensor) -> Tensor:
    """Columns [rows, 1] where cumulative sums [rows, columns] first exceed shares [rows, 1], else the last weight's."""
    last = (cumulative < cumulative[:, -1:]).sum(-1, keepdim=True)
    return torch.searchsorted(cumulative, shares, right=True).minimum(last)


def _column(values: Many[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device).unsqueeze(1)
