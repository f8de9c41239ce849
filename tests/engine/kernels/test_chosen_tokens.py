"""The kernels of chosen tokens against plain torch, and as code for a GPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_engine.kernels.chosen_tokens import likeliest, put
from fairlead_engine_testing.devices import on_each_device
from fairlead_engine_testing.gpu_code import compiled


@on_each_device
@settings(deadline=None, max_examples=30)
@given(
    num_rows=st.integers(1, 5),
    vocab_size=st.sampled_from([1, 3, 4096, 4097, 9000]),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    spoilt=st.lists(st.sampled_from([float("nan"), float("inf"), float("-inf")]), max_size=2),
    num_levels=st.sampled_from([1, 2, 1000]),
    seed=st.integers(0, 99),
)
def test_the_first_of_the_likeliest_unless_a_logit_spoils_its_row(
    device, num_rows, vocab_size, dtype, spoilt, num_levels, seed
):
    from fairlead_engine.kernels import chosen_tokens_kernel

    generator = torch.Generator().manual_seed(seed)
    wide = torch.randint(-num_levels, num_levels, (num_rows, vocab_size + 16), generator=generator).to(dtype)
    for row, value in enumerate(spoilt[:num_rows]):
        wide[row, int(torch.randint(vocab_size, (), generator=generator))] = value
    wide[num_rows - 1, :vocab_size].fill_(float("-inf") if seed % 2 else -5.0)
    logits = wide[:, :vocab_size].to(device)
    found = chosen_tokens_kernel.likeliest(logits)
    assert found.dtype is torch.int64
    assert found.tolist() == likeliest.__wrapped__(logits).tolist() == [written_out(row) for row in logits.tolist()]


def written_out(row: list[float]) -> int:
    highest = float("nan") if any(x != x for x in row) else max(row)
    return row.index(highest) if abs(highest) < float("inf") else -1


@on_each_device
@pytest.mark.parametrize("num_rows", [0, 1, 5, 300])
def test_tokens_are_put_where_their_slots_have_them(device, num_rows):
    from fairlead_engine.kernels import chosen_tokens_kernel

    numbers = torch.randperm(1000)[: 3 * num_rows + 1][1:].view(3, num_rows).to(device)  # not at multiples of 16 bytes
    slots, positions, token_ids = numbers[0], numbers[1] % 7, numbers[2] - 100
    found, expected = (torch.zeros((1000, 9), dtype=torch.int32, device=device)[:, :8] for _ in range(2))
    chosen_tokens_kernel.put(found, slots, positions, token_ids)
    put.__wrapped__(expected, slots, positions, token_ids)
    assert found.equal(expected)


def test_no_rows_have_no_tokens():
    from fairlead_engine.kernels import chosen_tokens_kernel

    assert chosen_tokens_kernel.likeliest(torch.empty(0, 5)).tolist() == likeliest(torch.empty(0, 5)).tolist() == []


COMPILE = """
from fairlead_engine.kernels import chosen_tokens_kernel
from fairlead_engine_testing.gpu_code import compile_for_gpu, tell

found, types = {}, dict(highest="*fp32", places="*i32", row_stride="i32", VOCAB_SIZE="i32", token_ids="*i64")
types |= dict(slot_tokens="*i32", slots="*i64", positions="*i64", num_rows="i32", tokens_stride="i32")
for dtype in ("bf16", "fp32"):
    found[f"parts, {dtype}"] = compile_for_gpu(
        chosen_tokens_kernel.parts_kernel, types | dict(logits="*" + dtype),
        dict(NUM_PARTS=38, TILE=chosen_tokens_kernel._TILE),
    )
found["likeliest"] = compile_for_gpu(
    chosen_tokens_kernel.likeliest_kernel, types, dict(NUM_PARTS=38, PADDED_PARTS=64), num_warps=1
)
found["put"] = compile_for_gpu(chosen_tokens_kernel.put_kernel, types, dict(ROWS=chosen_tokens_kernel._ROWS))
tell(found)
"""


@pytest.mark.compute
def test_for_a_gpu_they_read_widely_and_spill_nothing(tmp_path):
    found = compiled(COMPILE, tmp_path)
    for name, code in found.items():
        assert code.spilled_bytes == 0, (name, code)
    assert found["parts, bf16"].wide_loads == 4, found
    assert found["parts, fp32"].wide_loads == 8, found
