"""What an engine model keeps: its prefix cache, whose blocks are counted and have their real hashes, with nothing in
them; and its adapters, what loading each takes, and which have a place now."""

from collections.abc import Iterable, Mapping, Sequence

from fairlead_common.blocks import BlockHash
from fairlead_common.messages import StoredBlocks


class BlockCache:
    """`num_blocks` blocks, each in use by running sequences, evictable (a prefix that may be asked for again; evicted
    in order of least recent use, a chain's tail first), or empty.

    It keeps book of what came and went until `take_changes`, as an engine does within one step.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._parent: dict[BlockHash, BlockHash | None] = {}
        """Of every hash that is held."""
        self._num_users: dict[BlockHash, int] = {}
        self._evictable: dict[BlockHash, None] = {}
        """Least recently used first."""
        self._num_unnamed = 0
        """Blocks in use without a hash: partial ones, and those being computed."""
        self._stored: dict[BlockHash, None] = {}
        self._removed: dict[BlockHash, None] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be taken: empty and evictable ones."""
        return self.num_blocks - len(self._num_users) - self._num_unnamed

    @property
    def hashes(self) -> set[BlockHash]:
        """What a prompt could find here."""
        return set(self._parent)

    def match(self, hashes: Sequence[BlockHash]) -> int:
        """How many leading blocks are held."""
        return next((index for index, each in enumerate(hashes) if each not in self._parent), len(hashes))

    def share(self, hashes: Sequence[BlockHash]) -> None:
        """Somebody uses these held blocks."""
        for each in hashes:
            self._evictable.pop(each, None)
            self._num_users[each] = self._num_users.get(each, 0) + 1

    def take(self, num_blocks: int) -> None:
        """So many blocks without a name; `num_free` says whether there are as many."""
        assert num_blocks <= self.num_free
        num_empty = self.num_free - len(self._evictable)
        for _ in range(num_blocks - num_empty):
            self._remove(next(iter(self._evictable)))
        self._num_unnamed += num_blocks

    def publish(self, parent: BlockHash | None, block_hash: BlockHash) -> None:
        """One of the unnamed blocks in use is computed, and can be found under its hash from now on."""
        self._num_unnamed -= 1
        if block_hash not in self._parent:
            self._parent[block_hash] = parent
            self._stored[block_hash] = None
        self.share([block_hash])

    def free(self, hashes: Sequence[BlockHash], num_unnamed: int) -> None:
        """Somebody uses these no longer. They stay until their space is needed, the first of a chain longest."""
        self._num_unnamed -= num_unnamed
        for each in reversed(hashes):
            self._num_users[each] -= 1
            if not self._num_users[each]:
                del self._num_users[each]
                self._evictable[each] = None

    def forget_all(self) -> None:
        """Evicts every block that nobody uses."""
        for each in list(self._evictable):
            self._remove(each)

    def take_changes(self) -> tuple[list[StoredBlocks], list[str]] | None:
        """What came and what went since the last call; what did both in between is in neither. None = nothing."""
        if not self._stored and not self._removed:
            return None
        stored = _chains({each: self._parent[each] for each in self._stored})
        removed = [each.hex() for each in self._removed]
        self._stored, self._removed = {}, {}
        return stored, removed

    def listing(self) -> list[StoredBlocks]:
        """Everything held, parents first."""
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


class AdapterSlots:
    """So many adapters have a place at once. One that is wanted and has none is loaded there, instead of the one that
    nobody runs with for longest."""

    def __init__(self, load_seconds: Mapping[str, float], num_slots: int | None = None) -> None:
        """`load_seconds`: by name, what loading takes; may be changed at any time. `num_slots`: None = one for each."""
        self.load_seconds = dict(load_seconds)
        self._num_slots = num_slots
        self._placed: list[str] = []
        """The last used last."""
        self.num_loaded = 0
        """Times that one was brought to its place."""

    @property
    def waits(self) -> dict[str, float]:
        """What a load line says: seconds that a request for each would wait for it to be loaded."""
        return {name: 0.0 if name in self._placed else seconds for name, seconds in self.load_seconds.items()}

    def has_place(self, name: str, in_use: Iterable[str]) -> bool:
        """Whether it is in place or can be, beside those that sequences run with."""
        return self._num_slots is None or len({*in_use, name}) <= self._num_slots

    def use(self, name: str, in_use: Iterable[str]) -> float:
        """A sequence begins with it; seconds that loading it takes first."""
        seconds = 0.0
        if name in self._placed:
            self._placed.remove(name)
        else:
            seconds = self.load_seconds.get(name, 0.0)
            self.num_loaded += 1
            busy = set(in_use)
            if self._num_slots is not None and len(self._placed) >= self._num_slots:
                self._placed.remove(next(each for each in self._placed if each not in busy))
        self._placed.append(name)
        return seconds
