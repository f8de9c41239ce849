"""Repetitions, bad words, allowed tokens and cuts, against what defines them, written out, and transformers."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from fairlead_engine.runner import logit_changes
from fairlead_engine.runner.logit_changes import (
    penalise_repetitions,
    rule_out_bad_words,
    rule_out_far,
    rule_out_others,
    rule_out_top,
)
from fairlead_engine.runner.slot_tokens import SlotTokens
from fairlead_engine.runner.step_plan import SentSlots
from fairlead_engine.types import SamplingParams
from fairlead_engine.types.batch import Batch
from fairlead_engine.types.sequences import ScheduledSequence, Sequence

VOCAB = 12


def changed(change: Any, logits: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    """What a change makes of a row for each sequence, of rows that others lie between."""
    tokens = SlotTokens(len(sequences), 10_000, torch.device("cpu"))
    for slot, sequence in enumerate(sequences):
        sequence.slot = slot
    items = [ScheduledSequence(sequence, sequence.num_tokens) for sequence in sequences]
    tokens.add(SentSlots(len(sequences)).new_tokens(Batch(items)))
    tokens.rows[:, max(sequence.num_tokens for sequence in sequences) :] = VOCAB - 1  # what is beyond is anything
    spread = torch.full((2 * len(sequences), logits.shape[1]), 77.0)
    spread[::2] = logits
    change(spread, [*range(0, len(spread), 2)], items, tokens.rows)
    assert (spread[1::2] == 77.0).all()
    return spread[::2]


def dry(tokens: list[int], params: SamplingParams) -> dict[int, float]:
    """Penalties by token, as text-generation-webui's loop finds them."""
    width = 4096 if params.dry_penalty_last_n < 0 else params.dry_penalty_last_n
    tokens, breakers = tokens[max(0, len(tokens) - width) :], set(params.dry_sequence_breakers)
    found: dict[int, int] = {}
    if not tokens or tokens[-1] in breakers:
        return {}
    for place, token in enumerate(tokens[:-1]):
        following = tokens[place + 1]
        if token != tokens[-1] or following in breakers:
            continue
        length = 1
        while length < 50 and place - length >= 0:
            earlier = tokens[-1 - length]
            if tokens[place - length] != earlier or earlier in breakers:
                break
            length += 1
        found[following] = max(found.get(following, 0), length)
    return {
        token: params.dry_multiplier * params.dry_base ** (length - params.dry_allowed_length)
        for token, length in found.items()
        if length >= params.dry_allowed_length
    }


@pytest.mark.parametrize("seed", range(30))
def test_repetitions_are_penalised_as_the_definition_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    if seed % 2:
        monkeypatch.setattr(logit_changes, "_MOST_COMPARED", 300)
    sequences = []
    for _ in range(9):
        words = [[draw.randrange(VOCAB) for _ in range(draw.randint(1, 30))] for _ in range(3)]
        tokens = [token for _ in range(draw.randint(1, 12)) for token in draw.choice(words)][: draw.choice([1, 2, 400])]
        params = SamplingParams(
            dry_multiplier=draw.choice([0.5, 3.0]), dry_base=draw.choice([1.0, 1.2, 1.75]),
            dry_allowed_length=draw.choice([0, 1, 2, 5]), dry_penalty_last_n=draw.choice([-1, 1, 2, 20, 100]),
            dry_sequence_breakers=tuple(draw.sample(range(VOCAB), draw.choice([0, 0, 1, 3]))),
        )  # fmt: skip
        sequences.append(Sequence("r", tokens, draw.randint(1, len(tokens)), params))
    logits = torch.randn(len(sequences), VOCAB)
    found = changed(penalise_repetitions, logits, sequences)
    for row, sequence in enumerate(sequences):
        expected = logits[row].clone()
        for token, penalty in dry(sequence.token_ids, sequence.sampling).items():
            expected[token] -= penalty
        torch.testing.assert_close(found[row], expected, rtol=1e-5, atol=1e-4)


