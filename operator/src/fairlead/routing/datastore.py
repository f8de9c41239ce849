"""What a gateway knows of its replicas from their engines' streams: blocks and loads. One per process.

Whoever follows the streams tells it; every model's `Router` asks it. It knows no requests: what this gateway itself
has sent is in the router's books.
"""

from collections.abc import Callable, Iterable

from fairlead.routing.kv_index import Expectation, KVIndex
from fairlead.routing.replica import Load
from fairlead_protocol.blocks import BlockHash
from fairlead_protocol.messages import LOAD_STALE_SECONDS


class ApproximateBlocks:
    """What a replica's cache is taken to hold where its engine's word is not taken: the blocks of ours that it computed
    last, as many as it may have. An approximation: it knows what this gateway has sent, and no eviction but its own."""

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


class Datastore:
    """The KV index of all replicas and their last loads, by the pod's uid."""

    def __init__(self, max_blocks: int = 1_000_000) -> None:
        """`max_blocks`: most blocks that are kept of one replica, as told."""
        self.index = KVIndex()
        self.max_blocks = max_blocks
        self.on_load: Callable[[str, Load | None], object] = lambda uid, load: None
        """Called with a replica's uid when it has told a load; None: what it told does not hold any more."""
        self._loads: dict[str, Load] = {}
        self._told: set[str] = set()
        """Replicas that have ever told a load."""
        self._draining: set[str] = set()
        """Replicas whose last load said that they drain."""
        self._computed: dict[str, list[Expectation]] = {}
        """Prefills that are over, but whose blocks the replica may not have told yet."""
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
        """The stream broke: load and blocks are unknown until they are told again."""
        self._void(uid)
        self.on_load(uid, None)

    def distrusted(self, uid: str, max_blocks: int) -> None:
        """What the replica tells is not believed any more: from now on it is taken to hold what it computes for this
        gateway, at most so many blocks. It is as good a replica as one that never told anything."""
        self._void(uid)
        self._told.discard(uid)
        self._approximated[uid] = ApproximateBlocks(max_blocks)
        self.index.replace(uid, 0, ())
        self.on_load(uid, None)

    def num_blocks(self, uid: str) -> int:
        """Different blocks that are kept of the replica, as told."""
        return self.index.num_blocks(uid)

    def approximates(self, uid: str) -> bool:
        """Whether what the replica holds is not what it tells."""
        return uid in self._approximated

    def forget(self, uid: str) -> None:
        """The replica is gone for good."""
        self._void(uid)
        self._approximated.pop(uid, None)
        self._told.discard(uid)
        self._draining.discard(uid)
        self.on_load(uid, None)

    def computed(self, expectation: Expectation) -> None:
        """A prefill is over. Its blocks stay expected until the replica's next line, which comes at about this time:
        else they would be missing for a moment."""
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
        """Whether the replica has told loads before and tells none now: something is wrong with it, or on the way."""
        return uid in self._told and self.load(uid, now) is None

    def drains(self, uid: str) -> bool:
        """Whether the replica has said that it drains. Engines do not return from that but by a restart, so it holds
        when the stream ends, until another load says otherwise."""
        return uid in self._draining

    def _void(self, uid: str) -> None:
        self._loads.pop(uid, None)
        self._settle(uid)
        self.index.remove(uid)

    def _settle(self, uid: str) -> None:
        for expectation in self._computed.pop(uid, ()):
            self.index.settle(expectation)


def stale_at(load: Load) -> float:
    """From when on a load says nothing any more."""
    return load.time + LOAD_STALE_SECONDS
