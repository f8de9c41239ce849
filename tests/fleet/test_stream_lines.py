"""Lines of a stream → listings in slices, and loads."""

import os

import msgspec
import pytest

from fairlead.fleet import engine_stream
from fairlead.fleet.engine_stream import Listing
from fairlead_protocol.messages import KVBlocks, StoredBlocks


def listing(*lengths: int) -> tuple[bytes, list[bytes]]:
    """A listing of chains of these lengths as it comes, and its hashes."""
    chains = [[os.urandom(16) for _ in range(length)] for length in lengths]
    blocks = [StoredBlocks(parent=None, hashes=[each.hex() for each in chain]) for chain in chains]
    body = msgspec.json.encode(KVBlocks(epoch="e", seq=7, block_size=16, blocks=blocks))
    return body, [each for chain in chains for each in chain]


def test_a_listing_is_told_in_slices_whose_numbers_end_with_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_stream, "SLICE_BYTES", 200)
    body, hashes = listing(3, 3, 30, 1, 1)
    slices = list(Listing(body).slices())
    assert [number for number, _ in slices] == [5, 6, 7]
    assert [len(part) for _, part in slices] == [6, 30, 2]
    assert [each for _, part in slices for each in part] == hashes


def test_a_listing_of_nothing_is_told_as_well() -> None:
    body, _ = listing()
    read = Listing(body)
    assert (read.epoch, read.seq, list(read.slices())) == ("e", 7, [(7, [])])


@pytest.mark.parametrize("body", [b"", b"[]", b'{"epoch": "e"}', b'{"epoch": 1, "seq": 1, "blocks": []}'])
def test_what_is_no_listing_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        Listing(body)


@pytest.mark.parametrize("chain", [b'{"hashes": ["zz"]}', b'{"hashes": [1]}', b"{}"])
def test_chains_that_make_no_sense_are_refused_as_they_are_told(chain: bytes) -> None:
    with pytest.raises(ValueError):
        list(Listing(b'{"epoch": "e", "seq": 1, "blocks": [' + chain + b"]}").slices())
