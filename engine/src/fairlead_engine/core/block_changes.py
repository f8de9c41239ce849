"""What one step did to the reusable blocks, collected for whoever follows them over the network.

The core loop makes one and hangs it into the block manager; an engine nobody follows (`LLM`) has none.
"""

from fairlead_engine.core.messages import BlocksChanged
from fairlead_protocol.blocks import BlockHash


class BlockChanges:
    """A `BlockListener` that keeps what it heard until `take`.

    Blocks are evicted while a step is planned and published when it has been computed, so within one step whatever is
    removed goes before anything is stored: two lists tell it all.
    """

    def __init__(self) -> None:
        self._stored: list[tuple[BlockHash, list[BlockHash]]] = []
        self._removed: list[BlockHash] = []

    def stored(self, parent: BlockHash, hashes: list[BlockHash]) -> None:
        self._stored.append((parent, hashes))

    def removed(self, block_hash: BlockHash) -> None:
        assert not self._stored, "a block was evicted after others had been published in the same step"
        self._removed.append(block_hash)

    def take(self) -> BlocksChanged | None:
        """What happened since the last call; None when nothing did."""
        if not self._stored and not self._removed:
            return None
        changed = BlocksChanged(self._stored, self._removed)
        self._stored, self._removed = [], []
        return changed
