"""Prompts in layers that keep states: kernels beside plain torch, transformers' functions and a loop over tokens."""

import pytest
import torch
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from fairlead_engine.kernels import stretches
from fairlead_engine.kernels.stretches import Stretch, Stretches
from fairlead_engine_testing.devices import on_each_device
from fairlead_engine_testing.gpu_code import compiled

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3}
NUM_ROWS = 8
LISTED = [
    *(Stretch(3, 2, 3, 6), Stretch(3, 3, 5, 7), Stretch(3, 5, 46, None)),
    *(Stretch(0, 46, 79, 5), Stretch(4, 79, 80, None), Stretch(1, 80, 82, None)),
]
"""Four sequences behind two rows of others': of 44 tokens, with copies behind the first and the third, of 33 with one
behind the last, of one and of two."""
NUM_TOKENS = LISTED[-1].end


def apart(*shape: int, device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows of a wider tensor, as the parts of a projection are."""
    wide = torch.randn(shape[0], 3 + torch.Size(shape[1:]).numel(), device=device, dtype=dtype)
    return wide[:, 2:-1].view(shape)


def of_tokens(device: str, key_heads: int, heads: int, key_dim: int, value_dim: int, has_strength: bool):
    """What `recur` takes, of all tokens."""
    query, key = (apart(NUM_TOKENS, key_heads, key_dim, device=device) / key_dim**0.5 for _ in range(2))
    decay = -apart(NUM_TOKENS, heads, device=device).abs()
    strength = apart(NUM_TOKENS, heads, device=device).sigmoid() if has_strength else None
    return query, key, apart(NUM_TOKENS, heads, value_dim, device=device), decay, strength


@on_each_device
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    ("channels", "kernel_size", "has_bias", "activates"),
    [(8, 4, True, True), (150, 3, False, False), (24, 1, True, True)],
)
def test_convolution(device, dtype, channels, kernel_size, has_bias, activates):
    from fairlead_engine.kernels import stretches_kernel

    x, listed = apart(NUM_TOKENS, channels, device=device, dtype=dtype), Stretches.of(LISTED, torch.device(device))
    weight = torch.randn(kernel_size, channels, device=device)
    bias = torch.randn(channels, device=device) if has_bias else None
    inputs = torch.randn(NUM_ROWS, kernel_size - 1, channels, device=device, dtype=dtype)
    theirs, (found, wanted) = inputs.clone(), torch.zeros(2, NUM_TOKENS, channels, device=device, dtype=dtype)
    stretches_kernel.convolve_stretches(x, weight, bias, inputs, listed, found, activates=activates)
    stretches.convolve_stretches.__wrapped__(x, weight, bias, theirs, listed, wanted, activates=activates)
    torch.testing.assert_close(found, wanted, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    assert inputs.equal(theirs), "the last inputs, their copies, and nothing of other rows"


@pytest.mark.matrix
@on_each_device
@pytest.mark.parametrize("has_strength", [True, False])
@pytest.mark.parametrize(
    ("key_heads", "heads", "key_dim", "value_dim"), [(1, 1, 8, 8), (2, 4, 16, 24), (3, 3, 37, 13), (1, 2, 70, 33)]
)
def test_recurrence(device, has_strength, key_heads, heads, key_dim, value_dim, monkeypatch):
    from fairlead_engine.kernels import stretches_kernel

    if heads == 2:  # with the wide tiles of models that have many heads
        monkeypatch.setattr(stretches_kernel, "_MANY_PROGRAMS", 1)
    given = of_tokens(device, key_heads, heads, key_dim, value_dim, has_strength)
    matrices, listed = (
        torch.randn(NUM_ROWS, heads, key_dim, value_dim, device=device),
        Stretches.of(LISTED, torch.device(device)),
    )
    theirs, (found, wanted) = matrices.clone(), torch.zeros(2, NUM_TOKENS, heads, value_dim, device=device)
    stretches_kernel.recur_stretches(*given, matrices, listed, found)
    stretches.recur_stretches.__wrapped__(*given, theirs, listed, wanted)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(matrices, theirs, rtol=1e-4, atol=1e-4)
    assert matrices[2].equal(theirs[2]), "of other sequences"


@on_each_device
@pytest.mark.parametrize("has_kernels", [True, False])
@pytest.mark.parametrize("is_alike", [False, True])
def test_the_delta_rule_is_transformers(device, is_alike, has_kernels):
    """Also of tokens that are all alike, each of which takes all that the one before has put in: the powers of L, whose
    sum is the inverse of 1 + L, are then up to 10^8 in a chunk."""
    from fairlead_engine.kernels import stretches_kernel

    query, key, value, decay, strength = of_tokens(device, 2, 4, 16, 24, True)
    assert strength is not None
    if is_alike:
        key, decay, strength = key[:1].expand_as(key), decay * 0, strength * 0 + 1
        key = key / key.norm(dim=-1, keepdim=True)
    matrices = torch.randn(NUM_ROWS, 4, 16, 24, device=device)
    before, found = matrices.clone(), torch.zeros(NUM_TOKENS, 4, 24, device=device)
    computed = (stretches_kernel if has_kernels else stretches).recur_stretches
    computed(query, key, value, decay, strength, matrices, Stretches.of(LISTED, torch.device(device)), found)
    for row, first, end, keep in LISTED:
        part = [each[None, first:end] for each in (query * 16**0.5, key, value, decay, strength)]
        wanted, state = torch_recurrent_gated_delta_rule(
            *part, initial_state=before[row][None], output_final_state=True
        )
        torch.testing.assert_close(found[first:end], wanted[0], rtol=1e-4, atol=1e-4)
        before[row] = state[0]
        if keep is not None:
            torch.testing.assert_close(matrices[keep], state[0], rtol=1e-4, atol=1e-4)
    for row in {each.row for each in LISTED}:
        torch.testing.assert_close(matrices[row], before[row], rtol=1e-4, atol=1e-4)


@on_each_device
@pytest.mark.parametrize("has_kernels", [True, False])
@pytest.mark.parametrize("fades", [1.0, 40.0])
def test_the_sum_of_mamba_2_is_a_loop_over_tokens(device, fades, has_kernels):
    """Also of states of which each token leaves next to nothing."""
    from fairlead_engine.kernels import stretches_kernel

    query, key, value, decay, _ = of_tokens(device, 2, 6, 24, 10, False)
    decay = decay * fades
    matrices = torch.randn(NUM_ROWS, 6, 24, 10, device=device)
    before, found = matrices.clone(), torch.zeros(NUM_TOKENS, 6, 10, device=device)
    computed = (stretches_kernel if has_kernels else stretches).recur_stretches
    computed(query, key, value, decay, None, matrices, Stretches.of(LISTED, torch.device(device)), found)
    for row, first, end, keep in LISTED:
        state = before[row]
        for token in range(first, end):
            q, k = query[token].repeat_interleave(3, 0), key[token].repeat_interleave(3, 0)
            state = state * decay[token].exp()[:, None, None] + k[:, :, None] * value[token][:, None]
            torch.testing.assert_close(found[token], (q[:, :, None] * state).sum(1), rtol=1e-4, atol=1e-4)
        before[row] = state
        if keep is not None:
            torch.testing.assert_close(matrices[keep], state, rtol=1e-4, atol=1e-4)
    for row in {each.row for each in LISTED}:
        torch.testing.assert_close(matrices[row], before[row], rtol=1e-4, atol=1e-4)


def test_tables_are_as_long_as_sequences_and_their_chunks() -> None:
    tables = Stretches.of(LISTED, torch.device("cpu"))
    assert tables.sequences.tolist() == [
        [3, 2, 46, 0, 4, 0, 3],
        [0, 46, 79, 4, 6, 3, 5],
        [4, 79, 80, 6, 7, 5, 6],
        [1, 80, 82, 7, 8, 6, 7],
    ]
    assert tables.chunks.tolist() == [
        *([2, 3, 6], [3, 5, 7], [5, 37, -1], [37, 46, -1], [46, 78, -1], [78, 79, 5], [79, 80, -1], [80, 82, -1])
    ]
    assert tables.copies.tolist() == [[3, 6], [5, 7], [46, 3], [79, 5], [79, 0], [80, 4], [82, 1]]
    assert tables.tiles.tolist() == [[0, 2], [0, 34], [1, 46], [1, 78], [2, 79], [3, 80]]


COMPILE = """
from fairlead_engine.kernels import stretches_kernel as kernels
from fairlead_engine_testing.gpu_code import compile_for_gpu, tell

def typed(kernel, element, **others):
    types = {name: f"*{element}" for name in kernel.arg_names if name.islower()}
    types |= {name: "*i64" for name in ("sequences", "chunks", "copies", "tiles") if name in types}
    return types | {name: "i32" for name in types if name.endswith("_stride")} | others

convolution = kernels.convolve_stretches_kernel
found = {
    f"convolution, {has_bias}": compile_for_gpu(
        convolution,
        typed(convolution, "bf16", weight="*fp32", bias="*fp32"),
        dict(
            CHANNELS=8192, LENGTH=3, HAS_BIAS=has_bias, ACTIVATES=has_bias, TOKENS=kernels.TILE_TOKENS,
            TILE=kernels._TILE_CHANNELS,
        ),
    )
    for has_bias in (True, False)
}
for name, has_strength, heads, each, value_dim, tile in (
    ("Qwen3-Next", True, 32, 2, 128, kernels._FEW_COLUMNS),
    ("Nemotron-H", False, 128, 16, 64, kernels._MANY_COLUMNS),
):
    sizes = dict(
        HEADS=heads, EACH=each, KEY_DIM=128, HAS_STRENGTH=has_strength, TOKENS=kernels.TILE_TOKENS, PART=kernels._PART
    )
    of_state = dict(VALUE_DIM=value_dim, TILE=tile, WRITTEN=kernels._WRITTEN_PART)
    for kernel, own in ((kernels.weigh_kernel, dict(LEVELS=kernels._LEVELS)), (kernels.carry_kernel, of_state)):
        types = typed(kernel, "fp32")
        found[f"{name}, {kernel.__name__}"] = compile_for_gpu(kernel, types, sizes | own, **kernels._LAUNCH)
tell(found)
"""


@pytest.mark.compute
def test_for_a_gpu_nothing_is_spilled_tensor_cores_multiply_and_16_bytes_are_read_at_a_time(tmp_path) -> None:
    found = compiled(COMPILE, tmp_path)
    assert len(found) == 6
    for name, code in found.items():
        assert not code.spilled_bytes, (name, code)
        if "convolution" in name:
            assert code.registers <= 128 and code.wide_loads >= 3, (name, code)
        else:
            assert code.tensor_products and code.wide_loads >= 4 and code.shared_bytes <= 2**15, (name, code)
