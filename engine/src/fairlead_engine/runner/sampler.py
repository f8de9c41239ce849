"""Choosing tokens from logits: masks, bias, penalties, exclusions, suppressed ends, temperature, truncation, the draw;
log-probabilities.

The order is that of transformers: bias, penalties, minimum length, temperature, top-k, top-p, min-p. A grammar's
exclusions precede all of them; top-n-sigma and XTC come before temperature. Log-probabilities are of the raw logits. A
batch in which every sequence is plainly greedy takes one argmax and nothing else. Nothing waits for a GPU: choices stay
there until they are read.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlead_engine.kernels.chosen_tokens import likeliest
from fairlead_engine.kernels.staging import is_on_host, to_device
from fairlead_engine.runner import logit_changes
from fairlead_engine.runner.drawing import draw, draw_key, uniforms
from fairlead_engine.runner.tree_step import with_ways
from fairlead_engine.types import SamplingParams, TokenLogprobs
from fairlead_engine.types.batch import Batch, TokenMasks
from fairlead_engine.types.sequences import NO_TOKEN, RULED_OUT, SampledToken, ScheduledSequence

_XTC = 0x5854_4300_0000_0000
"""Added to a sequence's key for the draw of whether XTC applies."""
_NONE = {each.token_id: each for each in (NO_TOKEN, RULED_OUT)}
Change = Callable[[Tensor, Many[int], Many[ScheduledSequence], Tensor], None]
"""Changes some rows of float32 logits [rows, vocab] in place, each for its item; gets the tokens of all slots, too."""
_CHANGES: tuple[tuple[Callable[[SamplingParams], object], Change], ...] = (
    (lambda params: params.allowed_token_ids, logit_changes.rule_out_others),
    (lambda params: params.bad_words, logit_changes.rule_out_bad_words),
    (logit_changes.is_penalised, logit_changes.penalise),
    (logit_changes.avoids_repetitions, logit_changes.penalise_repetitions),
)
"""Condition and change, in order; `_LAST_CHANGES` come after ends are suppressed."""
_LAST_CHANGES: tuple[tuple[Callable[[SamplingParams], object], Change], ...] = (
    (lambda params: params.top_n_sigma > 0.0, logit_changes.rule_out_far),
)
_ALL_CHANGES = _CHANGES + _LAST_CHANGES


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities of one token per row, and each row's likeliest tokens."""

    token_ids: Tensor
    """int64 [rows]."""
    chosen: Tensor
    """float32 [rows]: the token's own."""
    ranks: Tensor
    """int64 [rows]: how many tokens were likelier."""
    likeliest: Tensor
    """int64 [rows, top], best first."""
    values: Tensor
    """float32 [rows, top]: log-probabilities of `likeliest`."""

    def to(self, place: Callable[[Tensor], Tensor]) -> "Logprobs":
        moved = (self.token_ids, self.chosen, self.ranks, self.likeliest, self.values)
        return Logprobs(*(place(tensor) for tensor in moved))

    def read(self) -> list[TokenLogprobs]:
        """One for each row."""
        columns = (self.token_ids, self.chosen, self.ranks, self.likeliest, self.values)
        return [
            TokenLogprobs(token_id=token_id, logprob=logprob, top=list(zip(*top, strict=True)), rank=rank)
            for token_id, logprob, rank, *top in zip(*(column.tolist() for column in columns), strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A sampler's choice for each row, still on the device."""

    token_ids: Tensor
    """int64 [rows]; the id of `NO_TOKEN` or `RULED_OUT` where no token was chosen."""
    logprobs: dict[int, Logprobs]
    """By row, where asked for."""

    def to(self, place: Callable[[Tensor], Tensor]) -> "Chosen":
        logprobs = {row: each.to(place) for row, each in self.logprobs.items()}
        return Chosen(place(self.token_ids), logprobs)

    def read(self) -> list[SampledToken]:
        """One token for each row; `NO_TOKEN` or `RULED_OUT` where none was chosen."""
        tokens = [SampledToken(token_id) if token_id >= 0 else _NONE[token_id] for token_id in self.token_ids.tolist()]
        for row, logprobs in self.logprobs.items():
            if tokens[row].is_there:
                tokens[row] = SampledToken(tokens[row].token_id, *logprobs.read())
        return tokens


class Sampler:
    """Samples for many independent sequences. Keeps requests' random keys until `forget`, and unchanged slots."""

    def __init__(self, vocab_size: int, eos_token_ids: Iterable[int], seed: int = 0) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._seed = seed
        self._keys: dict[str, int] = {}
        self._unchanged: set[int] = set()
        """Slots without bias, changes and minimum length."""
        self._plain: set[int] = set()
        """Slots of `_unchanged` for plain argmax: greedy, and no further results."""

    def sample(self, logits: Tensor, batch: Batch, slot_tokens: Tensor) -> Chosen:
        """One token per row of logits [rows, vocab], in the order of the batch's `choices`; each predicts the token at
        its item's end.

        `slot_tokens` int32 [slots, columns] holds the sequences' tokens up to the end. A row whose largest logit is not
        finite gets no token, and `RULED_OUT` where the request is the cause; other rows are not affected.
        """
        self._note(batch)
        masks = batch.masks() if batch.masks is not None else None
        ending = [item.sequence.slot for item in batch.chunks if item.samples]
        if self._plain.issuperset(batch.decodes.slots.tolist() + ending):
            return Chosen(likeliest(logits), {})
        logits, items = logits.float(), batch.choices
        adjusted = self._adjust(logits if masks is None else _masked(logits, masks), items, slot_tokens)
        token_ids = self._choose(adjusted, items)
        if adjusted is not logits:
            token_ids = _with_blame(token_ids, logits)
        logprobs = {
            row: rank_tokens(logits[row : row + 1], token_ids[row : row + 1].clamp(min=0), num_top)
            for row, item in enumerate(items)
            if (num_top := item.sequence.sampling.logprobs) is not None
        }
        return Chosen(token_ids, logprobs)

    def changed(self, logits: Tensor, batch: Batch, slot_tokens: Tensor) -> Tensor:
        """Logits as `sample` changes them before the choice of a token, without grammars."""
        self._note(batch)
        if self._unchanged.issuperset(item.sequence.slot for item in batch.chunks):
            return logits
        return self._adjust(logits.float(), batch.choices, slot_tokens)

    def forget(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._keys.pop(request_id, None)

    def _note(self, batch: Batch) -> None:
        """Notes the slots of a prompt's wishes; every sequence has a prompt before it decodes in the same slot."""
        for item in batch.chunks:
            slot, params = item.sequence.slot, item.sequence.sampling
            self._unchanged.discard(slot)
            self._plain.discard(slot)
            if not (params.logit_bias or params.min_tokens or any(wants(params) for wants, _ in _ALL_CHANGES)):
                self._unchanged.add(slot)
                if params.greedy and params.logprobs is None and params.grammar is None and params.thinking is None:
                    self._plain.add(slot)

    def _adjust(self, logits: Tensor, items: Many[ScheduledSequence], slot_tokens: Tensor) -> Tensor:
        """Applies bias, changes and suppressed ends, on a copy as soon as any sequence needs them."""
        biases: list[tuple[int, int, float]] = []
        suppressed: list[tuple[int, int, float]] = []
        wanted: dict[Change, list[int]] = {}
        bound: list[int] = []
        for row, item in enumerate(items):
            params = item.sequence.sampling
            if item.sequence.slot in self._unchanged:
                continue
            biases += [(row, token_id, bias) for token_id, bias in params.logit_bias.items()]
            for wants, change in _ALL_CHANGES:
                if wants(params):
                    wanted.setdefault(change, []).append(row)
            if ends := self._suppressed(item):
                suppressed += [(row, token_id, float("-inf")) for token_id in ends]
                bound += [row] if params.grammar is not None else []
        if not (biases or wanted or suppressed):
            return logits

        if wanted:
            slot_tokens = with_ways([items[row] for row in sorted(set().union(*wanted.values()))], slot_tokens)

        def make(changes: Many[tuple[Any, Change]]) -> None:
            for _, change in changes:
                if rows := wanted.get(change):
                    change(adjusted, rows, [items[row] for row in rows], slot_tokens)

        adjusted = _add(logits.clone(), biases)
        make(_CHANGES)
        adjusted = _suppress(adjusted, suppressed, bound)
        make(_LAST_CHANGES)
        return adjusted

    def _choose(self, logits: Tensor, items: Many[ScheduledSequence]) -> Tensor:
        """The likeliest token of greedy sequences, a drawn token of all others, -1 without one."""
        found = likeliest(logits)
        # Rows without a choice are left out where it costs nothing to know them.
        is_there = (found >= 0).tolist() if is_on_host(logits) else [True] * len(items)
        rows = [row for row, item in enumerate(items) if not item.sequence.sampling.greedy and is_there[row]]
        if not rows:
            return found
        if len(rows) == len(items):
            return self._draw(logits, items).where(found >= 0, -1)
        where = to_device(np.array(rows), logits.device)
        drawn = self._draw(logits[where], [items[row] for row in rows])
        return found.index_copy(0, where, drawn.where(found[where] >= 0, -1))

    def _draw(self, logits: Tensor, items: Many[ScheduledSequence]) -> Tensor:
        positions, params = [item.num_output_tokens for item in items], [item.sequence.sampling for item in items]
        keys = [self._key(item) for item in items]
        if any(each.xtc_probability for each in params):
            logits = logit_changes.rule_out_top(logits, params, uniforms([key ^ _XTC for key in keys], positions))
        return draw(logits, params, uniforms(keys, positions))

    def _key(self, item: ScheduledSequence) -> int:
        request_id = item.sequence.request_id
        if (key := self._keys.get(request_id)) is None:
            key = self._keys[request_id] = draw_key(item.sequence.sampling.seed, self._seed, request_id)
        return key

    def _suppressed(self, item: ScheduledSequence) -> list[int]:
        """Tokens that would end a sequence before its minimum length."""
        params = item.sequence.sampling
        if item.num_output_tokens >= params.min_tokens:
            return []
        ends = set(params.stop_token_ids)
        if not params.ignore_eos:
            ends.update(self._eos_token_ids)
        return [token_id for token_id in ends if token_id < self._vocab_size]


def rank_tokens(logits: Tensor, token_ids: Tensor, num_top: int) -> Logprobs:
    """Log-probabilities of one token (int64 [rows]) per row of logits [rows, vocab]."""
    logprobs = logits.log_softmax(dim=-1)
    chosen = logprobs.gather(1, token_ids.unsqueeze(1))
    values, likeliest = logprobs.topk(min(num_top, logprobs.shape[1]), dim=-1)
    return Logprobs(token_ids, chosen.squeeze(1), (logprobs > chosen).sum(-1), likeliest, values)


def _add(logits: Tensor, changes: list[tuple[int, int, float]]) -> Tensor:
    """Adds to single logits in place: (row, token id, value)."""
    if changes:
        rows, token_ids, values = zip(*changes, strict=True)
        places = to_device(np.array([rows, token_ids]), logits.device)
        values_on_device = to_device(np.array(values, np.float32), logits.device)
        logits.index_put_((places[0], places[1]), values_on_device, accumulate=True)
    return logits


def _suppress(logits: Tensor, ends: list[tuple[int, int, float]], bound: list[int]) -> Tensor:
    """Rules out ends in place, except in rows of `bound` (with a grammar) with nothing else left."""
    if not bound:
        return _add(logits, ends)
    rows = to_device(np.array(bound), logits.device)
    before = logits[rows]
    after = _add(logits, ends)[rows]
    is_nothing_left = after.amax(-1, keepdim=True) == float("-inf")
    return logits.index_copy_(0, rows, before.where(is_nothing_left, after))


def _masked(logits: Tensor, masks: TokenMasks) -> Tensor:
    """A copy without the forbidden tokens."""
    rows = to_device(masks.rows, logits.device)
    bits = to_device(masks.words.view(np.uint8), logits.device).unsqueeze(-1) & _bit_values(logits.device)
    is_ruled_out = (bits == 0).flatten(1)[:, : logits.shape[1]]
    return logits.index_copy(0, rows, logits[rows].masked_fill_(is_ruled_out, float("-inf")))


@cache
def _bit_values(device: torch.device) -> Tensor:
    """uint8 [8]: the values of a byte's bits."""
    return 2 ** torch.arange(8, dtype=torch.uint8, device=device)


def _with_blame(token_ids: Tensor, logits: Tensor) -> Tensor:
    """int64 [rows], with `RULED_OUT` where the model's own logits would have had a token."""
    if is_on_host(token_ids) and bool((token_ids >= 0).all()):
        return token_ids
    is_ruled_out = (token_ids < 0) & logits.amax(-1).isfinite()
    return token_ids.masked_fill(is_ruled_out, RULED_OUT.token_id)
