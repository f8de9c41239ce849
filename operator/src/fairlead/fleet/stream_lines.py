"""Lines of an engine's stream → listings in slices, and hashes. Pure."""

from collections.abc import Iterable, Iterator

import msgspec

from fairlead_protocol.blocks import BlockHash
from fairlead_protocol.messages import StoredBlocks

MAX_LINE_BYTES = 16 * 1024 * 1024
"""One step's change: some hundred thousand blocks."""
SLICE_BYTES = 256 * 1024
"""Of a listing that is told at once: some 7,000 blocks, one or two milliseconds for whoever listens."""


class _Chain(msgspec.Struct):
    """The part of `StoredBlocks` that is used here."""

    hashes: list[str]


class _Blocks(msgspec.Struct):
    """`KVBlocks` with its chains still encoded."""

    epoch: str
    seq: int
    blocks: list[msgspec.Raw]


class Listing:
    """An engine's blocks. There may be a million, so they are decoded and told a slice at a time.

    Finding the slices takes 10 to 80 ms for a million blocks (35 to 108 MB), each slice one or two.
    """

    def __init__(self, body: bytes | bytearray) -> None:
        """`body`: a `KVBlocks` as it came. Raises ValueError where it is none."""
        blocks = msgspec.json.decode(body, type=_Blocks)
        self.epoch = blocks.epoch
        self.seq = blocks.seq
        self._slices = list(_slices(blocks.blocks))

    def slices(self) -> Iterator[tuple[int, list[BlockHash]]]:
        """Blocks to tell, each time with a number: the first ones as a listing, the others as changes that complete it.

        The numbers are counted back from the listing's own, which the last slice has: each follows the one before, as
        those of changes do.
        """
        decode = msgspec.json.Decoder(_Chain).decode
        for number, chains in enumerate(self._slices, self.seq - len(self._slices) + 1):
            yield number, [bytes.fromhex(each) for chain in chains for each in decode(chain).hashes]


def _slices(chains: list[msgspec.Raw]) -> Iterator[list[msgspec.Raw]]:
    """At least one, which may be empty."""
    part: list[msgspec.Raw] = []
    num_bytes = 0
    for each in chains:
        if num_bytes >= SLICE_BYTES:
            yield part
            part, num_bytes = [], 0
        part.append(each)
        num_bytes += memoryview(each).nbytes
    yield part


def hashes_of(stored: Iterable[StoredBlocks]) -> list[BlockHash]:
    """The hashes of these chains, in order. Raises ValueError for what is not hexadecimal."""
    return [bytes.fromhex(each) for blocks in stored for each in blocks.hashes]
