"""Layers that keep states: kernels beside plain torch, one token and many, and good code for a GPU."""

import pytest
import torch

from fairlead_engine.kernels import recurrence
from fairlead_engine.kernels.recurrence import DraftedRows, StateCache, StateRows, advance, convolve, recur
from fairlead_engine.kernels.stretches import Stretch, Stretches
from fairlead_engine_testing.devices import on_each_device
from fairlead_engine_testing.gpu_code import compiled

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3}


def apart(*shape: int, device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows of a wider tensor, as the parts of a projection are."""
    wide = torch.randn(shape[0], 3 + torch.Size(shape[1:]).numel(), device=device, dtype=dtype)
    return wide[:, 2:-1].view(shape)


@on_each_device
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("has_bias", "activates"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize(("number", "channels", "kernel_size"), [(1, 8, 4), (3, 600, 4), (2, 24, 1), (0, 8, 4)])
def test_convolution_of_one_token(device, dtype, has_bias, activates, number, channels, kernel_size):
    from fairlead_engine.kernels import recurrence_kernel

    x = apart(number, channels, device=device, dtype=dtype)
    weight = torch.randn(kernel_size, channels, device=device)
    bias = torch.randn(channels, device=device) if has_bias else None
    inputs = torch.randn(5, kernel_size - 1, channels, device=device, dtype=dtype)
    rows, theirs = torch.tensor([3, 0, 4][:number], device=device, dtype=torch.int64), inputs.clone()
    found = recurrence_kernel.convolve_one(x, weight, bias, inputs, rows, activates=activates)
    wanted = recurrence.convolve_one.__wrapped__(x, weight, bias, theirs, rows, activates=activates)
    assert found.dtype is wanted.dtype is dtype
    torch.testing.assert_close(found, wanted, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    assert inputs.equal(theirs), "the last inputs, and nothing of other rows"


@on_each_device
@pytest.mark.parametrize("has_strength", [True, False])
@pytest.mark.parametrize(
    ("number", "key_heads", "heads", "key_dim", "value_dim"),
    [(1, 1, 1, 8, 8), (3, 2, 6, 16, 40), (2, 3, 3, 24, 12), (2, 1, 4, 128, 64), (0, 1, 1, 8, 8)],
)
def test_recurrence_of_one_token(device, has_strength, number, key_heads, heads, key_dim, value_dim):
    from fairlead_engine.kernels import recurrence_kernel

    query, key = (apart(number, key_heads, key_dim, device=device) / key_dim**0.5 for _ in range(2))
    value, decay = apart(number, heads, value_dim, device=device), -apart(number, heads, device=device).abs()
    strength = apart(number, heads, device=device).sigmoid() if has_strength else None
    matrices = torch.randn(5, heads, key_dim, value_dim, device=device)
    rows, theirs = torch.tensor([3, 0, 4][:number], device=device, dtype=torch.int64), matrices.clone()
    given = query, key, value, decay, strength
    found = recurrence_kernel.recur_one(*given, matrices, rows)
    wanted = recurrence.recur_one.__wrapped__(*given, theirs, rows)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(matrices, theirs, rtol=1e-5, atol=1e-5)
    assert matrices[1:3].equal(theirs[1:3]), "of other sequences"


@on_each_device
@pytest.mark.parametrize("has_kernels", [True, False])
@pytest.mark.parametrize("has_strength", [True, False])
def test_drafts_are_as_tokens_that_come_one_by_one_and_leave_nothing_until_they_are_accepted(
    device, has_strength, has_kernels, monkeypatch
):
    """Three sequences with 0, 3 and 1 drafts, of which 2 and none are accepted, and one with a prompt."""
    from fairlead_engine.kernels import recurrence_kernel

    if has_kernels:
        for name in ("convolve_one", "recur_one"):
            monkeypatch.setattr(recurrence, name, getattr(recurrence_kernel, name))
    number, channels, heads, size = 12, 10, 4, 8
    x = torch.randn(number, channels, device=device)
    weight, bias = torch.randn(4, channels, device=device), torch.randn(channels, device=device)
    query, key = (torch.randn(number, 2, size, device=device) / size for _ in range(2))
    value, decay = torch.randn(number, heads, size, device=device), -torch.rand(number, heads, device=device)
    strength = torch.rand(number, heads, device=device) if has_strength else None
    begun = torch.randn(6, 3, channels, device=device), torch.randn(6, heads, size, size, device=device)

    def step(cache: StateCache, at: slice, rows: StateRows) -> torch.Tensor:
        of_tokens = (query[at], key[at], value[at], decay[at], None if strength is None else strength[at])
        return torch.cat((convolve(x[at], weight, bias, cache, rows), recur(*of_tokens, cache, rows).flatten(1)), 1)

    def numbers(*of: int) -> torch.Tensor:
        return torch.tensor(of, device=device)

    cache = StateCache(*(each.clone() for each in begun))
    drafted = DraftedRows(numbers(3, 0), (numbers(1, 5), numbers(2, 6), numbers(3), numbers(4)))
    found = step(
        cache,
        slice(number),
        StateRows(numbers(1), Stretches.of([Stretch(5, 7, number, None)], numbers(1).device), drafted),
    )
    alone = StateCache(*(each.clone() for each in begun))
    behind = {}
    for row, tokens in ((1, [0]), (3, [1, 2, 3, 4]), (0, [5, 6]), (5, range(7, number))):
        for count, token in enumerate(tokens):
            wanted = step(alone, slice(token, token + 1), StateRows(numbers(row), None))
            torch.testing.assert_close(found[token : token + 1], wanted, rtol=1e-4, atol=1e-4)
            behind[row, count] = alone.inputs[row].clone(), alone.matrices[row].clone()
    for draft in range(3):
        for row in (3, 0, 1):
            for mine, wanted in zip(
                (cache.inputs[row], cache.matrices[row]), behind[row, draft * (row == 3)], strict=True
            ):
                torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4)
        if draft < 2:
            advance(cache, draft, numbers(0), numbers(3))


COMPILE = """
from fairlead_engine.kernels import recurrence_kernel as kernels
from fairlead_engine_testing.gpu_code import compile_for_gpu, tell

types = {"output": "*bf16", "x": "*bf16", "weight": "*fp32", "bias": "*fp32", "inputs": "*bf16", "rows": "*i64"}
types |= {"x_stride": "i32"}
found = {
    f"convolution, {has_bias}": compile_for_gpu(
        kernels.convolve_kernel,
        types,
        dict(CHANNELS=8192, LENGTH=3, HAS_BIAS=has_bias, ACTIVATES=has_bias, TILE=kernels._TILE_CHANNELS),
    )
    for has_bias in (True, False)
}
names = "output query key value decay strength matrices"
types = {**dict.fromkeys(names.split(), "*fp32"), "rows": "*i64"}
types |= dict.fromkeys([f"{name}_stride" for name in names.split()[1:-1]], "i32")
for has_strength, heads, each, value_dim in ((True, 32, 2, 128), (False, 48, 48, 64)):
    found[f"recurrence, {has_strength}"] = compile_for_gpu(
        kernels.recur_kernel,
        types,
        dict(
            HEADS=heads, EACH=each, KEY_DIM=128, VALUE_DIM=value_dim, PADDED_KEY=128, TILE=kernels._MOST_COLUMNS,
            HAS_STRENGTH=has_strength,
        ),
    )
tell(found)
"""


def test_for_a_gpu_nothing_is_spilled_and_matrices_are_read_16_bytes_at_a_time(tmp_path) -> None:
    """Of Qwen3-Next and Granite 4."""
    found = compiled(COMPILE, tmp_path)
    assert len(found) == 4
    for name, code in found.items():
        assert not code.spilled_bytes, (name, code)
        assert code.registers <= 128, (name, code)
    for name in ("recurrence, True", "recurrence, False"):
        assert found[name].wide_loads >= 128 * 32 // 4 // 128, (name, found[name])
