"""A channel to the core loop that plays commands back."""

from fairlead_engine.core.messages import Command, Reply, Stepped, Stop


class PlayedChannel:
    """Hands out one list of commands per call, then `Stop`; remembers timeouts, and what each client is told.

    A command of another client than the first comes with the client's number.
    """

    def __init__(self, *rounds: list[Command] | list[tuple[int, Command]], num_clients: int = 1) -> None:
        self.rounds = list(rounds)
        self.num_clients = num_clients
        self.timeouts: list[float | None] = []
        self.told: list[list[Reply]] = [[] for _ in range(num_clients)]

    def receive(self, timeout: float | None) -> list[tuple[int, Command]]:
        self.timeouts.append(timeout)
        commands = self.rounds.pop(0) if self.rounds else [Stop()]
        return [each if isinstance(each, tuple) else (0, each) for each in commands]

    def send(self, client: int, reply: Reply) -> None:
        self.told[client].append(reply)

    @property
    def replies(self) -> list[Reply]:
        """What the first client is told."""
        return self.told[0]

    def steps(self, client: int = 0) -> list[Stepped]:
        return [reply for reply in self.told[client] if isinstance(reply, Stepped)]
