"""The other HTTP processes of an engine, from the view of the first, their parent.

The first process owns the core, the listening socket, lifecycle, metrics and the engine's stream. It gives the peers
connections and the order to drain, and adds up their counts. A peer's own side is `peer_process`.
"""

import asyncio
import logging
import os
import socket
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from fairlead_engine.api.service import Siblings
from fairlead_engine.config import EngineConfig, ServerConfig
from fairlead_engine.core.process_client import ProcessClient
from fairlead_engine.errors import EngineError, PeerLost, StartError, start_error
from fairlead_engine.host import peer_link
from fairlead_engine.host.engine_stream import EngineStream
from fairlead_engine.machine.child_process import described_end, give_orders

log = logging.getLogger(__name__)

MODULE = "fairlead_engine.server.peer_process"
_ANSWER_SECONDS = 1.0
"""Wait for a peer's counts; after it, the last counts are used."""
_BEAT_SECONDS = 2.0
"""Between two requests for a peer's counts, which show whether the peer hangs."""
_SILENT_SECONDS = 5.0
"""Silence after which a peer gets no more connections, and at the end is killed instead of awaited."""
_AWAITED_SECONDS = 1.0
"""A core that owes a peer an answer for longer is pinged: the first process hears of steps, but not of a hang between
two steps."""
_STOP_SECONDS = 10.0
"""Time for a peer to end before it is killed."""
_MARGIN_SECONDS = 3.0
"""Patience with a peer beyond the end of a drain's time."""


