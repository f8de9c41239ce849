"""Block hashes: chained, exact about what they cover, and equal to a hand-computed example."""

import struct
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_common.wire.blocks import NO_EXTRA, ROOT, extra_bytes, hash_block, hash_blocks, num_cacheable_blocks

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=80)
TEXT = st.none() | st.text(max_size=8)


def test_a_hash_is_blake2b_over_parent_ids_and_extra() -> None:
    ids = [1, 2, 3, 4]
    expected = blake2b(b"\0" * 16 + struct.pack("<4I", *ids) + b"\0" * 8, digest_size=16).digest()
    assert hash_blocks(ids, 4) == [expected]
    assert hash_block(ROOT, ids) == expected


@given(TOKENS, st.integers(1, 9))
def test_only_whole_blocks_are_hashed(ids: list[int], block_size: int) -> None:
    assert len(hash_blocks(ids, block_size)) == len(ids) // block_size


@given(TOKENS, st.integers(1, 9), st.integers(0, 80))
def test_a_chain_can_be_extended_where_it_ended(ids: list[int], block_size: int, split: int) -> None:
    whole = hash_blocks(ids, block_size)
    done = min(split, len(ids)) // block_size
    first = hash_blocks(ids[: done * block_size], block_size)
    rest = hash_blocks(ids[done * block_size :], block_size, parent=first[-1] if first else ROOT)
    assert first + rest == whole


@given(TOKENS, TOKENS, st.integers(1, 5))
def test_chains_agree_exactly_as_far_as_their_tokens_do(left: list[int], right: list[int], block_size: int) -> None:
    common = 0
    while common < min(len(left), len(right)) and left[common] == right[common]:
        common += 1
    pairs = list(zip(hash_blocks(left, block_size), hash_blocks(right, block_size), strict=False))
    assert [a == b for a, b in pairs] == [index < common // block_size for index in range(len(pairs))]


@given(st.tuples(TEXT, TEXT), st.tuples(TEXT, TEXT))
def test_extra_bytes_differ_whenever_adapter_or_salt_differ(
    one: tuple[str | None, str | None], other: tuple[str | None, str | None]
) -> None:
    same = extra_bytes(adapter=one[0], cache_salt=one[1]) == extra_bytes(adapter=other[0], cache_salt=other[1])
    assert same == (one == other)


def test_another_salt_gives_other_hashes() -> None:
    assert hash_blocks([1, 2], 2, extra=extra_bytes(cache_salt="a")) != hash_blocks([1, 2], 2, extra=NO_EXTRA)


@pytest.mark.parametrize(("num_tokens", "expected"), [(0, 0), (1, 0), (16, 0), (17, 1), (32, 1), (33, 2)])
def test_the_last_token_is_never_cacheable(num_tokens: int, expected: int) -> None:
    assert num_cacheable_blocks(num_tokens, 16) == expected
