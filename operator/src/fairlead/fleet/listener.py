"""What followers of engines' streams tell, and whom: `EngineListener`. The gateway's pools are one."""

from collections.abc import Iterable
from typing import Protocol

from fairlead.routing.load import Load
from fairlead_protocol.blocks import BlockHash


class EngineListener(Protocol):
    """Hears of every replica's blocks and load, by the pod's uid, on the event loop. Calls must return at once."""

    def blocks_listed(self, uid: str, seq: int, hashes: Iterable[BlockHash]) -> None:
        """The replica's cache holds exactly these, as of `seq`: at the start, after a restart, after a gap."""
        ...

    def blocks_changed(self, uid: str, seq: int, stored: Iterable[BlockHash], removed: Iterable[BlockHash]) -> None:
        """The next change: first everything in `removed` goes, then everything in `stored` comes."""
        ...

    def load_changed(self, uid: str, load: Load) -> None:
        """A load line came."""
        ...

    def lost(self, uid: str) -> None:
        """The stream broke or fell silent: load and blocks are unknown until they are listed again."""
        ...

    def left(self, uid: str) -> None:
        """The replica is gone for good."""
        ...
