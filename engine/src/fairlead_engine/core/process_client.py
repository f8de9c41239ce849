"""Engine clients over ZeroMQ sockets, for a core in a child process and for a core started by another process.

Messages are msgspec structs as msgpack over a ZeroMQ pair on a Unix socket, bound by the client. The sockets lie in a
private folder: one for the process that starts the core, and one for each peer. No torch.
"""

import asyncio
import fcntl
import logging
import os
import shutil
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from fairlead_common.logs import LogFormat
from fairlead_engine.config import EngineConfig
from fairlead_engine.core.client import ChannelClient
from fairlead_engine.core.messages import Command, Died, Failed, Forget, Ping, Reply, Stop
from fairlead_engine.machine.child_process import described_end, give_orders
from fairlead_engine.types import EngineInfo

log = logging.getLogger(__name__)

_PREFIX = "fairlead-core-"
_LONGEST_SOCKET_PATH = 100
"""A Unix socket's path is limited to 107 bytes on Linux and 103 on macOS."""
_YOUNG_SECONDS = 60.0
"""A younger folder may not be locked yet."""


class SocketFolder:
    """A folder for sockets of this user, locked until the process ends; the next start removes unlocked ones."""

    def __init__(self) -> None:
        self.path = _private_folder()
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        sweep(self.path.parent)

    def remove(self) -> None:
        """Removes the folder once all sockets are connected."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def sweep(place: Path, young_seconds: float = _YOUNG_SECONDS) -> None:
    """Removes this user's folders whose processes are gone."""
    for path in place.glob(f"{_PREFIX}*"):
        try:
            facts = path.lstat()
            if facts.st_uid != os.geteuid() or time.time() - facts.st_mtime < young_seconds:
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # it has gone meanwhile, or is no folder
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
            log.info("removed what a killed process has left", extra={"folder": str(path)})
        except OSError:  # somebody has it
            pass
        finally:
            os.close(descriptor)


def _private_folder() -> Path:
    """A folder whose path is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    if len(os.fsencode(folder)) <= _LONGEST_SOCKET_PATH - len("/1000"):
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))


class SocketClient(ChannelClient):
    """A client of a core that will connect to `address`. The process that started the core calls `lost`."""

    _hears_of_every_step = False

    def __init__(self, address: str = "") -> None:
        super().__init__()
        self._address = address
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)

    def lost(self, message: str) -> None:
        """The core is gone: every running request ends with `EngineDead`."""
        self._die(message)

    async def _launch(self) -> None:
        self._bind(self._address)

    def _bind(self, address: str) -> "asyncio.Task[None]":
        """Binds the socket; returns the task that receives replies."""
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(address)
        self._receiving = asyncio.create_task(self._receive(self._socket))
        return self._receiving

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        reply: Reply | None = None
        while not isinstance(reply, Failed | Died):
            reply = self._decoder.decode(await socket.recv())
            self._handle(reply)

    def _transmit(self, command: Command) -> None:
        assert self._socket is not None
        self._socket.send(self._encoder.encode(command))

    async def _shut_down(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.gather(self._receiving, return_exceptions=True)
            self._receiving = None
        if self._socket is not None and self._context is not None:
            self._socket.close(linger=0)
            self._context.term()
            self._socket = self._context = None


_STOP_TIMEOUT = 5.0
"""Seconds until a core that does not end is killed."""
_FAREWELL_TIMEOUT = 2.0
"""Seconds to wait for the last words of a core that ended by itself."""


class ProcessClient(SocketClient):
    """A client that runs `python -m module`, a program around `serve_core`."""

    _hears_of_every_step = True

    def __init__(
        self,
        config: EngineConfig,
        *,
        module: str = "fairlead_engine.core",
        log_level: str = "info",
        log_format: str = LogFormat.TEXT,
        num_peers: int = 0,
    ) -> None:
        """`log_level`, `log_format`: of the core's log on stderr. `num_peers`: processes with a `SocketClient` each."""
        super().__init__()
        self.peer_addresses: list[str] = []
        """Addresses for the peers' clients, once `start` has begun."""
        self._num_peers = num_peers
        self._config = config
        self._log = {"log_level": log_level, "log_format": log_format}
        self._module = module
        self._process: Process | None = None
        self._folder: SocketFolder | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The core's process id once it was started."""
        return None if self._process is None else self._process.pid

    async def start(self) -> EngineInfo:
        info = await super().start()
        if not self._num_peers:
            self.all_connected()
        return info

    def all_connected(self) -> None:
        """All peers have connected: removes the sockets' names, which a killed server could not remove."""
        self._remove_folder()

    def forget(self, peer: int) -> None:
        """A peer has died: ends its requests. `peer`: index in `peer_addresses`."""
        if self.alive:
            self._send(Forget(peer + 1))

    def ping(self) -> None:
        """Asks for a reply unless the core owes one already; `step_age_seconds` then shows whether the reply comes."""
        if self.alive and self._owed_since is None:
            self._send(Ping())

    async def _launch(self) -> None:
        self._folder = SocketFolder()
        own, *self.peer_addresses = (f"ipc://{self._folder.path}/{index}" for index in range(1 + self._num_peers))
        receiving = self._bind(own)
        launched_at = time.time()
        # -P: modules come from where this program's own do, never from the folder it happens to run in.
        self._process = await asyncio.create_subprocess_exec(sys.executable, "-P", "-m", self._module, stdin=PIPE)
        launch = {
            "addresses": [own, *self.peer_addresses],
            "launched_at": launched_at,
            "parent_pid": os.getpid(),
            "config": self._config,
            **self._log,
        }
        give_orders(self._process, msgspec.json.encode(launch))
        self._watching = asyncio.create_task(self._watch(self._process, receiving))

    async def _watch(self, process: Process, receiving: "asyncio.Task[None]") -> None:
        """Waits for the core's end, and handles its last reply, mostly the reason, first."""
        status = await process.wait()
        if status >= 0:
            await asyncio.wait([receiving], timeout=_FAREWELL_TIMEOUT)
        self._die(f"the engine core has died: {described_end(status)}")

    async def _shut_down(self) -> None:
        process = self._process
        if process is not None:  # and may be None after a wait: a start that is cancelled shuts down, too
            assert process.stdin is not None
            self._transmit(Stop())
            try:
                await asyncio.wait_for(process.wait(), _STOP_TIMEOUT)
            except TimeoutError:  # in the middle of a long step, or hung
                process.kill()
                await process.wait()
            process.stdin.close()
            self._process = None
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        await super()._shut_down()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            self._folder.remove()
            self._folder = None
