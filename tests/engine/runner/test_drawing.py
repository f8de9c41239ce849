"""Draws follow temperature, top-k, top-p and min-p, for every uniform number and every width of the vocabulary."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlead_engine.runner import drawing
from fairlead_engine.runner.drawing import draw_key, uniforms
from fairlead_engine.types import SamplingParams

GRID = 10_000
"""Evenly spaced uniforms that sweep a whole distribution."""

PARAMS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.5),
    SamplingParams(temperature=3.0, top_k=4),
    SamplingParams(temperature=1.0, top_p=0.7),
    SamplingParams(temperature=1.0, min_p=0.2),
    SamplingParams(temperature=1.5, top_k=10, top_p=0.6),
    SamplingParams(temperature=1.5, top_k=6, top_p=0.95, min_p=0.3),
    SamplingParams(temperature=1.0, top_k=-1, top_p=1e-6),
]


def draw(logits: torch.Tensor, params: list[SamplingParams], shares: list[float]) -> list[int]:
    return drawing.draw(logits, params, np.array(shares)).tolist()


def uniform(seed: int | None, position: int, engine_seed: int, request_id: str) -> float:
    return float(uniforms([draw_key(seed, engine_seed, request_id)], [position])[0])


def sweep(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The share of each token over all uniforms, [vocab]."""
    shares = [(index + 0.5) / GRID for index in range(GRID)]
    drawn = draw(logits.expand(GRID, -1), [params] * GRID, shares)
    return torch.bincount(torch.tensor(drawn), minlength=logits.shape[-1]) / GRID


def tolerance(params: SamplingParams) -> float:
    """Of a swept share. Where top-p draws again it is by chance, at most 5 standard deviations."""
    return 2 / GRID if params.top_p == 1.0 or params.top_k > 0 else 2.5 / GRID**0.5


def reference_distribution(logits: list[float], params: SamplingParams) -> list[float]:
    """What transformers keeps, of logits in which no two are equal."""
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    scores = TemperatureLogitsWarper(params.temperature)(None, torch.tensor([logits], dtype=torch.float64))
    if params.top_k > 0:
        scores = TopKLogitsWarper(params.top_k)(None, scores)
    if params.top_p < 1.0:
        scores = TopPLogitsWarper(params.top_p)(None, scores)
    if params.min_p > 0.0:
        scores = MinPLogitsWarper(params.min_p)(None, scores)
    return scores[0].softmax(-1).tolist()


def make_logits(seed: int, vocab: int = 20) -> torch.Tensor:
    return 2 * torch.randn(vocab, generator=torch.Generator().manual_seed(seed))


@pytest.mark.matrix
@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("stretch", [3, 128])
def test_draws_have_the_distribution_the_settings_define(params, stretch, monkeypatch):
    monkeypatch.setattr(drawing, "_STRETCH", stretch)
    for seed in range(5):
        logits = make_logits(seed)
        expected = torch.tensor(reference_distribution(logits.tolist(), params))
        found = sweep(logits, params)
        assert float((found - expected).abs().max()) <= tolerance(params)
        assert bool((found[expected == 0] == 0).all())


def test_tokens_as_likely_as_the_last_one_of_top_k_are_kept():
    """As transformers and the kernel do; however many there are."""
    logits = torch.tensor([4.0, *[3.0] * 30, *[2.0] * 200, float("-inf")])
    for top_k, num_kept in ((1, 1), (2, 31), (31, 31), (32, 231), (231, 231)):
        assert int((sweep(logits, SamplingParams(temperature=5.0, top_k=top_k)) > 0).sum()) == num_kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_draw_does_not_depend_on_the_rows_beside_it(dtype, monkeypatch):
    """In half precision many logits are equal."""
    params = [PARAMS[index % len(PARAMS)] for index in range(50)]
    logits = 2 * torch.randn(50, 300, generator=torch.Generator().manual_seed(0)).to(dtype).float()
    shares = torch.rand(50, generator=torch.Generator().manual_seed(1), dtype=torch.float64).tolist()
    together = draw(logits, params, shares)
    monkeypatch.setattr(drawing, "_CPU_BLOCK", 900)
    assert draw(logits, params, shares) == together
    assert [draw(logits[row : row + 1], [params[row]], [shares[row]])[0] for row in range(50)] == together


