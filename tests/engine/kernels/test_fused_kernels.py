"""Triton's kernels beside the fused operations: the same as plain torch, and good code for a GPU."""

from types import SimpleNamespace

import pytest
import torch

from fairlead_engine.kernels import dispatch
from fairlead_engine.kernels.add_rms_norm import add_rms_norm
from fairlead_engine.kernels.norm_rope import HeadNorm, norm_rope
from fairlead_engine.kernels.rms_norm import rms_norm
from fairlead_engine.kernels.silu_mul import silu_mul
from fairlead_engine_testing.gpu_code import compiled

HAS_CUDA = torch.cuda.is_available()
on_each_device = pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.skipif(HAS_CUDA, reason="Triton compiles for CUDA where there is one")),
        pytest.param(
            "cuda", marks=(pytest.mark.gpu, pytest.mark.skipif(not HAS_CUDA, reason="there is no CUDA device"))
        ),
    ],
)
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3}
in_each_format = pytest.mark.parametrize("dtype", TOLERANCES)


def assert_same(found, expected, dtype):
    torch.testing.assert_close(found, expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@on_each_device
@in_each_format
@pytest.mark.parametrize("shape", [(1, 8), (3, 48), (2, 5, 128), (0, 16)])
def test_rms_norm(device, dtype, shape):
    from fairlead_engine.kernels import rms_norm_kernel

    x, weight = torch.randn(shape, device=device, dtype=dtype), torch.randn(shape[-1], device=device, dtype=dtype)
    assert_same(rms_norm_kernel.rms_norm(x, weight, 1e-3), rms_norm.__wrapped__(x, weight, 1e-3), dtype)


@on_each_device
@in_each_format
@pytest.mark.parametrize("shape", [(1, 8), (5, 72), (0, 16)])
def test_add_rms_norm(device, dtype, shape):
    from fairlead_engine.kernels import rms_norm_kernel

    update, stream = torch.randn(2, *shape, device=device, dtype=dtype)
    before, weight = stream.clone(), torch.randn(shape[1], device=device, dtype=dtype)
    found = rms_norm_kernel.add_rms_norm(update, stream, weight, 1e-5)
    for one, other in zip(found, add_rms_norm.__wrapped__(update, stream, weight, 1e-5), strict=True):
        assert_same(one, other, dtype)
    assert torch.equal(stream, before)


@on_each_device
@in_each_format
@pytest.mark.parametrize("shape", [(1, 2), (3, 24), (2, 2600), (0, 8)])
def test_silu_mul(device, dtype, shape):
    from fairlead_engine.kernels import silu_mul_kernel

    gate_up = torch.randn(shape, device=device, dtype=dtype)
    assert_same(silu_mul_kernel.silu_mul(gate_up), silu_mul.__wrapped__(gate_up.clone()), dtype)


@on_each_device
@in_each_format
@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(4, 2, 16), (3, 1, 6), (20, 5, 8)])
def test_norm_rope(device, dtype, with_norm, num_heads, num_kv_heads, head_dim):
    from fairlead_engine.kernels import norm_rope_kernel

    heads = torch.randn(3, num_heads + 2 * num_kv_heads, head_dim, device=device, dtype=dtype)
    cosines, sines = torch.randn(2, 3, 1, head_dim, device=device, dtype=dtype)
    weights = torch.randn(2, head_dim, device=device, dtype=dtype)
    norm = HeadNorm(weights[0], weights[1], 1e-4) if with_norm else None
    found = norm_rope_kernel.norm_rope(heads, num_kv_heads, cosines, sines, norm)
    for one, other in zip(found, norm_rope.__wrapped__(heads, num_kv_heads, cosines, sines, norm), strict=True):
        assert_same(one, other, dtype)


def test_a_tensor_on_cuda_goes_to_the_kernel_and_no_other(monkeypatch):
    from fairlead_engine.kernels import silu_mul_kernel

    def plain(x):
        return "torch"

    plain.__name__ = "silu_mul"
    monkeypatch.setattr(silu_mul_kernel, "silu_mul", lambda x: "kernel")
    module, on_cuda, on_cpu = silu_mul_kernel.__name__, SimpleNamespace(is_cuda=True), SimpleNamespace(is_cuda=False)
    dispatched = dispatch.with_kernel(module)(plain)
    assert (dispatched(on_cuda), dispatched(on_cpu)) == ("kernel", "torch")
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None)
    assert dispatch.with_kernel(module)(plain)(on_cuda) == "torch"


COMPILE = """
from fairlead_engine.kernels import norm_rope_kernel, rms_norm_kernel, silu_mul_kernel
from fairlead_engine_testing.gpu_code import compile_for_gpu, tell

names = "output total x update weight gate_up query key heads cosines sines query_weight key_weight"
types = {**dict.fromkeys(names.split(), "*bf16"), "eps": "fp32", "row_stride": "i32"}
normalise = dict(SIZE=4096, PADDED_SIZE=4096)
turn = dict(NUM_HEADS=32, NUM_KV_HEADS=8, HEAD_DIM=128, PADDED_HALF=64, TILE_HEADS=16)
tell({
    "norm": compile_for_gpu(rms_norm_kernel.normalise_kernel, types, dict(normalise, HAS_UPDATE=False)),
    "add and norm": compile_for_gpu(rms_norm_kernel.normalise_kernel, types, dict(normalise, HAS_UPDATE=True)),
    "gate": compile_for_gpu(silu_mul_kernel.gate_kernel, types, dict(SIZE=12288, TILE=1024)),
    "turn": compile_for_gpu(norm_rope_kernel.turn_kernel, types, dict(turn, HAS_NORM=False)),
    "norm and turn": compile_for_gpu(norm_rope_kernel.turn_kernel, types, dict(turn, HAS_NORM=True)),
})
"""


def test_for_a_gpu_they_read_widely_and_spill_nothing(tmp_path):
    for name, code in compiled(COMPILE, tmp_path).items():
        assert code.spilled_bytes == 0, (name, code)
        assert code.wide_loads, (name, code)
