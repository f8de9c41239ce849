"""CountedBlocks: the prefix cache of an engine model. Blocks have their real hashes and no contents."""

from collections.abc import Sequence

from fairlead_common.wire.blocks import BlockHash
from fairlead_common.wire.messages import StoredBlocks


class CountedBlocks:
    """Each block is in use by running sequences, evictable (a reusable prefix; least recently used first, a chain's
    tail first), or empty. Changes are collected until `take_changes`, as an engine does within one step."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._parent: dict[BlockHash, BlockHash | None] = {}
        """By every hash in the cache."""
        self._num_users: dict[BlockHash, int] = {}
        self._evictable: dict[BlockHash, None] = {}
        """Least recently used first."""
        self._num_unnamed = 0
        """Blocks in use without a hash: partial, or being computed."""
        self._stored: dict[BlockHash, None] = {}
        self._removed: dict[BlockHash, None] = {}

    @property
    def num_free(self) -> int:
        """Empty and evictable blocks."""
        return self.num_blocks - len(self._num_users) - self._num_unnamed

    @property
    def hashes(self) -> set[BlockHash]:
        """Every hash that a prompt could match."""
        return set(self._parent)

    def match(self, hashes: Sequence[BlockHash]) -> int:
        """The number of leading blocks in the cache."""
        return next((index for index, each in enumerate(hashes) if each not in self._parent), len(hashes))

    def share(self, hashes: Sequence[BlockHash]) -> None:
        """Adds a user to blocks of the cache."""
        for each in hashes:
            self._evictable.pop(each, None)
            self._num_users[each] = self._num_users.get(each, 0) + 1

    def take(self, num_blocks: int) -> None:
        """Takes blocks without a hash, at most `num_free`."""
        assert num_blocks <= self.num_free
        num_empty = self.num_free - len(self._evictable)
        for _ in range(num_blocks - num_empty):
            self._remove(next(iter(self._evictable)))
        self._num_unnamed += num_blocks

    def publish(self, parent: BlockHash | None, block_hash: BlockHash) -> None:
        """Puts one unnamed block in use under its hash, for prompts to match."""
        self._num_unnamed -= 1
        if block_hash not in self._parent:
            self._parent[block_hash] = parent
            self._stored[block_hash] = None
        self.share([block_hash])

    def free(self, hashes: Sequence[BlockHash], num_unnamed: int) -> None:
        """Removes a user from blocks. Unused blocks stay until evicted, the first of a chain longest."""
        self._num_unnamed -= num_unnamed
        for each in reversed(hashes):
            self._num_users[each] -= 1
            if not self._num_users[each]:
                del self._num_users[each]
                self._evictable[each] = None

    def forget_all(self) -> None:
        """Evicts every unused block."""
        for each in list(self._evictable):
            self._remove(each)

    def take_changes(self) -> tuple[list[StoredBlocks], list[str]] | None:
        """Stored and removed blocks since the last call; blocks that came and went in between are in neither. None = no
        change."""
        if not self._stored and not self._removed:
            return None
        stored = _chains({each: self._parent[each] for each in self._stored})
        removed = [each.hex() for each in self._removed]
        self._stored, self._removed = {}, {}
        return stored, removed

    def listing(self) -> list[StoredBlocks]:
        """Every block in the cache, parents first."""
        return _chains(self._parent)

    def check(self) -> None:
        """Raises AssertionError unless every block is in exactly one state."""
        assert self._num_users.keys().isdisjoint(self._evictable)
        assert self._num_users.keys() | self._evictable.keys() == self._parent.keys()
        assert self._num_unnamed >= 0
        assert 0 <= self.num_free <= self.num_blocks

    def _remove(self, block_hash: BlockHash) -> None:
        del self._evictable[block_hash], self._parent[block_hash]
        if block_hash in self._stored:
            del self._stored[block_hash]
        else:
            self._removed[block_hash] = None


def _chains(parents: dict[BlockHash, BlockHash | None]) -> list[StoredBlocks]:
    """The blocks as chains, each as long as possible, parents before their children."""
    children: dict[BlockHash | None, list[BlockHash]] = {}
    for block_hash, parent in parents.items():
        children.setdefault(parent, []).append(block_hash)
    pending = [each for each, parent in parents.items() if parent not in parents]
    chains = []
    while pending:
        chain = [pending.pop()]
        while following := children.get(chain[-1]):
            chain.append(following[0])
            pending += following[1:]
        parent = parents[chain[0]]
        hashes = [each.hex() for each in chain]
        chains.append(StoredBlocks(parent=parent.hex() if parent is not None else None, hashes=hashes))
    return chains
