"""What the sampler does to logits, against the formulas written out and against transformers' processors."""

import math
import random

import pytest
import torch

from fairlead_engine.runner.sampler import Sampler
from fairlead_engine.runner.slot_tokens import SlotTokens
from fairlead_engine.runner.step_plan import SentSlots
from fairlead_engine.runner.tree_step import with_ways
from fairlead_engine.types import SamplingParams
from fairlead_engine.types.batch import Batch
from fairlead_engine.types.sequences import NO_TOKEN, RULED_OUT, SampledToken, ScheduledSequence, Sequence

VOCAB = 50
EOS = 7


def make_sequence(sampling: SamplingParams, prompt: list[int] | None = None, output: list[int] | None = None, name="r"):
    prompt = [1, 2, 3] if prompt is None else prompt
    return Sequence(name, prompt + (output or []), len(prompt), sampling)


def make_logits(rows: int = 1, seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    return 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def make_sampler(seed: int = 0, vocab: int = VOCAB) -> Sampler:
    return Sampler(vocab, (EOS,), seed)


def sample(sampler: Sampler, logits: torch.Tensor, sequences: list[Sequence]) -> list[SampledToken]:
    """What is chosen for sequences that were computed up to their last token."""
    tokens = SlotTokens(len(sequences), 512, torch.device("cpu"))
    for slot, sequence in enumerate(sequences):
        sequence.slot = slot
    items = [ScheduledSequence(sequence, sequence.num_tokens) for sequence in sequences]
    batch = Batch(items)
    tokens.add(SentSlots(len(sequences)).new_tokens(batch))
    return sampler.sample(logits, batch, tokens.rows).read()


def choose(logits: torch.Tensor, sequence: Sequence) -> int:
    (token,) = sample(make_sampler(), logits, [sequence])
    return token.token_id


def greedy(**settings) -> SamplingParams:
    return SamplingParams(temperature=0.0, **settings)


def reference_penalties(
    logits: list[float], prompt: list[int], output: list[int], params: SamplingParams
) -> list[float]:
    penalised = []
    for token, logit in enumerate(logits):
        if token in prompt + output:
            logit = logit / params.repetition_penalty if logit > 0 else logit * params.repetition_penalty
        count = output.count(token)
        penalised.append(logit - params.frequency_penalty * count - params.presence_penalty * (count > 0))
    return penalised


def test_greedy_takes_the_likeliest_token_of_each_row():
    logits = make_logits(5).to(torch.bfloat16)
    tokens = sample(make_sampler(), logits, [make_sequence(greedy()) for _ in range(5)])
    assert [token.token_id for token in tokens] == logits.float().argmax(-1).tolist()
    assert all(token.logprobs is None for token in tokens)


INFINITE = {"NaN": math.nan, "infinity": math.inf, "nothing left": -math.inf}


@pytest.mark.parametrize("spoilt", INFINITE)
@pytest.mark.parametrize(
    "sampling", [greedy(), greedy(logprobs=2), SamplingParams(top_p=0.9, seed=1), SamplingParams()]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_that_is_not_finite_gets_no_token_and_the_others_theirs(spoilt, sampling, dtype):
    logits = make_logits(3).to(dtype)
    sequences = [make_sequence(sampling, name=name) for name in "abc"]
    expected = sample(make_sampler(), logits.clone(), sequences)
    if spoilt == "nothing left":
        logits[1] = -math.inf
    else:
        logits[1, 20] = INFINITE[spoilt]
    first, second, third = sample(make_sampler(), logits, sequences)
    assert second is NO_TOKEN
    assert [first, third] == [expected[0], expected[2]]


def test_who_rules_every_token_out_gets_none():
    wants = greedy(stop_token_ids=tuple(range(VOCAB)), min_tokens=3)
    (token,) = sample(make_sampler(), make_logits(1), [make_sequence(wants)])
    assert token is RULED_OUT
    logits = make_logits(3)
    logits[1] = math.nan
    found = sample(
        make_sampler(), logits, [make_sequence(params, name=str(params)) for params in (wants, wants, greedy())]
    )
    assert found[:2] == [RULED_OUT, NO_TOKEN], "whose logits are no numbers is not to blame"
    assert found[2].is_there


def test_the_smallest_repetition_penalty_takes_the_likeliest_of_the_seen_tokens():
    logits = make_logits(1)
    logits[0, 1:4] = torch.tensor([1.0, 3.0, 2.0])
    for sampling in (greedy(repetition_penalty=5e-324), SamplingParams(repetition_penalty=5e-324)):
        assert choose(logits, make_sequence(sampling, prompt=[1, 2, 3])) == 2


def test_no_rows_give_no_tokens():
    assert sample(make_sampler(), torch.empty(0, VOCAB), []) == []


@pytest.mark.parametrize(
    "penalties",
    [
        {"presence_penalty": 1.5},
        {"frequency_penalty": 0.7},
        {"repetition_penalty": 1.8},
        {"repetition_penalty": 0.6},
        {"presence_penalty": -2.0, "frequency_penalty": -1.0, "repetition_penalty": 1.3},
    ],
)
def test_penalties_follow_their_formulas_at_every_step(penalties):
    params, prompt, output = greedy(**penalties), [1, 2, 3, 3, 9], []
    sampler = make_sampler()
    for position in range(30):
        logits = make_logits(seed=position % 3)
        (token,) = sample(sampler, logits.clone(), [make_sequence(params, prompt, output)])
        expected = reference_penalties(logits[0].tolist(), prompt, output, params)
        assert token.token_id == max(range(VOCAB), key=expected.__getitem__)
        output.append(token.token_id)


def test_a_long_sequence_costs_short_ones_beside_it_nothing(monkeypatch):
    """Rows are padded to similar ones, so that a step looks at a few times the tokens there are."""
    draw, plain, looked_at = random.Random(0), torch.searchsorted, []
    sequences = [
        make_sequence(
            greedy(frequency_penalty=1.5, logprobs=0), output=draw.choices(range(VOCAB), k=length), name=str(row)
        )
        for row, length in enumerate([20, 9000, 30, 600, 700, 1500, 25, 40] + [10] * 40)
    ]
    logits = make_logits(len(sequences))
    alone = [choose(logits[row : row + 1], sequence) for row, sequence in enumerate(sequences)]

    def counted(outputs: torch.Tensor, token_ids: torch.Tensor, **options) -> torch.Tensor:
        looked_at.append(token_ids.numel())
        return plain(outputs, token_ids, **options)

    monkeypatch.setattr(torch, "searchsorted", counted)
    assert [token.token_id for token in sample(make_sampler(), logits, sequences)] == alone
    assert sum(looked_at) <= 2 * 4 * sum(sequence.num_tokens for sequence in sequences)


def test_forgotten_counts_are_taken_again_from_the_sequence():
    sampler, logits = make_sampler(), make_logits(seed=2)
    likeliest = int(logits[0].argmax())
    sequence = make_sequence(greedy(frequency_penalty=2.0), output=[likeliest] * 20)
    before = sample(sampler, logits, [sequence])[0].token_id
    sampler.forget(["r", "never heard of"])
    assert sample(sampler, logits, [sequence])[0].token_id == before != likeliest
    sampler.forget(["r"])
    fresh = make_sequence(greedy(frequency_penalty=2.0))
    assert sample(sampler, logits, [fresh])[0].token_id == likeliest


def test_ends_are_suppressed_until_min_tokens():
    logits = make_logits(seed=3)
    logits[0, EOS], logits[0, 11] = 100.0, 90.0
    params = greedy(min_tokens=2, stop_token_ids=(11, 10_000))
    assert choose(logits, make_sequence(params, output=[4])) not in (EOS, 11)
    assert choose(logits, make_sequence(params, output=[4, 5])) == EOS


def test_an_ignored_end_of_sequence_need_not_be_suppressed():
    logits = make_logits(seed=3)
    logits[0, EOS] = 100.0
    assert choose(logits, make_sequence(greedy(min_tokens=5, ignore_eos=True))) == EOS


def test_log_probabilities_are_those_of_the_raw_logits():
    logits = make_logits(seed=5)
    expected = logits[0].double().log_softmax(-1)
    likeliest = expected.argsort(descending=True).tolist()
    params = greedy(logprobs=3, presence_penalty=2.0, frequency_penalty=2.0)
    sequence = make_sequence(params, output=likeliest[:1] * 9)
    (token,) = sample(make_sampler(), logits, [sequence])
    assert token.token_id == token.logprobs.token_id == likeliest[1]
    assert token.logprobs.rank == 1
    assert token.logprobs.logprob == pytest.approx(float(expected[likeliest[1]]), abs=1e-5)
    assert [token_id for token_id, _ in token.logprobs.top] == likeliest[:3]
    assert [value for _, value in token.logprobs.top] == pytest.approx(expected[likeliest[:3]].tolist(), abs=1e-5)


def test_no_alternatives_and_more_than_the_vocabulary_are_both_answered():
    logits = make_logits(seed=6, vocab=10)
    sampler = make_sampler(vocab=10)
    none, many = sample(
        sampler, logits.repeat(2, 1), [make_sequence(greedy(logprobs=0)), make_sequence(greedy(logprobs=20))]
    )
    assert none.logprobs.top == [] and none.logprobs.rank == 0
    assert len(many.logprobs.top) == 10
    assert math.fsum(math.exp(value) for _, value in many.logprobs.top) == pytest.approx(1.0, abs=1e-5)


def test_a_mixed_batch_gives_each_sequence_what_it_gets_alone():
    settings = [
        greedy(),
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=0.7, top_k=5, seed=2),
        greedy(repetition_penalty=1.5),
        SamplingParams(temperature=1.3, top_p=0.8, seed=3),
        SamplingParams(temperature=1.0, min_p=0.1, seed=4),
        SamplingParams(temperature=2.0, top_k=9, top_p=0.9, min_p=0.02, presence_penalty=1.0, logprobs=2, seed=5),
    ]
    for round_ in range(20):
        logits = make_logits(len(settings), seed=round_)
        sequences = [
            make_sequence(params, output=list(range(round_)), name=str(index)) for index, params in enumerate(settings)
        ]
        together = sample(make_sampler(), logits, sequences)
        alone = [sample(make_sampler(), logits[i : i + 1], [sequence])[0] for i, sequence in enumerate(sequences)]
        assert [token.token_id for token in together] == [token.token_id for token in alone]


def test_a_seed_decides_the_draws_whatever_engine_and_request():
    logits, params = make_logits(seed=8), SamplingParams(temperature=5.0, seed=42)
    draws = [
        [
            sample(make_sampler(seed=engine_seed), logits, [make_sequence(params, output=[0] * n, name=name)])[
                0
            ].token_id
            for n in range(50)
        ]
        for engine_seed, name in ((0, "a"), (1, "b"))
    ]
    assert draws[0] == draws[1]
    assert len(set(draws[0])) > 10


def test_requests_without_a_seed_draw_differently():
    logits, params = make_logits(seed=8), SamplingParams(temperature=5.0)

    def draws(engine_seed: int, name: str) -> list[int]:
        sampler = make_sampler(seed=engine_seed)
        return [
            sample(sampler, logits, [make_sequence(params, output=[0] * n, name=name)])[0].token_id for n in range(50)
        ]

    assert draws(0, "a") == draws(0, "a")
    assert draws(0, "a") != draws(0, "b")
    assert draws(0, "a") != draws(1, "a")


def test_the_ways_through_a_tree_take_no_more_columns_than_there_are_tokens():
    """Rows are as long as the longest context that there may be; a guess of a way may lie behind where that ends."""
    rows = torch.arange(2 * 1000, dtype=torch.int32).view(2, 1000)
    sequence = make_sequence(SamplingParams(presence_penalty=1.0), prompt=[1, 2, 3], output=[4])
    sequence.slot, sequence.num_computed_tokens = 1, 3
    tree = ScheduledSequence(sequence, 7, drafts=[9] * 6, depth=2)
    tree.parents = [0, 0, 0, 1, 3, 3]
    choices = Batch([tree]).choices
    found = with_ways(choices, rows)
    assert found.shape[1] == max(each.end for each in choices) == 6
    for each in choices:
        places = [0, 1, 2, 3, *(3 + node for node in each.way)]
        assert found[each.token_row, : each.end].tolist() == [1000 + place for place in places]
    assert with_ways(choices[:2], rows) is rows, "as they lie"
