"""A server's blocks under our own hashes: events → changes of a set that gateways know. Pure.

A server's block hash cannot be computed here, but the event names the block's tokens and the block before. Both give
the hash that a gateway computes for a prompt with the same tokens. A block with unknown history gets no hash, and
neither do the following blocks.

While events may be missed, and for servers without events, computed prompts count as held: the most recently used
blocks, up to the server's number of blocks. The approximation does not know the server's evictions. llama.cpp's cache
is a number of places, each with the last sequence computed there: `SequencePlaces` follows the server's rules.

Gateways hear of at most the server's number of blocks, the newest first: servers may keep more elsewhere, and blocks
removed while events were missed stay in the books until a later event.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice

from fairlead_common.wire.blocks import DIGEST_SIZE, ROOT, BlockHash, extra_bytes, hash_block
from fairlead_engine.core.messages import BlocksChanged
from fairlead_engine.external import foreign_engine

_SPARE = 4
"""Most blocks in the books, in multiples of the server's number: some were removed without an event."""


LEAST_SHARE = 0.1
"""Least share of a prompt held by the place chosen for it."""


@dataclass(slots=True, eq=False)
class SequencePlace:
    """A sequence's place in the server's cache."""

    names: tuple[BlockHash, ...] = ()
    is_busy: bool = False


class SequencePlaces:
    """All places of one server, the least recently used first."""

    def __init__(self, num_places: int) -> None:
        self._places = [SequencePlace() for _ in range(num_places)]

    def take(self, names: Sequence[BlockHash]) -> SequencePlace | None:
        """Place of a new sequence with this prompt; None = all are busy, and it waits."""
        free = [place for place in self._places if not place.is_busy]
        if not free:
            return None
        best = max(free, key=lambda place: _num_common(place.names, names))
        num_common = _num_common(best.names, names)
        if num_common <= LEAST_SHARE * len(names):
            best, num_common = free[0], _num_common(free[0].names, names)
        best.names, best.is_busy = best.names[:num_common], True
        self._used(best)
        return best

    def computed(self, place: SequencePlace, names: Sequence[BlockHash]) -> None:
        place.names = tuple(names)

    def left(self, place: SequencePlace) -> None:
        """The place's sequence is over; the blocks stay until the next sequence."""
        place.is_busy = False
        self._used(place)

    def clear(self) -> None:
        for place in self._places:
            place.names = ()

    def held(self) -> Iterator[tuple[BlockHash, ...]]:
        return (place.names for place in self._places if not place.is_busy)

    def _used(self, place: SequencePlace) -> None:
        self._places.remove(place)
        self._places.append(place)


def _num_common(held: Sequence[BlockHash], names: Sequence[BlockHash]) -> int:
    return next((index for index, pair in enumerate(zip(held, names, strict=False)) if pair[0] != pair[1]),
                min(len(held), len(names)))  # fmt: skip


@dataclass(slots=True)
class _Block:
    name: BlockHash | None
    """None where unknown."""
    extra: bytes
    """Input of the block's hash besides tokens, inherited by following blocks."""
    media: set[str] = field(default_factory=set)


