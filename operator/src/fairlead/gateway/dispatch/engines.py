"""What engines' streams tell, on its way to whom it matters: routing's Datastore, and the pool whose line may move."""

from collections.abc import Callable, Iterable

from fairlead.routing.datastore import Datastore
from fairlead.routing.load import Load
from fairlead_protocol.blocks import BlockHash


class EngineNews:
    """The fleet's EngineListener. `on_load` is set by whoever wants to hear of loads: the pools."""

    def __init__(self, datastore: Datastore) -> None:
        self._knowledge = datastore
        self.on_load: Callable[[str, Load | None], None] = lambda uid, load: None
        """Called with a replica's uid and its new load; None = it is not known any more."""

    def blocks_listed(self, uid: str, seq: int, hashes: Iterable[BlockHash]) -> None:
        self._knowledge.listed(uid, seq, hashes)

    def blocks_changed(self, uid: str, seq: int, stored: Iterable[BlockHash], removed: Iterable[BlockHash]) -> None:
        self._knowledge.changed(uid, seq, stored, removed)

    def load_changed(self, uid: str, load: Load) -> None:
        self._knowledge.loaded(uid, load)
        self.on_load(uid, load)

    def lost(self, uid: str) -> None:
        self._knowledge.lost(uid)
        self.on_load(uid, None)

    def left(self, uid: str) -> None:
        self._knowledge.forget(uid)
        self.on_load(uid, None)
