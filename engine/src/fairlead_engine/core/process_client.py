"""An engine client whose core is a child process: what the HTTP server uses. It never imports torch.

Client and core talk as `SocketClient` says, over sockets in a private folder: our own, and one for each peer, a process
that shares the core.
"""

import asyncio
import os
import sys
import time
from asyncio.subprocess import PIPE, Process

import msgspec

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.messages import Forget, Ping, Stop
from fairlead_engine.core.socket_client import SocketClient
from fairlead_engine.core.socket_folder import SocketFolder
from fairlead_engine.machine.child_process import described_end, give_orders
from fairlead_engine.types import EngineInfo
from fairlead_protocol.logs import LogFormat

_STOP_TIMEOUT = 5.0
"""Seconds that a core gets to end by itself before it is killed."""
_FAREWELL_TIMEOUT = 2.0
"""Seconds to wait for the last words of a core that ended by itself."""


class ProcessClient(SocketClient):
    """Runs `python -m module`, a program that calls `serve_core`, and talks to it."""

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
        """The core logs to stderr as the server does: by `log_level` and `log_format`. `num_peers`: other processes
        that will talk to it, each with a `SocketClient`."""
        super().__init__()
        self.peer_addresses: list[str] = []
        """For the peers' clients, once `start` has begun."""
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
        """Starts the core; see `EngineClient.start`."""
        info = await super().start()
        if not self._num_peers:
            self.all_connected()
        return info

    def all_connected(self) -> None:
        """The peers have heard of the core, too: nobody needs the sockets' names any more, and a server that is killed
        could not remove them."""
        self._remove_folder()

    def forget(self, peer: int) -> None:
        """A peer has died: what it has asked for ends. `peer`: its place in `peer_addresses`."""
        if self.alive:
            self._send(Forget(peer + 1))

    def ping(self) -> None:
        """Asks the core for an answer, unless it owes one: `step_age_seconds` then tells whether it comes."""
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
        """Notices the core's end. One that ended by itself has mostly said why, so its last words go first."""
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
