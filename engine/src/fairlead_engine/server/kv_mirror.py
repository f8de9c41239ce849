"""The HTTP process's copy of which blocks the core can reuse, and its recent changes as the lines followers get.

`EngineStream` feeds it. Knows the protocol's messages; not who follows, nor HTTP.
"""

import uuid
from collections import deque
from collections.abc import Iterator

import msgspec

from fairlead_engine.core.messages import BlocksChanged
from fairlead_protocol.blocks import ROOT, BlockHash
from fairlead_protocol.messages import KVBlocks, StoredBlocks, StreamLine

RING_BYTES = 4 * 2**20
"""How much of the past a follower may have missed: minutes of decoding, many seconds of prefill at full speed."""


class NotInRing(Exception):
    """Changes after this epoch and seq cannot be told any more, or never could."""


class KVMirror:
    """The reusable blocks as of `seq`, each with the block before it, and the last `ring_bytes` of changes."""

    def __init__(self, block_size: int = 0, *, ring_bytes: int = RING_BYTES) -> None:
        self.epoch = uuid.uuid4().hex
        self.seq = 0
        self.block_size = block_size
        """Tokens per block; known once the core has started."""
        self._parents: dict[BlockHash, BlockHash] = {}
        self._ring: deque[bytes] = deque()  # the lines of the changes up to `seq`
        self._ring_bytes = 0
        self._max_ring_bytes = ring_bytes

    def __len__(self) -> int:
        """How many blocks can be reused."""
        return len(self._parents)

    def hashes(self) -> set[BlockHash]:
        """All blocks that can be reused, as a new set."""
        return set(self._parents)

    def apply(self, changed: BlocksChanged) -> bytes:
        """Takes over the next change and returns its line, encoded once for everybody.

        A core that begins its books anew may remove what was never told: followers never hear of that, either.
        """
        self.seq += 1
        removed = [each for each in changed.removed if self._parents.pop(each, None) is not None]
        for parent, hashes in changed.stored:
            for block_hash in hashes:
                self._parents[block_hash] = parent
                parent = block_hash
        stored = [_stored(parent, hashes) for parent, hashes in changed.stored]
        line = encoded(StreamLine(seq=self.seq, stored=stored, removed=[each.hex() for each in removed]))
        self._ring.append(line)
        self._ring_bytes += len(line)
        while self._ring_bytes > self._max_ring_bytes:
            self._ring_bytes -= len(self._ring.popleft())
        return line

    def since(self, epoch: str, seq: int) -> list[bytes]:
        """The lines after `seq`. Raises `NotInRing`."""
        num_missed = self.seq - seq
        if epoch != self.epoch or not 0 <= num_missed <= len(self._ring):
            raise NotInRing
        return [self._ring[index] for index in range(len(self._ring) - num_missed, len(self._ring))]

    def blocks(self) -> KVBlocks:
        """All of it as one message. Takes about 1 µs for each block."""
        blocks = [_stored(parent, hashes) for parent, hashes in self._chains()]
        return KVBlocks(epoch=self.epoch, seq=self.seq, block_size=self.block_size, blocks=blocks)

    def _chains(self) -> Iterator[tuple[BlockHash, list[BlockHash]]]:
        """Every block once, in chains that are as long as they can be, no block before its parent.

        The order of arrival would not do: a block may be evicted and stored again while its child stays.
        """
        children: dict[BlockHash, list[BlockHash]] = {}
        for block_hash, parent in self._parents.items():
            children.setdefault(parent, []).append(block_hash)
        heads = [(parent, head) for head, parent in self._parents.items() if parent not in self._parents]
        while heads:
            parent, head = heads.pop()
            chain = [head]
            while following := children.get(chain[-1]):
                heads += [(chain[-1], other) for other in following[1:]]
                chain.append(following[0])
            yield parent, chain


def encoded(line: StreamLine) -> bytes:
    """A line of the stream, its newline included."""
    return msgspec.json.encode(line) + b"\n"


def _stored(parent: BlockHash, hashes: list[BlockHash]) -> StoredBlocks:
    return StoredBlocks(parent=None if parent == ROOT else parent.hex(), hashes=[each.hex() for each in hashes])
