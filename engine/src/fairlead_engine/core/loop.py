"""The core loop: commands in, steps, replies out. It runs in a thread or in a process of its own.

It knows neither asyncio nor sockets: a channel carries the messages.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from fairlead_engine.core.block_changes import BlockChanges
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.messages import Abort, Add, Command, Died, Failed, Reply, Started, Stepped, Stop
from fairlead_engine.errors import StartError
from fairlead_engine.types import SequenceOutput

logger = logging.getLogger(__name__)

_QUIET_SECONDS = 1.0
"""Idle for this long, the engine checks its invariants: milliseconds that no request should wait for."""


class Channel(Protocol):
    """The core's end of the line to its client."""

    def receive(self, timeout: float | None) -> list[Command]:
        """The commands that came since the last call; waits up to `timeout` seconds for one, None = for ever."""
        ...

    def send(self, reply: Reply) -> None:
        """Sends without waiting for the client."""
        ...


def run_core(make_engine: Callable[[], Engine], channel: Channel) -> bool:
    """Makes the engine and serves the channel until `Stop`; True when it ended because it was asked to.

    Every failure is told to the client first, so that no request ends in silence.
    """
    try:
        engine = make_engine()
    except StartError as error:
        channel.send(Failed(**error.to_dict()))
        return False
    except Exception as error:
        logger.exception("the engine core could not start")
        channel.send(Failed(StartError.reason, f"the engine core could not start: {_described(error)}"))
        return False
    try:
        _serve(engine, channel)
    except Exception as error:
        logger.exception("a step of the engine core failed")
        channel.send(Died(f"the engine core has died: {_described(error)}"))
        return False
    return True


def _serve(engine: Engine, channel: Channel) -> None:
    changes = BlockChanges()
    engine.blocks.listener = changes
    channel.send(Started(engine.info, engine.load))
    num_commands = 0
    while True:
        commands = channel.receive(timeout=0.0 if engine.has_work() else _QUIET_SECONDS)
        if not commands and not engine.has_work():
            if not engine.recheck():
                channel.send(Stepped([], engine.load, num_commands, changes.take()))
            commands = channel.receive(timeout=None)
        if any(isinstance(command, Stop) for command in commands):
            return
        outputs: list[SequenceOutput] = []
        for command in commands:
            match command:
                case Add(request):
                    outputs += filter(None, [engine.add(request)])
                case Abort(request_id):
                    engine.abort(request_id)
        num_commands += len(commands)
        if engine.has_work():
            outputs += engine.step()
        channel.send(Stepped(outputs, engine.load, num_commands, changes.take()))


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
