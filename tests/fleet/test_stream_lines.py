"""An engine's list of blocks as it comes → blocks in slices."""

import os

import msgspec
import pytest

from fairlead.fleet import listing as listings
from fairlead.fleet.listing import Listing
from fairlead_common.wire.messages import KVBlocks, StoredBlocks


def listing(*lengths: int) -> tuple[bytes, list[bytes]]:
    """A listing of chains of these lengths as it comes, and its hashes."""
    chains = [[os.urandom(16) for _ in range(length)] for length in lengths]
    blocks = [StoredBlocks(parent=None, hashes=[each.hex() for each in chain]) for chain in chains]
    body = msgspec.json.encode(KVBlocks(epoch="e", seq=7, block_size=16, blocks=blocks))
    return body, [each for chain in chains for each in chain]


def read(body: bytes, size: int = 2**20) -> Listing:
    """As it comes in pieces of this many bytes."""
    listing = Listing()
    for start in range(0, len(body), size):
        list(listing.feed(body[start : start + size]))
    listing.end()
    return listing


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_listing_is_told_in_slices_whose_numbers_end_with_its_own(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(listings, "SLICE_BYTES", 200)
    monkeypatch.setattr(listings, "BLOCKS_TOLD", 16)
    body, hashes = listing(3, 3, 30, 1, 1)
    slices = list(read(body, size).slices())
    assert [number for number, _ in slices] == [5, 6, 7]
    assert [len(part) for _, part in slices] == [16, 16, 6]
    assert [each for _, part in slices for each in part] == hashes


def test_a_listing_of_nothing_is_told_as_well() -> None:
    told = read(listing()[0])
    assert (told.epoch, told.seq, list(told.slices())) == ("e", 7, [(7, [])])


def test_fields_that_are_not_known_and_white_space_are_passed_over() -> None:
    body = b'{"more": [1], "epoch": "e", "seq": 2, "blocks" : [ {"hashes": []} , {"hashes": []} ] , "x": {}}'
    assert read(body).seq == 2


def test_no_part_of_a_listing_is_decoded_at_once_that_would_stop_others(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []
    decode = listings._decode_chains
    monkeypatch.setattr(listings, "_decode_chains", lambda text: (decoded.append(len(text)), decode(text))[1])
    body, hashes = listing(*[1] * 20_000)
    told = read(body)
    assert told.num_blocks == len(hashes) and max(decoded) < listings.SLICE_BYTES + 2**20
    with pytest.raises(ValueError, match="a chain of blocks has more"):
        read(listing(listings.MAX_CHAIN_BYTES // 35)[0])


WHOLE = b'{"epoch": "e", "seq": 1, "blocks": [%b]}'


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"epoch": "e"}', b'{"epoch": 1, "seq": 1, "blocks": []}', WHOLE[:-1] % b"", b"x" * 100_000,
     WHOLE % b'{"hashes": []} {"hashes": []}', WHOLE % b"0,0"],
)  # fmt: skip
def test_what_is_no_listing_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        read(body)


@pytest.mark.parametrize(
    "chain", [b'{"hashes": ["zz"]}', b'{"hashes": [1]}', b"{}", b'{"hashes": ["%b"]}' % (b" " * 32)]
)
def test_chains_that_make_no_sense_are_refused(chain: bytes) -> None:
    with pytest.raises(ValueError):
        read(WHOLE % chain)