def share(config: ServerConfig, place: int) -> ServerConfig:
    """Settings of one process by itself: bounds on all processes together are divided by the number of processes."""
    number = config.api_servers
    connections = config.max_connections // number + (place < config.max_connections % number)
    bodies = max(config.max_body_bytes, config.max_partial_body_bytes // number)
    return replace(config, api_servers=1, max_connections=connections, max_partial_body_bytes=bodies)


class Peers(Siblings):
    """All peers; none where the engine has one process."""

    def __init__(
        self,
        client: ProcessClient,
        stream: EngineStream,
        *,
        take_control: Callable[[socket.socket], object],
        on_lost: Callable[[], object],
    ) -> None:
        """`take_control` gets connections on which peers ask the first process. `on_lost` is called at the first death
        of a peer."""
        self.error: EngineError | None = None
        """Why the engine has to end; None = no reason."""
        self._client = client
        self._stream = stream
        self._take_control = take_control
        self._on_lost = on_lost
        self._peers: list[Peer] = []
        self._is_stopping = False
        self._beat: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None

    async def start(self, engine: EngineConfig, server: ServerConfig, folder: Path) -> None:
        """Starts the peers of a core that is starting; returns when all are loaded. Raises `StartError`."""
        if server.api_servers == 1:
            return
        for index, address in enumerate(self._client.peer_addresses):
            peer = Peer(index + 1, self._stream, self._take_control, self._lost)
            self._peers.append(peer)
            await peer.start(engine, share(server, peer.place), folder, address, server.api_servers)
        await asyncio.gather(*(peer.loaded for peer in self._peers))
        self._client.all_connected()

    def serve(self, created: int) -> None:
        """Lets the peers take requests. `created`: Unix time at which the model was loaded."""
        for peer in self.present:
            peer.serve(created)
        if self._peers:
            self._on_beat()

    @property
    def present(self) -> "Sequence[Peer]":
        return [peer for peer in self._peers if peer.is_alive]

    @property
    def places(self) -> "Sequence[Peer]":
        """Peers that take connections."""
        return [peer for peer in self._peers if peer.is_serving and peer.silent_seconds < _SILENT_SECONDS]

    @property
    def num_running(self) -> int:
        return sum(peer.figures.num_running for peer in self.present)

    async def ask(self) -> None:
        await asyncio.gather(*(peer.answer() for peer in self.places))

    def problem(self, patience_seconds: float) -> str | None:
        silent = max(self.present, key=lambda each: each.silent_seconds, default=None)
        if silent is None or silent.silent_seconds <= patience_seconds:
            return None
        return f"HTTP process {silent.place} of this engine has not answered for {silent.silent_seconds:.0f} s"

    def samples(self) -> Iterator[peer_link.MetricSample]:
        """Observations of all peers when last asked; of dead peers, counters alone."""
        for peer in self._peers:
            yield from peer.figures.samples

    def drain(self, grace_seconds: float, timeout_seconds: float) -> None:
        self._tell(peer_link.DrainPeer(grace_seconds, timeout_seconds))
        self._wait_at_most(grace_seconds + timeout_seconds)

    def hurry(self) -> None:
        self._tell(peer_link.Hurry())
        self._wait_at_most(0.0)

    def core_lost(self, message: str) -> None:
        self._tell(peer_link.CoreLost(message))

    async def drained(self) -> None:
        """Returns when no peer runs a request; a peer that does not serve yet has none."""
        for peer in self._peers:
            if peer.is_serving:
                await peer.drained.wait()

    async def stop(self) -> None:
        """Ends the peers after answers already written."""
        self._is_stopping = True
        for timer in (self._beat, self._patience):
            if timer is not None:
                timer.cancel()
        await asyncio.gather(*(peer.stop() for peer in self._peers))

    def _on_beat(self) -> None:
        for peer in self.present:
            peer.ask()
        if any(peer.figures.awaited_seconds > _AWAITED_SECONDS for peer in self.present):
            self._client.ping()
        self._beat = asyncio.get_running_loop().call_later(_BEAT_SECONDS, self._on_beat)

    def _wait_at_most(self, seconds: float) -> None:
        """Bounds the wait for a drain's end; a repeated drain does not extend it."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + seconds + _MARGIN_SECONDS
        if self._patience is not None:
            if self._patience.when() <= ends_at:
                return
            self._patience.cancel()
        self._patience = loop.call_at(ends_at, self._give_up)

    def _give_up(self) -> None:
        for peer in self._peers:
            if not peer.drained.is_set():
                log.warning("an HTTP process does not say that it has drained", extra={"place": peer.place})
                peer.drained.set()

    def _tell(self, message: msgspec.Struct) -> None:
        for peer in self.present:
            peer.tell(message)

    def _lost(self, peer: "Peer", how: str) -> None:
        """A peer has ended without being told to."""
        if self._is_stopping:
            return
        error = PeerLost(f"HTTP process {peer.place} of this engine has died: {how}")
        log.error(error.message)
        self._client.forget(peer.place - 1)
        if self.error is None:
            self.error = error
            self._on_lost()


class Peer(peer_link.HttpProcess):
    """One peer: the process, and the messages in both directions."""

    def __init__(
        self,
        place: int,
        stream: EngineStream,
        take_control: Callable[[socket.socket], object],
        on_lost: "Callable[[Peer, str], object]",
    ) -> None:
        super().__init__()
        self.place = place
        self.loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with the `StartError` that prevents loading."""
        self.drained = asyncio.Event()
        """The peer has finished, or is gone."""
        self.is_serving = False
        self.figures = peer_link.PeerFigures(0, [])
        self._stream = stream
        self._take_control = take_control
        self._on_lost = on_lost
        self._asked: deque[asyncio.Future[None]] = deque()  # an answer each, in this order
        self._asked_at: float | None = None  # monotonic seconds; None = no answer is owed
        self._process: Process | None = None
        self._line: peer_link.Line[peer_link.FromPeer] | None = None
        self._passage: peer_link.Passage | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(
        self, engine: EngineConfig, server: ServerConfig, folder: Path, core_address: str, num_places: int
    ) -> None:
        """Starts the process, with these settings; `loaded` tells the rest."""
        self.max_connections = server.max_connections
        ours, theirs = zip(socket.socketpair(), socket.socketpair(), strict=True)
        self._line = await peer_link.Line.over(ours[0], peer_link.FromPeer)
        self._passage = peer_link.Passage(ours[1], self._take_control)
        self._passage.open()
        descriptors = [end.fileno() for end in theirs]
        command = [sys.executable, "-P", "-m", MODULE]
        self._process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, pass_fds=descriptors)
        for end in theirs:
            end.close()
        messages_fd, connections_fd = descriptors
        orders = peer_link.PeerOrders(
            parent_pid=os.getpid(),
            place=self.place,
            num_places=num_places,
            folder=str(folder),
            core_address=core_address,
            messages_fd=messages_fd,
            connections_fd=connections_fd,
            engine=engine,
            server=server,
        )
        give_orders(self._process, msgspec.json.encode(orders))
        self._tasks = [
            asyncio.create_task(self._listen(self._line)),
            asyncio.create_task(self._watch(self._process)),
        ]

    def serve(self, created: int) -> None:
        self.tell(peer_link.Serve(created))
        self.is_serving = True

    def tell(self, message: msgspec.Struct) -> None:
        if self._line is not None:
            self._line.send(message)

    def ask(self) -> None:
        """Asks for `figures`, unless the answer is owed already."""
        if self._asked_at is None:
            self._ask()

    @property
    def silent_seconds(self) -> float:
        """How long an answer has been owed."""
        return 0.0 if self._asked_at is None else time.monotonic() - self._asked_at

    async def answer(self) -> None:
        """Returns when `figures` are new, or cannot be had."""
        try:
            await asyncio.wait_for(self._ask(), _ANSWER_SECONDS)  # what is under way may have been counted too early
        except TimeoutError:
            log.warning("an HTTP process does not say what it has counted", extra={"place": self.place})

    def take(self, connection: socket.socket) -> bool:
        if self._passage is None or not self._passage.give(connection):
            return False
        connection.close()
        self.num_taken += 1
        return True

    async def stop(self) -> None:
        self.is_serving = False
        if self._line is not None:
            self._line.close()
        if self._process is not None:
            if self.is_alive and (not self.loaded.done() or self.silent_seconds > _SILENT_SECONDS):
                self._process.kill()  # it may be importing, and has nothing to finish; or it hangs
            try:
                await asyncio.wait_for(self._process.wait(), _STOP_SECONDS)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._passage is not None:
            self._passage.close()
        if not self.loaded.cancel() and not self.loaded.cancelled():
            self.loaded.exception()  # nobody may have asked for it

    async def _listen(self, line: peer_link.Line[peer_link.FromPeer]) -> None:
        while (message := await line.receive()) is not None:
            match message:
                case peer_link.PeerLoaded():
                    self._is_loaded()
                case peer_link.NotLoaded(reason, text):
                    self._is_loaded(start_error(reason, text))
                case peer_link.Closed(num_connections):
                    self.num_closed = num_connections
                case peer_link.Seen(gateway, number, report):
                    self._stream.seen_elsewhere(gateway, number, report)
                case peer_link.MalformedDispatch():
                    self._stream.dispatches.num_malformed += 1
                case peer_link.Drained():
                    self.drained.set()
                case peer_link.PeerFigures():
                    self.figures = message
                    self._asked_at = None
                    if self._asked:
                        _settle(self._asked.popleft())

    async def _watch(self, process: Process) -> None:
        how = described_end(await process.wait())
        self.is_serving = False
        await asyncio.wait([self._tasks[0]])  # its last words
        self._is_loaded(PeerLost(f"HTTP process {self.place} of this engine could not start: {how}"))
        self.figures = peer_link.PeerFigures(0, [sample for sample in self.figures.samples if not sample.is_of_now])
        for answer in self._asked:
            _settle(answer)
        self.drained.set()
        self._on_lost(self, how)

    def _ask(self) -> asyncio.Future[None]:
        """Done at the peer's answer."""
        self._asked_at = self._asked_at or time.monotonic()
        self._asked.append(asyncio.get_running_loop().create_future())
        self.tell(peer_link.Ask())
        return self._asked[-1]

    def _is_loaded(self, error: StartError | PeerLost | None = None) -> None:
        if self.loaded.done():
            return
        if error is None:
            self.loaded.set_result(None)
        else:
            self.loaded.set_exception(error)


def _settle(answer: asyncio.Future[None]) -> None:
    if not answer.done():  # the waiting task may have left
        answer.set_result(None)