class ForeignBlocks:
    def __init__(self, block_size: int, num_blocks: int, num_places: int | None = None) -> None:
        """`num_places`: as a `ForeignModel`'s."""
        self._block_size = block_size
        self._num_blocks = num_blocks
        self._known: dict[foreign_engine.ForeignHash, _Block] = {}
        self._holders: Counter[BlockHash] = Counter()
        """How many foreign blocks have the same name."""
        self._assumed: dict[BlockHash, None] = {}
        """Blocks assumed in the cache; the least recently used first."""
        self._stored: list[tuple[BlockHash, list[BlockHash]]] = []
        self._removed: list[BlockHash] = []
        self._told: dict[BlockHash, None] = {}
        """Blocks known to gateways, in order of arrival."""
        self._places = None if num_places is None else SequencePlaces(num_places)
        self.is_exact = False
        """Whether events are complete."""
        self._is_lost = False
        """Whether events were given up after a loss, until a restart of the server."""

    def __contains__(self, name: BlockHash) -> bool:
        return name in self._holders or name in self._assumed

    def num_held(self, names: Sequence[BlockHash]) -> int:
        """Number of first blocks of a prompt that are held."""
        return next((index for index, name in enumerate(names) if name not in self), len(names))

    def told(self, events: Iterable[foreign_engine.BlockEvent]) -> BlocksChanged | None:
        """Applies events; None where nothing changes for gateways."""
        for event in events:
            match event:
                case foreign_engine.Stored():
                    self._store(event)
                case foreign_engine.Removed():
                    self._remove(event)
                case foreign_engine.Cleared():
                    self._clear()
                    self._is_lost = False
                case foreign_engine.EventsInterrupted():
                    self.is_exact = False
                case foreign_engine.Resumed(is_complete=True) if not self._is_lost:
                    self.is_exact = True
                    self._forget_assumed(0)
                case foreign_engine.Resumed():
                    self.is_exact = False
        return self._taken()

    def lost(self) -> BlocksChanged | None:
        """The server is gone, with all blocks; exact events report the loss by `Cleared`."""
        if self.is_exact:
            return None
        self._clear()
        self._is_lost = True
        return self._taken()

    def begins(self, names: Sequence[BlockHash]) -> tuple[SequencePlace | None, BlocksChanged | None]:
        """A prompt of these blocks goes to the server; returns its place, if the server has places."""
        place = None if self._places is None else self._places.take(names)
        return place, self._as_placed()

    def computed(self, names: Sequence[BlockHash], place: SequencePlace | None = None) -> BlocksChanged | None:
        """The server has computed a prompt of `names`, in `place` if the server has places."""
        if self._places is not None:
            if place is not None:
                self._places.computed(place, names)
            return None
        if self.is_exact:
            return None
        self._assume(names)
        self._forget_assumed(self._num_blocks)
        return self._taken()

    def ends(self, place: SequencePlace | None) -> BlocksChanged | None:
        if self._places is not None and place is not None:
            self._places.left(place)
        return self._as_placed()

    def _as_placed(self) -> BlocksChanged | None:
        if self._places is None:
            return None
        before, self._assumed = self._assumed, {}
        for names in self._places.held():
            self._assume(names)
        self._removed += [name for name in before if name not in self._assumed]
        return self._taken()

    def _assume(self, names: Sequence[BlockHash]) -> None:
        parent = ROOT
        for name in names:
            if name not in self:
                self._show(parent, name)
            self._assumed[name] = self._assumed.pop(name, None)
            parent = name

    def _store(self, event: foreign_engine.Stored) -> None:
        if event.block_size != self._block_size:
            return  # of layers with another cache
        if len(self._known) > _SPARE * self._num_blocks:
            self._clear()
            self.is_exact = False
        extra = extra_bytes(adapter=event.adapter)
        parent: BlockHash | None = ROOT
        if event.parent is not None:
            before = self._known.get(event.parent)
            parent, extra = (None, extra) if before is None else (before.name, before.extra)
        for index, foreign in enumerate(event.hashes):
            keys = event.extra_keys[index] if event.extra_keys else ()
            extra = _with_keys(extra, keys, event.adapter, begins=parent == ROOT)
            block = self._known.get(foreign)
            if block is None:
                tokens = event.token_ids[index * self._block_size : (index + 1) * self._block_size]
                name = None if parent is None else hash_block(parent, tokens, extra)
                block = self._known[foreign] = _Block(name, extra)
                if parent is not None and name is not None:
                    if name not in self:
                        self._show(parent, name)
                    self._holders[name] += 1
            block.media.add(event.medium)
            parent, extra = block.name, block.extra

    def _remove(self, event: foreign_engine.Removed) -> None:
        for foreign in event.hashes:
            block = self._known.get(foreign)
            if block is None:
                continue
            block.media.discard(event.medium)
            if block.media and event.medium:
                continue
            del self._known[foreign]
            if block.name is None:
                continue
            self._holders[block.name] -= 1
            if not self._holders[block.name]:
                del self._holders[block.name]
                self._assumed.pop(block.name, None)
                self._removed.append(block.name)

    def _clear(self) -> None:
        self._removed += {*self._holders, *self._assumed}
        self._known.clear()
        self._holders.clear()
        self._assumed.clear()
        if self._places is not None:
            self._places.clear()

    def _forget_assumed(self, num_left: int) -> None:
        while len(self._assumed) > num_left:
            name = next(iter(self._assumed))
            del self._assumed[name]
            if name not in self._holders:
                self._removed.append(name)

    def _show(self, parent: BlockHash, name: BlockHash) -> None:
        """Notes a new block for gateways."""
        if self._stored and self._stored[-1][1][-1] == parent:
            self._stored[-1][1].append(name)
        else:
            self._stored.append((parent, [name]))

    def _taken(self) -> BlocksChanged | None:
        """All changes since the last call as one change, without blocks both stored and removed in between."""
        stored, removed = self._stored, self._removed
        self._stored, self._removed = [], []
        if not stored and not removed:
            return None
        chains: list[tuple[BlockHash, list[BlockHash]]] = []
        before = set(self._told)
        for parent, names in stored:
            for name in names:
                if name in self:
                    self._told[name] = None
                    if chains and chains[-1][1][-1] == parent:
                        chains[-1][1].append(name)
                    else:
                        chains.append((parent, [name]))
                parent = name
        gone = [name for name in dict.fromkeys(removed) if name not in self and name in self._told]
        for name in gone:
            del self._told[name]
        return self._bounded(chains, gone, before)

    def _bounded(
        self, chains: list[tuple[BlockHash, list[BlockHash]]], gone: list[BlockHash], before: Set[BlockHash]
    ) -> BlocksChanged:
        """The change, plus the removal of the oldest blocks beyond the server's number. `before`: blocks known to
        gateways, possibly stored again."""
        num_too_many = len(self._told) - self._num_blocks
        if num_too_many <= 0:
            return BlocksChanged(stored=chains, removed=gone)
        dropped = set(islice(self._told, num_too_many))
        for name in dropped:
            del self._told[name]
        kept = [part for parent, names in chains for part in _without(dropped, parent, names)]
        return BlocksChanged(stored=kept, removed=[*gone, *(dropped & before)])


def _without(
    dropped: Set[BlockHash], parent: BlockHash, names: Sequence[BlockHash]
) -> Iterator[tuple[BlockHash, list[BlockHash]]]:
    """The rest of a chain, as chains."""
    chain: list[BlockHash] = []
    for name in names:
        if name not in dropped:
            chain.append(name)
            continue
        if chain:
            yield parent, chain
        parent, chain = name, []
    if chain:
        yield parent, chain


def _with_keys(extra: bytes, keys: Sequence[object], adapter: str | None, *, begins: bool) -> bytes:
    """Input of a block's hash besides tokens. A prompt's salt, known to gateways, is a key of the first block alone; no
    gateway asks for hashes with other keys, such as images."""
    rest = list(keys)
    if adapter is not None and rest and rest[0] == adapter:
        rest = rest[1:]
    if not rest:
        return extra
    if begins and len(rest) == 1 and isinstance(rest[0], str):
        return extra_bytes(adapter=adapter, cache_salt=rest[0])
    return extra + blake2b(repr(rest).encode(errors="backslashreplace"), digest_size=DIGEST_SIZE).digest()
