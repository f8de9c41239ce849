"""The core loop, in a thread or a process: commands in, steps, replies out.

A `Channel` carries the messages and `Clients` maps requests to clients; no asyncio, no sockets.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from fairlead_common.wire.blocks import BlockHash
from fairlead_engine.core import messages
from fairlead_engine.core.adapter_places import folder_below
from fairlead_engine.core.engine import Engine
from fairlead_engine.errors import AdapterError, StartError
from fairlead_engine.types import EngineLoad, SequenceOutput


class Channel(Protocol):
    """The core's end of the lines to its clients, numbered from 0."""

    num_clients: int

    def receive(self, timeout: float | None) -> list[tuple[int, messages.Command]]:
        """Commands since the last call, each with its client, in order per client; a flood of one client is left for
        the next call. Waits up to `timeout` seconds for a first command, None = for ever."""

    def send(self, client: int, reply: messages.Reply) -> None:
        """Sends without waiting for the client."""


class Clients:
    """The owner of each request of one core, and the receivers of reports. Client 0 hears every report, others only
    reports with something for them: each message wakes a process, and only client 0 publishes the load."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._clients: dict[str, int] = {}  # of every running request that is not the first client's
        self.gone: set[int] = set()
        self._num_commands = [0] * channel.num_clients
        self._num_told = [0] * channel.num_clients  # of those, as the last report said
        self._num_reports = 0
        self.answers: list[tuple[int, messages.Answer]] = []

    def tell_all(self, reply: messages.Reply) -> None:
        for client in self._present():
            self._channel.send(client, reply)

    def added(self, client: int, request_id: str) -> None:
        if client:
            self._clients[request_id] = client

    def aborted(self, request_id: str) -> None:
        self._clients.pop(request_id, None)

    def forget(self, client: int) -> list[str]:
        """A client is gone; returns its running requests."""
        self.gone.add(client)
        request_ids = [each for each, owner in self._clients.items() if owner == client]
        for request_id in request_ids:
            del self._clients[request_id]
        return request_ids

    def obeyed(self, client: int) -> None:
        self._num_commands[client] += 1

    def answer(self, client: int, ask: int, problem: str | None) -> None:
        """Answers a command about an adapter or an injection, behind the next report, which goes to every client."""
        self.answers.append((client, messages.Answer(ask, problem)))

    def report(
        self, outputs: list[SequenceOutput], load: EngineLoad, changed: messages.BlocksChanged | None = None
    ) -> None:
        """Reports a step, or a round of commands, to the clients concerned."""
        self._num_reports += 1
        shares = self._shares(outputs)
        for client in self._present():
            num_commands = self._num_commands[client]
            if client and not (shares[client] or self.answers) and num_commands == self._num_told[client]:
                continue
            self._num_told[client] = num_commands
            own = None if client else changed
            self._channel.send(client, messages.Stepped(shares[client], load, num_commands, own, self._num_reports))
        for client, answer in self.answers:
            if client not in self.gone:
                self._channel.send(client, answer)
        self.answers.clear()

    def _shares(self, outputs: list[SequenceOutput]) -> list[list[SequenceOutput]]:
        """Each client's outputs. Outputs of unknown requests go to client 0, which ignores them."""
        shares: list[list[SequenceOutput]] = [[] for _ in self._num_commands]
        if not self._clients:
            shares[0] = outputs
            return shares
        find = self._clients.get
        for output in outputs:
            shares[find(output.request_id, 0)].append(output)
        for share in shares[1:]:
            for output in share:
                if output.finish_reason is not None:
                    self._clients.pop(output.request_id, None)
        return shares

    def _present(self) -> Iterator[int]:
        return (client for client in range(self._channel.num_clients) if client not in self.gone)


logger = logging.getLogger(__name__)

_READING_SECONDS = 0.005
"""Seconds between two looks of an idle core at adapters being read."""
_QUIET_SECONDS = 1.0
"""Seconds of idle time before the engine checks its invariants, for some milliseconds."""


