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
    vocab_size=st.sampled_from([1, 2, 17, 2048, 2500]),
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


COMPILE = """
from fairlead_engine.kernels import draw_kernel
from fairlead_engine_testing.gpu_code import compile_for_gpu, tell

types = dict.fromkeys(("temperatures", "top_ps", "min_ps"), "*fp32") | dict(uniforms="*fp64", logits="*bf16")
types |= dict(token_ids="*i32", top_ks="*i32", row_stride="i32", VOCAB_SIZE="i32")
constants = dict(TILE=draw_kernel._TILE, PROBES=draw_kernel._NUM_PROBES)
tell({"draw": compile_for_gpu(draw_kernel.draw_kernel, types, constants, num_warps=draw_kernel._NUM_WARPS)})
"""


@pytest.mark.compute
def test_for_a_gpu_it_reads_widely_and_spills_nothing(tmp_path):
    (code,) = compiled(COMPILE, tmp_path).values()
    assert code.spilled_bytes == 0, code
    assert code.wide_loads, code
