"""An engine client whose core is a thread of this process."""

import asyncio
import queue
import threading
from collections.abc import Callable

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.client import ChannelClient
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.loop import run_core
from fairlead_engine.core.messages import Command, Reply, Stop

_STOP_TIMEOUT = 30.0
"""Seconds for a running step to end when the client is closed; a thread cannot be killed."""


class InProcessClient(ChannelClient):
    """Runs `make_engine(config)` and its loop in a daemon thread; `Engine` itself by default."""

    def __init__(self, config: EngineConfig, make_engine: Callable[[EngineConfig], Engine] = Engine) -> None:
        super().__init__()
        self._config = config
        self._make_engine = make_engine
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def _launch(self) -> None:
        channel = _ThreadChannel(self._commands, asyncio.get_running_loop(), self._handle)
        self._thread = threading.Thread(
            target=run_core, args=(lambda: self._make_engine(self._config), channel), name="engine-core", daemon=True
        )
        self._thread.start()

    async def _shut_down(self) -> None:
        if self._thread is not None:
            self._commands.put(Stop())
            await asyncio.to_thread(self._thread.join, _STOP_TIMEOUT)

    def _transmit(self, command: Command) -> None:
        self._commands.put(command)


class _ThreadChannel:
    """The core's end, used on its thread; there is one client."""

    num_clients = 1

    def __init__(
        self,
        commands: "queue.SimpleQueue[Command]",
        loop: asyncio.AbstractEventLoop,
        handle: Callable[[Reply], None],
    ) -> None:
        self._commands = commands
        self._loop = loop
        self._handle = handle

    def receive(self, timeout: float | None) -> list[tuple[int, Command]]:
        commands: list[tuple[int, Command]] = []
        while True:
            try:
                commands.append((0, self._commands.get(timeout=timeout)))
            except queue.Empty:
                return commands
            timeout = 0.0

    def send(self, client: int, reply: Reply) -> None:
        self._loop.call_soon_threadsafe(self._handle, reply)
