"""An engine's list of blocks, read as it comes. Pure.

A list may have a million blocks: text is decoded a slice at a time and dropped; the 16 bytes of each block stay until
the list is complete.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

from fairlead_common.wire.blocks import DIGEST_SIZE, BlockHash
from fairlead_common.wire.messages import Count

SLICE_BYTES = 256 * 1024
"""Of the text that is decoded at once: some 7,000 blocks, one or two milliseconds."""
MAX_CHAIN_BYTES = 2 * 2**20
"""Text of one chain, decoded at once: some 60,000 blocks."""
MAX_HEAD_BYTES = 64 * 1024
"""Before the first chain."""
BLOCKS_TOLD = 4096
"""Told at once: one or two milliseconds for whoever listens."""
_BLOCKS = re.compile(rb'"blocks"\s*:\s*\[')

Digits = Annotated[str, msgspec.Meta(min_length=2 * DIGEST_SIZE, max_length=2 * DIGEST_SIZE)]
"""A block's hash on the wire."""


class Chain(msgspec.Struct):
    """The part of `StoredBlocks` that a gateway uses."""

    hashes: list[Digits]


class _Head(msgspec.Struct):
    """`KVBlocks` without its chains."""

    epoch: Annotated[str, msgspec.Meta(max_length=128)]
    seq: Count


_decode_chains = msgspec.json.Decoder(list[Chain]).decode


class Listing:
    """All methods raise ValueError for text that is no `KVBlocks`. `epoch` and `seq` are known after `end`."""

    def __init__(self) -> None:
        self._text = bytearray()
        """What has come and is not decoded."""
        self._head: _Head | None = None
        self.epoch, self.seq = "", 0
        self._hashes = bytearray()
        self._is_first = True

    @property
    def num_blocks(self) -> int:
        """Of those decoded so far."""
        return len(self._hashes) // DIGEST_SIZE

    def feed(self, data: bytes) -> Iterator[None]:
        """More of the text; yields after each slice."""
        self._text += data
        if self._head is None and (found := _BLOCKS.search(self._text, 0, MAX_HEAD_BYTES)):
            self._head = msgspec.json.decode(self._text[: found.end()] + b"]}", type=_Head)
            self.epoch, self.seq = self._head.epoch, self._head.seq
            del self._text[: found.end()]
        if self._head is None and len(self._text) > MAX_HEAD_BYTES:
            raise ValueError("a list of blocks does not begin so")
        while self._head is not None and len(self._text) > SLICE_BYTES:
            end = self._text.rfind(b"}", 0, SLICE_BYTES) + 1 or self._text.find(b"}", SLICE_BYTES) + 1
            if not end and len(self._text) <= MAX_CHAIN_BYTES:
                return
            if not 0 < end <= MAX_CHAIN_BYTES:
                raise ValueError(f"a chain of blocks has more than {MAX_CHAIN_BYTES} bytes")
            self._take(end)
            yield

    def end(self) -> None:
        """Nothing more comes."""
        end = self._text.rfind(b"]")
        if self._head is None or end < 0 or not self._text[end + 1 :].lstrip().startswith((b"}", b",")):
            raise ValueError("a list of blocks is not whole")
        self._take(end)

    def slices(self) -> Iterator[tuple[int, list[BlockHash]]]:
        """(number, blocks) pairs: the first as a listing, the others as changes that complete it. Numbers count up to
        the listing's own, as those of changes do."""
        step = DIGEST_SIZE * BLOCKS_TOLD
        starts = range(0, max(1, len(self._hashes)), step)  # one is told even where there is no block
        for number, start in enumerate(starts, self.seq - len(starts) + 1):
            yield number, unpacked(bytes(self._hashes[start : start + step]))

    def _take(self, end: int) -> None:
        """Decodes the text before `end`, which are whole chains."""
        text = self._text[:end].strip()
        if not self._is_first and text:
            if not text.startswith(b","):
                raise ValueError("chains of blocks are not separated by commas")
            del text[:1]
        self._is_first = self._is_first and not text
        chains = _decode_chains(b"[" + text + b"]")
        self._hashes += packed(each for chain in chains for each in chain.hashes)
        del self._text[:end]


def packed(digits: Iterable[str]) -> bytes:
    """The hashes of blocks, joined. Raises ValueError for text that is no hash; spaces are not digits."""
    each = list(digits)
    hashes = bytes.fromhex("".join(each))
    if len(hashes) != DIGEST_SIZE * len(each):
        raise ValueError(f"a block's hash has not {2 * DIGEST_SIZE} digits")
    return hashes


def unpacked(hashes: bytes) -> list[BlockHash]:
    """The same one by one."""
    return [hashes[start : start + DIGEST_SIZE] for start in range(0, len(hashes), DIGEST_SIZE)]
