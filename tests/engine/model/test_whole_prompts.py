"""Attention of whole prompts is the softmax over the tokens in reach, whatever is beside a prompt."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fairlead_engine.kernels.attention.whole_prompts import Reach, attend_whole, group_by_reach, group_prompts

CPU = torch.device("cpu")
LENGTHS = np.array([1, 333, 2, 80, 9, 64, 65, 66, 333, 130, 1, 700])
HEADS, KEY_HEADS, HEAD_DIM = 6, 2, 10


def expected(query: Tensor, key: Tensor, value: Tensor, reach: Reach) -> Tensor:
    each = HEADS // KEY_HEADS
    key, value = key.repeat_interleave(each, 1), value.repeat_interleave(each, 1)
    scores = torch.einsum("qhd,khd->hqk", query, key) / HEAD_DIM**0.5
    places = torch.arange(len(query))
    if reach is not None:
        scores.masked_fill_((places[:, None] - places).abs() > reach, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).flatten(1)


@pytest.mark.parametrize("reach", [None, 1, 7, 32, 64, 65, 257, 699, 2000])
def test_tokens_see_what_is_in_reach(reach: Reach) -> None:
    draw = torch.Generator().manual_seed(5)
    query, key, value = (
        torch.randn(int(LENGTHS.sum()), heads, HEAD_DIM, generator=draw) for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    )
    found = attend_whole(query, key, value, group_by_reach(LENGTHS, CPU, [reach])[reach])
    parts = [torch.split(each, LENGTHS.tolist()) for each in (query, key, value)]
    wanted = torch.cat([expected(*of_prompt, reach) for of_prompt in zip(*parts, strict=True)])
    assert (found - wanted).abs().max() < 1e-5


def test_what_is_computed_grows_with_the_length() -> None:
    [short], [long] = (group_prompts(np.array([length]), CPU, 64) for length in (1024, 4096))
    assert long.rows.numel() * long.keys.shape[1] == 4 * short.rows.numel() * short.keys.shape[1]
    assert long.mask is not None and long.mask.numel() < 4096 * 256


def test_layers_share_groups_where_all_is_in_reach() -> None:
    groups = group_by_reach(np.array([3, 65]), CPU, [None, 64, 63])
    assert groups[None] is groups[64] is not groups[63]
    assert all(group.keys is group.rows for group in groups[None])
