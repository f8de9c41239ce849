"""Several clients of one core: whose request is whose, and what each of them is told.

Called by the core's loop. Knows messages and their numbers; neither sockets nor what a request asks for.
"""

from collections.abc import Iterator
from typing import Protocol

from fairlead_engine.core.messages import Answer, BlocksChanged, Command, Reply, Stepped
from fairlead_engine.types import EngineLoad, SequenceOutput


class Channel(Protocol):
    """The core's end of the lines to its clients, which are numbered from 0."""

    num_clients: int

    def receive(self, timeout: float | None) -> list[tuple[int, Command]]:
        """Commands that came since the last call, each with its client and in its order; those of a client that sends
        very many are left for the next call. Waits up to `timeout` seconds for one, None = for ever."""
        ...

    def send(self, client: int, reply: Reply) -> None:
        """Sends without waiting for the client."""
        ...


class Clients:
    """The first client hears of every report, the others of those that have something for them: each message wakes a
    process, and only the first tells others of the load."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._clients: dict[str, int] = {}  # of every running request that is not the first client's
        self._gone: set[int] = set()
        self._num_commands = [0] * channel.num_clients
        self._num_told = [0] * channel.num_clients  # of those, as the last report said
        self._num_reports = 0
        self._answers: list[tuple[int, Answer]] = []

    @property
    def are_several(self) -> bool:
        return self._channel.num_clients > 1

    def is_gone(self, client: int) -> bool:
        """Whether it is forgotten."""
        return client in self._gone

    def tell_all(self, reply: Reply) -> None:
        """Tells everybody."""
        for client in self._present():
            self._channel.send(client, reply)

    def added(self, client: int, request_id: str) -> None:
        """A client's request begins."""
        if client:
            self._clients[request_id] = client

    def aborted(self, request_id: str) -> None:
        """Its client wants no more of it."""
        self._clients.pop(request_id, None)

    def forget(self, client: int) -> list[str]:
        """A client is gone; returns its running requests."""
        self._gone.add(client)
        request_ids = [each for each, owner in self._clients.items() if owner == client]
        for request_id in request_ids:
            del self._clients[request_id]
        return request_ids

    def obeyed(self, client: int) -> None:
        """One more of its commands."""
        self._num_commands[client] += 1

    def answer(self, client: int, ask: int, problem: str | None) -> None:
        """Of an adapter that was to come or go, or of an injection: told behind the next report, which everybody
        hears."""
        self._answers.append((client, Answer(ask, problem)))

    @property
    def owes_answers(self) -> bool:
        return bool(self._answers)

    def report(self, outputs: list[SequenceOutput], load: EngineLoad, changed: BlocksChanged | None = None) -> None:
        """Tells who is to know of a step, or of a round of commands."""
        self._num_reports += 1
        shares = self._shares(outputs)
        for client in self._present():
            num_commands = self._num_commands[client]
            if client and not (shares[client] or self._answers) and num_commands == self._num_told[client]:
                continue
            self._num_told[client] = num_commands
            own = None if client else changed
            self._channel.send(client, Stepped(shares[client], load, num_commands, own, self._num_reports))
        for client, answer in self._answers:
            if client not in self._gone:
                self._channel.send(client, answer)
        self._answers.clear()

    def _shares(self, outputs: list[SequenceOutput]) -> list[list[SequenceOutput]]:
        """Each client's outputs. What nobody wants any more goes to the first, which ignores it."""
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
        return (client for client in range(self._channel.num_clients) if client not in self._gone)
