"""What this engine tells its followers, mostly gateways: every change of its reusable blocks, and how loaded it is.

Hears of each report of the core on the event loop, which it never keeps waiting. Wired in `Service`; the endpoints of
`kv_endpoints` serve it.
"""

import asyncio
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from fairlead_engine.core.messages import BlocksChanged
from fairlead_engine.server.dispatches import Dispatch, Dispatches
from fairlead_engine.server.followers import Follower, Followers
from fairlead_engine.server.kv_mirror import KVMirror, encoded
from fairlead_engine.server.lifecycle import Lifecycle
from fairlead_engine.types import EngineLoad
from fairlead_protocol.messages import LoadLine, StreamLine

log = logging.getLogger(__name__)

BUSY_SECONDS = 0.1
"""Between two load lines while something waits or runs."""
IDLE_SECONDS = 1.0


class Core(Protocol):
    """What is told of: an `EngineClient`, or what stands for one."""

    @property
    def load(self) -> EngineLoad: ...

    @property
    def num_reports(self) -> int: ...

    @property
    def alive(self) -> bool: ...

    @property
    def step_age_seconds(self) -> float: ...


class EngineStream:
    """The engine's state as a stream of lines. Load lines are made only while somebody follows.

    They come in a steady beat, and at once when the engine becomes full, stops being full or begins to drain.
    """

    def __init__(self, client: Core, lifecycle: Lifecycle) -> None:
        self.mirror = KVMirror()
        self.followers = Followers()
        self.dispatches = Dispatches()
        self.has_ended = False
        """Whether the server stops: nobody may follow any more."""
        self._client = client
        self._lifecycle = lifecycle
        self._was_full = False
        self._told_at = -math.inf  # loop time of the last load line
        self._beat: asyncio.Handle | None = None  # uvloop gives one that does not say when, where the time has come
        self._beats_at = math.inf  # loop time at which it will

    # -- what the core reports -------------------------------------------------------------------------------------

    def stepped(self, changed: BlocksChanged | None, num_commands: int) -> None:
        """Takes over what a step changed; see `StepListener`."""
        self.dispatches.obeyed(num_commands)
        self.dispatches.reported(self._client.num_reports)
        if changed is not None:
            self.followers.send(self.mirror.apply(changed))
        load = self._client.load
        is_full = load.running + load.waiting >= load.max_num_seqs
        if is_full != self._was_full:
            self._was_full = is_full
            self.tell_load()
        else:
            self._hasten()

    def sent(self, command: int, dispatch: Dispatch) -> None:
        """A part of a request went to the core, as this command."""
        dispatch.command = command
        self._hasten()  # the first step may take longer than the beat

    def seen_elsewhere(self, gateway: str, number: int, report: int) -> None:
        """Another process has sent the core a gateway's request; see `Dispatches`."""
        self.dispatches.seen_elsewhere(gateway, number, report)
        self.dispatches.reported(self._client.num_reports)

    # -- who follows -----------------------------------------------------------------------------------------------

    @contextmanager
    def followed(self, epoch: str, seq: int) -> Iterator[Follower]:
        """A follower that has every change up to `seq`: it gets the load, what it missed, then what comes.

        Raises `NotInRing` when it has to list the blocks first.
        """
        with self.followers.joined([self._load_line(), *self.mirror.since(epoch, seq)]) as follower:
            if self._beat is None:
                self._told_at = asyncio.get_running_loop().time()
                self._schedule()
            yield follower

    def tell_load(self) -> None:
        """Tells every follower the load now."""
        if self.followers:
            self._told_at = asyncio.get_running_loop().time()
            self.followers.send(self._load_line())
            self._schedule()

    def end(self) -> None:
        """The server stops, or the core is gone: ends every follower's stream."""
        self.has_ended = True
        self.followers.end()
        self._stop_beat()

    # -- the beat --------------------------------------------------------------------------------------------------

    def _on_beat(self) -> None:
        self._beat = None
        if not self._client.alive:  # its last load says nothing any more
            self.end()
        else:
            self.tell_load()

    def _schedule(self) -> None:
        self._stop_beat()
        self._beats_at = self._next_beat()
        self._beat = asyncio.get_running_loop().call_at(self._beats_at, self._on_beat)

    def _hasten(self) -> None:
        """The beat quickens when the engine becomes busy; it slows down by itself."""
        if self._beat is not None and self._beats_at > self._next_beat():
            self._schedule()

    def _stop_beat(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None

    def _next_beat(self) -> float:
        is_busy = self._client.load.num_sequences > 0 or self._client.step_age_seconds > 0.0
        return self._told_at + (BUSY_SECONDS if is_busy else IDLE_SECONDS)

    def _load_line(self) -> bytes:
        own = {"step_age_seconds": round(self._client.step_age_seconds, 6), "draining": self._lifecycle.is_draining}
        line = LoadLine(**self._client.load.figures | own, seq=self.mirror.seq, seen=self.dispatches.seen)
        return encoded(StreamLine(load=line))
