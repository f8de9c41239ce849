"""What a replica's cache is taken to hold where its engine's word is not taken: the prompts of ours that it computed.

An approximation: it knows what this gateway has sent, and no eviction but its own. The `Datastore` keeps one for each
such replica, and enters what comes and goes into the KV index.
"""

from collections.abc import Iterable

from fairlead_protocol.blocks import BlockHash


class ApproximateBlocks:
    """The blocks that were computed last, as many as the replica may have."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._blocks: dict[BlockHash, None] = {}
        """Those computed longest ago first."""

    def computed(self, hashes: Iterable[BlockHash]) -> tuple[list[BlockHash], list[BlockHash]]:
        """The replica has computed these blocks: what is there now that was not, and what is there no more."""
        before = set(self._blocks)
        for block in hashes:
            self._blocks[block] = self._blocks.pop(block, None)
        while len(self._blocks) > self._max_blocks:
            del self._blocks[next(iter(self._blocks))]
        return [block for block in self._blocks if block not in before], [
            block for block in before if block not in self._blocks
        ]
