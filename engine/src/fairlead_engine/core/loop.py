"""The core loop: commands in, steps, replies out. It runs in a thread or in a process of its own.

It knows neither asyncio nor sockets: a channel carries the messages, and `Clients` knows who is to have them.
"""

import logging
from collections.abc import Callable
from functools import partial

from fairlead_engine.core.adapter_places import folder_below
from fairlead_engine.core.clients import Channel, Clients
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.messages import (
    Abort,
    Add,
    BlocksChanged,
    Command,
    Died,
    Failed,
    Forget,
    Hold,
    Inject,
    LoadAdapter,
    Started,
    Stop,
    UnloadAdapter,
)
from fairlead_engine.errors import AdapterError, StartError
from fairlead_engine.types import SequenceOutput
from fairlead_protocol.blocks import BlockHash

logger = logging.getLogger(__name__)

_READING_SECONDS = 0.005
"""So often it is looked whether an adapter was read, while nothing else is to do."""
_QUIET_SECONDS = 1.0
"""Idle for this long, the engine checks its invariants: milliseconds that no request should wait for."""


class BlockChanges:
    """A `BlockListener` that keeps what a step did to the reusable blocks until `take`.

    Blocks are evicted while a step is planned and published when it has been computed, so within one step whatever is
    removed goes before anything is stored: two lists tell it all.
    """

    def __init__(self) -> None:
        self._stored: list[tuple[BlockHash, list[BlockHash]]] = []
        self._removed: list[BlockHash] = []

    def stored(self, parent: BlockHash, hashes: list[BlockHash]) -> None:
        self._stored.append((parent, hashes))

    def removed(self, block_hash: BlockHash) -> None:
        assert not self._stored, "a block was evicted after others had been published in the same step"
        self._removed.append(block_hash)

    def take(self) -> BlocksChanged | None:
        """What happened since the last call; None when nothing did."""
        if not self._stored and not self._removed:
            return None
        changed = BlocksChanged(self._stored, self._removed)
        self._stored, self._removed = [], []
        return changed


def run_core(make_engine: Callable[[], Engine], channel: Channel) -> bool:
    """Makes the engine and serves the channel until `Stop`; True when it ended because it was asked to.

    Every failure is told to all clients first, so that no request ends in silence.
    """
    clients = Clients(channel)
    try:
        engine = make_engine()
    except StartError as error:
        clients.tell_all(Failed(**error.to_dict()))
        return False
    except Exception as error:
        logger.exception("the engine core could not start")
        clients.tell_all(Failed(StartError.reason, f"the engine core could not start: {_described(error)}"))
        return False
    try:
        _serve(engine, channel, clients)
    except Exception as error:
        logger.exception("a step of the engine core failed")
        clients.tell_all(Died(f"the engine core has died: {_described(error)}"))
        return False
    return True


def _serve(engine: Engine, channel: Channel, clients: Clients) -> None:
    changes = BlockChanges()
    engine.blocks.listener = changes
    clients.tell_all(Started(engine.info, engine.load))
    while True:
        was_busy, is_reading = engine.has_work(), engine.adapters.is_reading
        idle_seconds = _READING_SECONDS if is_reading else _QUIET_SECONDS
        commands = channel.receive(timeout=engine.spare_seconds if was_busy else idle_seconds)
        if is_reading:
            engine.adapters.settle()
            if not (commands or was_busy or clients.owes_answers):
                continue
        elif not commands and not was_busy:
            if not engine.recheck():
                clients.report([], engine.load, changes.take())
            commands = channel.receive(timeout=None)
        if any(isinstance(command, Stop) for _, command in commands):
            return
        outputs = _obey(commands, engine, clients)
        can_wait = engine.spare_seconds > 0.0
        if can_wait and not commands:
            continue
        if engine.has_work() and not can_wait:
            if clients.are_several and not was_busy:
                # The first client says how long a step takes, and knows of no step that others have caused.
                clients.report(outputs, engine.load)
                outputs = []
            outputs += engine.step()
        clients.report(outputs, engine.load, changes.take())


def _obey(commands: list[tuple[int, Command]], engine: Engine, clients: Clients) -> list[SequenceOutput]:
    """Returns the last outputs of the requests that were refused."""
    outputs: list[SequenceOutput] = []
    for client, command in commands:
        if clients.is_gone(client):  # what it said last may be read after the first has told of its end
            continue
        match command:
            case Add(request):
                clients.added(client, request.request_id)
                outputs += filter(None, [engine.add(request)])
            case Abort(request_id):
                clients.aborted(request_id)
                engine.abort(request_id)
            case LoadAdapter(ask, name, folder):
                _load_adapter(engine, name, folder, partial(clients.answer, client, ask))
            case UnloadAdapter(ask, name):
                clients.answer(client, ask, _problem(lambda name=name: engine.unload_adapter(name)))  # type: ignore[misc]
            case Hold(hold, held):
                clients.added(client, hold)
                engine.hold(hold, held)
            case Inject(ask, request_id, mark, token_ids):
                engine.inject(request_id, mark, token_ids, partial(clients.answer, client, ask))
            case Forget(other):
                for request_id in clients.forget(other):
                    engine.abort(request_id)
        clients.obeyed(client)
    return outputs


def _load_adapter(engine: Engine, name: str, folder: str, answer: Callable[[str | None], None]) -> None:
    def done(error: AdapterError | None) -> None:
        answer(None if error is None else error.message)

    problem = _problem(lambda: engine.load_adapter(name, folder_below(engine.config.adapter_folder, folder), done))
    if problem is not None:
        answer(problem)


def _problem(do: Callable[[], None]) -> str | None:
    try:
        do()
    except AdapterError as error:
        return error.message
    return None


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
