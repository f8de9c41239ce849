"""The drawing kernel against the distribution that its settings define, and as code for a GPU."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_engine_testing.devices import on_each_device
from fairlead_engine_testing.gpu_code import compiled


def kept_weights(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> list[float]:
    """Written out: what is as likely as the k-th, of that what it takes to reach top_p, of that what min_p leaves."""
    scaled = [logit / temperature for logit in logits]
    weights = [math.exp(each - max(scaled)) for each in scaled]
    if 0 < top_k < len(weights):
        least = sorted(weights, reverse=True)[top_k - 1]
        weights = [weight if weight >= least else 0.0 for weight in weights]
    if top_p < 1.0:
        wanted, reached = top_p * sum(weights), 0.0
        for least in sorted(weights, reverse=True):
            reached += least
            if reached >= wanted:
                break
        weights = [weight if weight >= least else 0.0 for weight in weights]
    return [weight if weight >= min_p else 0.0 for weight in weights]


def draw(logits: torch.Tensor, uniforms: list[float], temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> list[int]:
    """One token of the same logits [vocab] for each uniform."""
    from fairlead_engine.kernels import draw_kernel

    num_rows, device = len(uniforms), logits.device

    def column(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full((num_rows,), value, dtype=dtype, device=device)

    drawn = draw_kernel.draw(
        logits.expand(num_rows, -1),
        column(temperature),
        column(top_k, torch.int32),
        column(top_p),
        column(min_p),
        torch.tensor(uniforms, dtype=torch.float64, device=device),
    )
    return drawn.tolist()


@on_each_device
@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 1000),
    vocab_size=st.sampled_from([1, 2, 17, 2500, 5000]),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 5, 2000]),
    top_p=st.sampled_from([1.0, 0.9, 0.35, 1e-6]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
)
def test_every_share_of_the_weight_has_its_token(device, seed, vocab_size, temperature, top_k, top_p, min_p):
    logits = 3 * torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed))
    weights = kept_weights(logits.tolist(), temperature, top_k, top_p, min_p)
    uniforms = [0.0, 0.2, 0.77, 1 - 2**-40]
    drawn = draw(logits.to(device), uniforms, temperature, top_k, top_p, min_p)
    total = sum(weights)
    for uniform, token_id in zip(uniforms, drawn, strict=True):
        below = sum(weights[:token_id])
        assert weights[token_id] > 0.0
        assert below / total <= uniform + 1e-5
        assert uniform <= (below + weights[token_id]) / total + 1e-5


@on_each_device
def test_ties_and_what_is_ruled_out(device):
    logits = torch.tensor([1.0, float("-inf"), 2.0, 2.0, 0.0, 2.0], device=device)
    uniforms = [0.1, 0.5, 0.9]
    assert draw(logits, uniforms, top_k=2) == [2, 3, 5]
    assert draw(logits, uniforms, top_p=0.01) == [2, 3, 5]
    assert draw(logits.half(), uniforms, temperature=1e-6) == [2, 3, 5]


@on_each_device
@pytest.mark.parametrize(
    ("temperature", "limits"),
    [
        (1e-6, {"top_p": 0.9}), pytest.param(1.0, {"top_p": 0.9}, marks=pytest.mark.compute),
        (1e4, {"top_k": 30, "top_p": 0.6, "min_p": 0.1}),
    ],
)  # fmt: skip
def test_hostile_rows(device, temperature, limits):
    """Rows of equals, of few tokens that a grammar leaves, near and far apart, or of half precision's many ties."""
    noise = torch.randn(4500, generator=torch.Generator().manual_seed(0)).to(device)
    left = torch.full_like(noise, float("-inf"))
    left[[5, 4095, 4096, 4499]] = torch.tensor([-3.0, -2.0, -2.0, -60.0], device=device)
    for logits in (torch.zeros_like(noise), left, 1e-3 * noise, 1e4 * noise, (4 * noise).bfloat16()):
        weights = kept_weights(logits.tolist(), temperature, **{"top_k": 0, "top_p": 1.0, "min_p": 0.0, **limits})
        total = sum(weights)
        first, last = draw(logits, [0.0, 1 - 2**-52], temperature, **limits)
        assert weights[first] > 0.0 and sum(weights[:first]) <= 1e-5 * total
        assert weights[last] > 0.0 and sum(weights[last + 1 :]) <= 1e-5 * total


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, of NaN
@on_each_device
@pytest.mark.parametrize("spoilt", [float("nan"), float("inf"), float("-inf")])
def test_a_row_without_finite_weights_gets_some_token(device, spoilt):
    logits = torch.zeros(5000, device=device)
    logits[4500 if spoilt > 0 or spoilt != spoilt else slice(None)] = spoilt
    for limits in ({}, {"top_k": 3}, {"top_p": 0.9, "min_p": 0.1}):
        assert 0 <= draw(logits, [0.7], **limits)[0] < 5000


@on_each_device
def test_rows_with_and_without_truncation_are_drawn_beside_each_other(device):
    from fairlead_engine.kernels import draw_kernel

    logits = torch.randn(4, 5000, generator=torch.Generator().manual_seed(0)).to(device)
    columns = ([1.0, 0.5, 2.0, 1.0], [0, 9, 0, 60], [1.0, 1.0, 0.7, 0.9], [0.0, 0.2, 0.0, 0.0])
    settings = [torch.tensor(column, device=device) for column in columns]
    settings[1] = settings[1].int()
    uniforms = torch.tensor([0.3, 0.9, 0.99, 0.6], dtype=torch.float64, device=device)
    together = draw_kernel.draw(logits, *settings, uniforms)
    for row in range(4):
        alone = [column[row : row + 1] for column in (*settings, uniforms)]
        assert draw_kernel.draw(logits[row : row + 1], *alone, truncates=row > 0).equal(together[row : row + 1])


COMPILE = """
from fairlead_engine.kernels import draw_kernel as kernels
from fairlead_engine_testing.gpu_code import compile_for_gpu, tell

floats = "temperatures top_ps amounts highest candidates farthest"
types = dict.fromkeys(floats.split(), "*fp32") | dict.fromkeys(("uniforms", "sums"), "*fp64") | {"logits": "*fp32"}
types |= dict(token_ids="*i32", top_ks="*i32", row_stride="i32", VOCAB_SIZE="i32", num_parts="i32")
measure = dict(PART=kernels._PART, EDGES=kernels._NUM_EDGES, LANES=32 * kernels._NUM_WARPS)
cut = dict(
    PADDED_PARTS=64, EDGES=kernels._NUM_EDGES, TILE=kernels._TILE, PROBES=kernels._NUM_PROBES,
    LANES=32 * kernels._SEARCH_WARPS,
)
choose = dict(PADDED_PARTS=64, PART=kernels._PART)
tell({
    name: compile_for_gpu(getattr(kernels, f"{name}_kernel"), types, constants, num_warps=num_warps)
    for name, constants, num_warps in (
        ("measure", measure, kernels._NUM_WARPS), ("cut", cut, kernels._SEARCH_WARPS),
        ("sum", dict(PART=kernels._PART), kernels._NUM_WARPS), ("choose", choose, kernels._NUM_WARPS),
    )
})
"""


@pytest.mark.compute
def test_for_a_gpu_they_spill_nothing_and_read_widely(tmp_path):
    """Where limits are compared, a thread reads one number at a time: sums are its own."""
    found = compiled(COMPILE, tmp_path)
    for name, code in found.items():
        assert code.spilled_bytes == 0, (name, code)
    assert found["sum"].wide_loads and found["choose"].wide_loads
