"""Blocks and loads that engines' streams have told a gateway. One per process.

Streams write, every model's `Router` reads. This gateway's own requests are in the router's books.
"""

from collections.abc import Callable, Iterable

from fairlead.routing.kv_index import Expectation, KVIndex
from fairlead.routing.replica import Load
from fairlead_common.wire.blocks import BlockHash
from fairlead_common.wire.messages import LOAD_STALE_SECONDS


class ApproximateBlocks:
    """The assumed cache of a distrusted replica: the last blocks computed for this gateway. Other gateways' requests
    and the engine's evictions are unknown."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._blocks: dict[BlockHash, None] = {}
        """Those computed longest ago first."""

    def computed(self, hashes: Iterable[BlockHash]) -> tuple[list[BlockHash], list[BlockHash]]:
        """The replica has computed these blocks; returns (added, removed) blocks."""
        before = set(self._blocks)
        for block in hashes:
            self._blocks[block] = self._blocks.pop(block, None)
        while len(self._blocks) > self._max_blocks:
            del self._blocks[next(iter(self._blocks))]
        return [block for block in self._blocks if block not in before], [
            block for block in before if block not in self._blocks
        ]


class Datastore:
    """The KV index of all replicas and their last loads, by the pod's uid."""

    def __init__(self, max_blocks: int = 1_000_000) -> None:
        """`max_blocks`: most blocks kept per replica."""
        self.index = KVIndex()
        self.max_blocks = max_blocks
        self.on_load: Callable[[str, Load | None], object] = lambda uid, load: None
        """Called with a replica's uid and new load; None = the last load is void."""
        self._loads: dict[str, Load] = {}
        self._told: set[str] = set()
        """Replicas that have ever told a load."""
        self._draining: set[str] = set()
        """Replicas whose last load said that they drain."""
        self._computed: dict[str, list[Expectation]] = {}
        """Finished prefills with blocks that the replica may not have told yet."""
        self._approximated: dict[str, ApproximateBlocks] = {}
        """Replicas that are not listened to any more."""

    def listed(self, uid: str, seq: int, hashes: Iterable[BlockHash]) -> None:
        """The replica's cache holds exactly `hashes`, as of `seq`."""
        self.index.replace(uid, seq, hashes)
        self._settle(uid)

    def changed(self, uid: str, seq: int, stored: Iterable[BlockHash], removed: Iterable[BlockHash]) -> None:
        """The next change: first `removed` goes, then `stored` comes. Raises SeqGap where it is not the next."""
        self.index.apply(uid, seq, stored, removed)
        self._settle(uid)

    def loaded(self, uid: str, load: Load) -> None:
        """A load line came."""
        self._loads[uid] = load
        self._told.add(uid)
        (self._draining.add if load.draining else self._draining.discard)(uid)
        self._settle(uid)
        self.on_load(uid, load)

    def lost(self, uid: str) -> None:
        """The stream broke: load and blocks are unknown for now."""
        self._void(uid)
        self.on_load(uid, None)

    def distrusted(self, uid: str, max_blocks: int) -> None:
        """The replica's word is impossible: from now on it is assumed to hold the last `max_blocks` blocks computed for
        this gateway, and counts as a replica without loads."""
        self._void(uid)
        self._told.discard(uid)
        self._approximated[uid] = ApproximateBlocks(max_blocks)
        self.index.replace(uid, 0, ())
        self.on_load(uid, None)

    def num_blocks(self, uid: str) -> int:
        """Different blocks of the replica."""
        return self.index.num_blocks(uid)

    def approximates(self, uid: str) -> bool:
        """Whether the replica's blocks are assumed rather than told."""
        return uid in self._approximated

    def forget(self, uid: str) -> None:
        """The replica is gone for good."""
        self._void(uid)
        self._approximated.pop(uid, None)
        self._told.discard(uid)
        self._draining.discard(uid)
        self.on_load(uid, None)

    def computed(self, expectation: Expectation) -> None:
        """A prefill is over. Its blocks stay expected until the replica's next line, to bridge the gap."""
        seq = self.index.seq(expectation.uid)
        if seq is None:  # the replica is gone: no line will come
            self.index.settle(expectation)
            return
        if (blocks := self._approximated.get(expectation.uid)) is not None:
            self.index.apply(expectation.uid, seq + 1, *blocks.computed(expectation.hashes))
            self.index.settle(expectation)
            return
        self._computed.setdefault(expectation.uid, []).append(expectation)

    def load(self, uid: str, now: float) -> Load | None:
        """The replica's last load; None where it is stale or unknown."""
        load = self._loads.get(uid)
        return load if load is not None and now < stale_at(load) else None

    def fell_silent(self, uid: str, now: float) -> bool:
        """Whether the replica has told loads before, but not lately."""
        return uid in self._told and self.load(uid, now) is None

    def drains(self, uid: str) -> bool:
        """Whether the replica has announced its drain. Only a restart ends a drain, so the answer outlives the stream,
        until the next load."""
        return uid in self._draining

    def _void(self, uid: str) -> None:
        self._loads.pop(uid, None)
        self._settle(uid)
        self.index.remove(uid)

    def _settle(self, uid: str) -> None:
        for expectation in self._computed.pop(uid, ()):
            self.index.settle(expectation)


def stale_at(load: Load) -> float:
    """When a load becomes too old."""
    return load.time + LOAD_STALE_SECONDS
