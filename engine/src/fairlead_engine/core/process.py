"""The core as a process of its own: `python -m fairlead_engine.core`, started by `ProcessClient` and by nobody else.

Its parent writes one line to standard input, `Launch`, and then keeps the pipe open for as long as it lives: the end of
that pipe is the end of this process. Everything else goes over a ZeroMQ socket that the parent has bound.
"""

import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib import import_module

import msgspec
import zmq

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.loop import run_core
from fairlead_engine.core.messages import Command, Reply
from fairlead_protocol.logs import LogFormat, configure_logging

_STDIN = 0
_PR_SET_PDEATHSIG = 1
_LINGER_MS = 2000
"""How long the last reply may take to leave when the process ends."""


class Launch(msgspec.Struct, frozen=True):
    """What a core needs to know to start."""

    address: str
    """ZeroMQ address of the parent's socket."""
    launched_at: float
    """When the parent started this process, in seconds of `time.time`."""
    parent_pid: int
    config: EngineConfig
    log_level: str = "info"
    log_format: str = LogFormat.TEXT
    """As the server writes its log."""


def serve_core(make_engine: Callable[[EngineConfig], Engine], modules: Sequence[str] = ()) -> int:
    """Runs a core until its parent stops it or dies; returns the exit status. `modules` are imported first: what takes
    long to import counts as that."""
    # The parent decides when work ends: Ctrl-C and a pod's SIGTERM reach the whole process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    launch = msgspec.json.decode(_read_line(), type=Launch)
    configure_logging(launch.log_level, launch.log_format)
    _die_with(launch.parent_pid)
    channel = _SocketChannel(launch.address)
    try:
        return 0 if run_core(lambda: _started(make_engine, launch, modules), channel) else 1
    finally:
        channel.close()


def _read_line() -> bytes:
    """One line of standard input, read without Python's buffer, which a thread must not share at exit."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(_STDIN, 65536)
        if not chunk:
            raise SystemExit("this process is started by the engine server; run `fairlead-engine serve` instead")
        line += chunk
    return line


def _die_with(parent_pid: int) -> None:
    """Ends this process when its parent is gone, however it went.

    Linux kills it even in the middle of a long step; elsewhere a thread does, as soon as the step lets it run.
    """

    def end_with_input() -> None:
        while os.read(_STDIN, 4096):
            pass
        os._exit(1)

    threading.Thread(target=end_with_input, name="lifeline", daemon=True).start()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:  # it died before that call
            os._exit(1)


def _started(make_engine: Callable[[EngineConfig], Engine], launch: Launch, modules: Sequence[str]) -> Engine:
    """Keeps the garbage collector off what lives as long as the process: a full collection would stall a step, and many
    of them an import."""
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
    """The core's end of a ZeroMQ pair; waiting for commands blocks without using the CPU."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # the client merges what its consumers leave, so it always reads
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)

    def receive(self, timeout: float | None) -> list[Command]:
        if timeout != 0.0:
            self._socket.poll(None if timeout is None else int(timeout * 1000))
        commands: list[Command] = []
        while True:
            try:
                commands.append(self._decoder.decode(self._socket.recv(zmq.NOBLOCK)))
            except zmq.Again:
                return commands

    def send(self, reply: Reply) -> None:
        self._socket.send(self._encoder.encode(reply))

    def close(self) -> None:
        self._socket.close(linger=_LINGER_MS)
        self._context.term()
