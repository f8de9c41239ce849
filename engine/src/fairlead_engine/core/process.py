"""The core as a process: `python -m fairlead_engine.core`, started by `ProcessClient` only.

The parent writes one line to standard input, `CoreLaunch`; the pipe's end, with the parent's, ends this process. All
else goes over ZeroMQ sockets: one bound by the parent, and one for each other HTTP process.
"""

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module

import msgspec
import zmq

from fairlead_common.logs import LogFormat, configure_logging
from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.loop import run_core
from fairlead_engine.core.messages import Command, Reply
from fairlead_engine.machine.child_process import die_with, leave_signals_to_parent, read_orders

_BYTES_AT_ONCE = 256 * 1024
"""Bytes of a client's commands taken between two steps: reading and queueing them takes some 10 ms."""
_COMMANDS_AT_ONCE = 256
_LINGER_MS = 2000
"""Time for the last reply to leave when the process ends."""


class CoreLaunch(msgspec.Struct, frozen=True):
    """Start options of a core."""

    addresses: list[str]
    """ZeroMQ addresses of the clients' sockets, the parent's first."""
    launched_at: float
    """Start of this process by the parent, in seconds of `time.time`."""
    parent_pid: int
    config: EngineConfig
    log_level: str = "info"
    log_format: str = LogFormat.TEXT
    """As the server writes its log."""


def serve_core(make_engine: Callable[[EngineConfig], Engine], modules: Sequence[str] = ()) -> int:
    """Runs a core until its parent stops it or dies; returns the exit status. Imports of `modules` are timed."""
    leave_signals_to_parent()
    launch = msgspec.json.decode(read_orders(), type=CoreLaunch)
    configure_logging(launch.log_level, launch.log_format)
    die_with(launch.parent_pid)
    channel = _SocketChannel(launch.addresses)
    try:
        return 0 if run_core(lambda: _started(make_engine, launch, modules), channel) else 1
    finally:
        channel.close()


def _started(make_engine: Callable[[EngineConfig], Engine], launch: CoreLaunch, modules: Sequence[str]) -> Engine:
    """Makes the engine, and exempts long-lived objects from garbage collections, which would stall steps."""
    for module in modules:
        import_module(module)
    gc.freeze()
    phases = {"import": time.time() - launch.launched_at}
    engine = make_engine(launch.config)
    engine.info = msgspec.structs.replace(engine.info, start_seconds={**phases, **engine.info.start_seconds})
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 50, 100)
    gc.enable()
    return engine


class _SocketChannel:
    """The core's ends of ZeroMQ pairs; waiting for commands blocks without using the CPU."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.num_clients = len(addresses)
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._sockets = [self._connected(address) for address in addresses]
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)

    def receive(self, timeout: float | None) -> list[tuple[int, Command]]:
        if timeout != 0.0:
            self._poller.poll(None if timeout is None else int(timeout * 1000))
        commands: list[tuple[int, Command]] = []
        for client, socket in enumerate(self._sockets):
            num_bytes = 0
            with suppress(zmq.Again):
                for _ in range(_COMMANDS_AT_ONCE):
                    command = socket.recv(zmq.NOBLOCK)
                    commands.append((client, self._decoder.decode(command)))
                    if (num_bytes := num_bytes + len(command)) > _BYTES_AT_ONCE:
                        break
        return commands

    def send(self, client: int, reply: Reply) -> None:
        self._sockets[client].send(self._encoder.encode(reply))

    def close(self) -> None:
        for socket in self._sockets:
            socket.close(linger=_LINGER_MS)
        self._context.term()

    def _connected(self, address: str) -> "zmq.Socket[bytes]":
        """A connected, not bound, socket: messages to a dead client wait and do not block."""
        socket = self._context.socket(zmq.PAIR)
        socket.setsockopt(zmq.SNDHWM, 0)  # clients merge what their consumers leave, so they always read
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.connect(address)
        self._poller.register(socket, zmq.POLLIN)
        return socket