class BlockChanges:
    """A `BlockListener` that collects a step's changes to the reusable blocks until `take`. Blocks are evicted while a
    step is planned and published after its computation: removals precede additions, and two lists suffice. A state's
    place may be taken after another state was named: what it alone made usable in the same step is not told."""

    def __init__(self) -> None:
        self._stored: list[tuple[BlockHash, list[BlockHash]]] = []
        self._removed: list[BlockHash] = []

    def stored(self, parent: BlockHash, hashes: list[BlockHash]) -> None:
        self._stored.append((parent, hashes))

    def removed(self, block_hash: BlockHash) -> None:
        if not self._stored:  # thousands of blocks in one step
            self._removed.append(block_hash)
            return
        kept = [each for each in self._stored if each[1] != [block_hash]]
        assert all(block_hash not in hashes for _, hashes in kept), "a block was evicted in the step that published it"
        if len(kept) == len(self._stored):
            self._removed.append(block_hash)
        self._stored = kept

    def take(self) -> messages.BlocksChanged | None:
        """Changes since the last call; None when there are none."""
        if not self._stored and not self._removed:
            return None
        changed = messages.BlocksChanged(self._stored, self._removed)
        self._stored, self._removed = [], []
        return changed


def run_core(make_engine: Callable[[], Engine], channel: Channel) -> bool:
    """Makes the engine and serves the channel; True = ended by `Stop`. Tells all clients of a failure."""
    clients = Clients(channel)
    try:
        engine = make_engine()
    except StartError as error:
        clients.tell_all(messages.Failed(**error.to_dict()))
        return False
    except Exception as error:
        logger.exception("the engine core could not start")
        clients.tell_all(messages.Failed(StartError.reason, f"the engine core could not start: {_described(error)}"))
        return False
    try:
        _serve(engine, channel, clients)
    except Exception as error:
        logger.exception("a step of the engine core failed")
        clients.tell_all(messages.Died(f"the engine core has died: {_described(error)}"))
        return False
    return True


def _serve(engine: Engine, channel: Channel, clients: Clients) -> None:
    changes = BlockChanges()
    engine.blocks.listener = changes
    clients.tell_all(messages.Started(engine.info, engine.load))
    while True:
        was_busy, is_reading = engine.has_work(), engine.adapters.is_reading
        idle_seconds = _READING_SECONDS if is_reading else _QUIET_SECONDS
        commands = channel.receive(timeout=engine.spare_seconds if was_busy else idle_seconds)
        if is_reading:
            engine.adapters.settle()
            if not (commands or was_busy or clients.answers):
                continue
        elif not commands and not was_busy:
            if not engine.recheck():
                clients.report([], engine.load, changes.take())
            commands = channel.receive(timeout=None)
        if any(isinstance(command, messages.Stop) for _, command in commands):
            return
        outputs = _obey(commands, engine, clients)
        can_wait = engine.spare_seconds > 0.0
        if can_wait and not commands:
            continue
        if engine.has_work() and not can_wait:
            if channel.num_clients > 1 and not was_busy:
                # The first client says how long a step takes, and knows of no step that others have caused.
                clients.report(outputs, engine.load)
                outputs = []
            outputs += engine.step()
        clients.report(outputs, engine.load, changes.take())


def _obey(commands: list[tuple[int, messages.Command]], engine: Engine, clients: Clients) -> list[SequenceOutput]:
    """Returns the outputs of refused requests."""
    outputs: list[SequenceOutput] = []
    for client, command in commands:
        if client in clients.gone:  # what it said last may be read after the first has told of its end
            continue
        match command:
            case messages.Add(request):
                clients.added(client, request.request_id)
                outputs += filter(None, [engine.add(request)])
            case messages.Abort(request_id):
                clients.aborted(request_id)
                engine.abort(request_id)
            case messages.LoadAdapter(ask, name, folder):
                _load_adapter(engine, name, folder, partial(clients.answer, client, ask))
            case messages.UnloadAdapter(ask, name):
                clients.answer(client, ask, _problem(lambda name=name: engine.unload_adapter(name)))  # type: ignore[misc]
            case messages.Hold(hold, held):
                clients.added(client, hold)
                engine.hold(hold, held)
            case messages.Inject(ask, request_id, mark, token_ids):
                engine.inject(request_id, mark, token_ids, partial(clients.answer, client, ask))
            case messages.Forget(other):
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