def test_top_p_draws_among_few_of_many_tokens_by_their_weights():
    """Nearly equal ones, so that it draws again and again until it finds one that it keeps."""
    logits = torch.linspace(0, 0.1, 2000)[torch.randperm(2000, generator=torch.Generator().manual_seed(0))]
    params = SamplingParams(temperature=1.0, top_p=0.0501)
    expected = torch.tensor(reference_distribution(logits.tolist(), params))
    found = sweep(logits, params)
    assert bool((found[expected == 0] == 0).all())
    kept = int((expected > 0).sum())
    chi_square = float(((found - expected)[expected > 0] ** 2 / expected[expected > 0]).sum()) * GRID
    assert abs(chi_square - kept) < 5 * (2 * kept) ** 0.5


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=40),
    st.floats(0, 1, exclude_max=True),
    st.floats(1e-6, 20),
    st.integers(0, 45),
    st.floats(0.01, 1),
    st.floats(0, 1),
)
@example([-1.1754943508222875e-38, 0.0], 0.0, 1.0, 0, 0.25, 0.0)
def test_a_drawn_token_is_never_one_that_was_dropped(logits, share, temperature, top_k, top_p, min_p):
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    (token_id,) = draw(torch.tensor([logits]), [params], [share])
    best = max(logits)
    scaled = torch.tensor(logits).sub(best).div(temperature)  # in which close ones are equal
    assert top_k == 0 or int((scaled > scaled[token_id]).sum()) < top_k
    if top_k == 0 and top_p < 1.0 and logits[token_id] < best:
        weights = torch.tensor(logits).double().sub(best).div(temperature).exp()
        is_likelier = scaled.exp() > scaled.exp()[token_id]  # in which even more are
        assert float(weights[is_likelier].sum()) <= 1.001 * top_p * float(weights.sum())
    assert logits[token_id] == best or min_p <= 1.01 * torch.tensor((logits[token_id] - best) / temperature).exp()


@pytest.mark.parametrize(
    "smallest", [{"top_p": 0}, {"top_p": 1e-46}, {"top_p": 5e-324}, {"min_p": 1.0}, {"temperature": 5e-324}]
)
def test_the_smallest_values_pick_the_likeliest_token(smallest):
    logits = make_logits(1)
    for seed in range(3):
        logits = make_logits(seed)
        assert draw(logits.unsqueeze(0), [SamplingParams(**smallest)], [0.999]) == [int(logits.argmax())]


def test_suppressed_tokens_are_never_drawn():
    logits = torch.full((1, 6), float("-inf"))
    logits[0, 4] = -3.0
    for params in PARAMS:
        assert draw(logits, [params], [0.999]) == [4]


def test_every_token_of_a_large_flat_vocabulary_can_be_drawn():
    vocab = 150_000
    drawn = draw(torch.zeros(3, vocab), [SamplingParams()] * 3, [0.0, 0.5, 1 - 2.0**-52])
    assert drawn == [0, vocab // 2, vocab - 1]


def test_uniforms_are_a_function_of_seed_and_position():
    assert uniform(5, 9, 0, "a") == uniform(5, 9, 1, "b")
    assert len({uniform(seed, position, 0, "a") for seed in range(-20, 20) for position in range(50)}) == 2000
    assert uniform(None, 9, 0, "a") == uniform(None, 9, 0, "a")
    assert len({uniform(None, n, seed, name) for n in range(20) for seed in range(5) for name in "abc"}) == 300


def test_uniforms_fill_the_unit_interval_evenly_and_independently():
    """Fixed inputs, so fixed results: the limits are what a chi-square of 1 in 1000 allows."""
    values = torch.tensor([[uniform(seed, position, 0, "") for position in range(100)] for seed in range(100)])
    counts = torch.histc(values, bins=50, min=0.0, max=1.0)
    assert float(((counts - 200) ** 2 / 200).sum()) < 85.4
    assert float(values.min()) >= 0.0 and float(values.max()) < 1.0
    for table in (values, values.T):
        neighbours = torch.corrcoef(torch.stack((table[:, :-1].flatten(), table[:, 1:].flatten())))
        assert abs(float(neighbours[0, 1])) < 0.033


@settings(deadline=None)
@given(st.integers(1, 700), st.integers(1, 40), st.sampled_from([3, 10**6]))
def test_the_likeliest_are_found_by_stretches(vocab_size, width, num_values):
    width = min(width, vocab_size)
    draw_value = torch.Generator().manual_seed(vocab_size * width)
    scaled = torch.randint(num_values, (4, vocab_size), generator=draw_value).float()
    scaled[0] = float("-inf")
    values, columns = drawing.likeliest(scaled, width)
    assert torch.equal(values, scaled.topk(width).values)
    assert torch.equal(scaled.gather(1, columns), values)
    assert all(len(set(row)) == width for row in columns.tolist())


def test_a_draw_at_the_very_end_is_a_token_with_weight():
    logits = torch.full((1, 300), float("-inf"))
    logits[0, :150] = torch.randn(150, generator=torch.Generator().manual_seed(0)) * 9
    last = 1.0 - 2.0**-52
    for top_p in (1.0, 0.999999):
        (token_id,) = draw(logits, [SamplingParams(temperature=1.0, top_p=top_p)], [last])
        assert token_id < 150


@pytest.mark.parametrize("params", PARAMS)
def test_the_kernel_draws_by_the_same_settings(params, monkeypatch):
    """In Triton's interpreter, where no CUDA device is."""
    monkeypatch.setattr(drawing, "has_kernels", lambda logits: True)
    monkeypatch.setattr(f"{__name__}.GRID", 20)
    logits = make_logits(3).to("cuda" if torch.cuda.is_available() else "cpu")
    expected = torch.tensor(reference_distribution(logits.tolist(), params))
    found = sweep(logits, params)
    assert float((found - expected).abs().max()) <= 2 / GRID
    assert bool((found[expected == 0] == 0).all())
