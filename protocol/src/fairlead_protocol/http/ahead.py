"""What clients have sent before it was its turn: requests behind one that is not answered yet, on the same connection.

They wait parsed, and a request of thirty bytes takes some thousands then, each of its parts an object for the garbage
collector to look at. So they are bounded on each connection, and on all of a server's connections together.
"""

from collections.abc import Iterable, Sized

MAX_REQUESTS = 100
"""Of one connection, which ends after those before where there are more."""
MAX_BYTES = 16 * 2**20
"""Of all connections; the one on which more come ends."""
REQUEST_BYTES = 4096
"""What a request takes beside its body."""


class Ahead:
    """Of one server, whose connections tell it what waits on them whenever that may have changed."""

    def __init__(self) -> None:
        self._by_connection: dict[object, int] = {}
        self.num_bytes = 0
        """Of all."""

    @property
    def is_full(self) -> bool:
        """Whether no connection may have more of them."""
        return self.num_bytes >= MAX_BYTES

    def tell(self, connection: object, bodies: Iterable[Sized]) -> None:
        """`bodies`: as far as they have come, of the requests that wait on this connection now."""
        now = sum(REQUEST_BYTES + len(body) for body in bodies)
        self.num_bytes += now - self._by_connection.pop(connection, 0)
        if now:
            self._by_connection[connection] = now
