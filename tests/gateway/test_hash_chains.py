"""HashChains gives the hashes of `hash_blocks`, and computes only what is new."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from fairlead.gateway.prompts import prompt_program
from fairlead.gateway.prompts.prompt_program import CHUNK_BLOCKS, HashChains
from fairlead_common.wire.blocks import NO_EXTRA, extra_bytes, hash_blocks, num_cacheable_blocks

CHAINS = HashChains(max_chunks=5)
PROMPTS = st.tuples(st.integers(1, 3), st.integers(0, 700), st.integers(0, 700), st.integers(0, 2))


@given(st.lists(PROMPTS, max_size=6), st.sampled_from([NO_EXTRA, extra_bytes(cache_salt="blue")]))
def test_hashes_are_those_of_the_whole(prompts: list[tuple[int, int, int, int]], extra: bytes) -> None:
    for block_size, num_same, num_own, own in prompts:
        ids = array("I", [7] * num_same + [own] * num_own)
        expected = hash_blocks(ids, block_size, extra=extra)[: num_cacheable_blocks(len(ids), block_size)]
        assert CHAINS.hashes(ids, block_size, extra) == expected


def test_only_what_is_new_is_computed(monkeypatch) -> None:
    computed: list[int] = []

    def spy(token_ids, block_size: int, **rest) -> list[bytes]:
        computed.append(len(token_ids) // block_size)
        return hash_blocks(token_ids, block_size, **rest)

    monkeypatch.setattr(prompt_program, "hash_blocks", spy)
    chains, ids = HashChains(), array("I", range(16 * 200))
    chains.hashes(ids, 16, NO_EXTRA)
    assert computed == [CHUNK_BLOCKS] * 3 + [7]
    computed.clear()
    chains.hashes(ids + ids, 16, NO_EXTRA)
    assert computed == [CHUNK_BLOCKS] * 3 + [399 - 6 * CHUNK_BLOCKS]