def test_the_longest_repetitions_leave_numbers() -> None:
    params = SamplingParams(dry_multiplier=100.0, dry_base=10.0)
    found = changed(penalise_repetitions, torch.zeros(1, VOCAB), [Sequence("r", [3] * 9000, 5, params)])
    assert found.isfinite().all()
    assert found[0].argmin() == 3


@pytest.mark.parametrize("seed", range(10))
def test_bad_words_are_ruled_out_as_by_transformers(seed: int) -> None:
    from transformers import NoBadWordsLogitsProcessor

    draw = random.Random(seed)
    sequences = []
    for _ in range(6):
        words = {tuple(draw.randrange(4) for _ in range(draw.randint(1, 4))) for _ in range(4)}
        output = [draw.randrange(4) for _ in range(draw.choice([0, 1, 2, 30]))]
        sequences.append(Sequence("r", [9, 8, *output], 2, SamplingParams(bad_words=tuple(words))))
    logits = torch.randn(len(sequences), VOCAB)
    found = changed(rule_out_bad_words, logits, sequences)
    for row, sequence in enumerate(sequences):
        reference = NoBadWordsLogitsProcessor([list(word) for word in sequence.sampling.bad_words])
        expected = reference(torch.tensor([sequence.token_ids]), logits[row : row + 1].clone())[0]
        assert torch.equal(found[row], expected)


def test_words_that_began_in_the_prompt_are_not_ruled_out() -> None:
    sequence = Sequence("r", [1, 2, 3], 2, SamplingParams(bad_words=((2, 3, 4), (3, 5), (1, 2, 3, 6))))
    found = changed(rule_out_bad_words, torch.zeros(1, VOCAB), [sequence])
    assert found[0].isinf().nonzero().flatten().tolist() == [5]


def test_only_allowed_tokens_are_left() -> None:
    logits = torch.randn(2, VOCAB)
    allowed = [(3,), (1, 5, 5, 7)]
    sequences = [Sequence("r", [1], 1, SamplingParams(allowed_token_ids=ids)) for ids in allowed]
    found = changed(rule_out_others, logits, sequences)
    for row, ids in enumerate(allowed):
        assert found[row].isfinite().nonzero().flatten().tolist() == sorted(set(ids))
        assert torch.equal(found[row, list(ids)], logits[row, list(ids)])


def test_what_is_far_below_the_likeliest_is_ruled_out() -> None:
    logits = torch.randn(3, VOCAB)
    logits[1, :5] = float("-inf")
    logits[2] = float("-inf")
    sequences = [Sequence("r", [1], 1, SamplingParams(top_n_sigma=sigma)) for sigma in (1.0, 0.5, 1.0)]
    found = changed(rule_out_far, logits, sequences)
    for row, sigma in ((0, 1.0), (1, 0.5)):
        there = logits[row][logits[row].isfinite()]
        kept = logits[row] >= there.max() - sigma * there.std(correction=0)
        assert torch.equal(found[row].isfinite(), kept & logits[row].isfinite())
    assert torch.equal(found[2], logits[2])


def test_the_likeliest_are_left_out_but_the_least_likely_of_them_as_often_as_asked_for() -> None:
    shares = torch.tensor([[0.4, 0.3, 0.2, 0.06, 0.04]]).repeat(5, 1)
    each = {"xtc_probability": 0.5}
    params = [
        SamplingParams(xtc_threshold=0.1, **each), SamplingParams(xtc_threshold=0.1, **each),
        SamplingParams(xtc_threshold=0.35, **each), SamplingParams(xtc_threshold=0.0, xtc_probability=1.0),
        SamplingParams(),
    ]  # fmt: skip
    found = rule_out_top(shares.log(), params, np.array([0.49, 0.5, 0.0, 0.99, 0.0]))
    left = [row.isfinite().nonzero().flatten().tolist() for row in found]
    assert left == [[2, 3, 4], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [4], [0, 1, 2, 3, 4]]
