"""Many clients that send at once and read what comes back: what servers must stand without holding up anybody else.

A process of its own (`python -m fairlead_testing.flood PORT NUM SECONDS`, with what each of them sends on standard
input), so that what it computes does not count for who is flooded.
"""

import asyncio
import contextlib
import selectors
import socket
import sys
import time

PACKET_BYTES = 256 * 1024


async def flood(port: int, payload: bytes, *, num_connections: int, seconds: float) -> None:
    """Opens the connections, and when all are open sends on all of them for so long."""
    command = (sys.executable, "-m", "fairlead_testing.flood", str(port), str(num_connections), str(seconds))
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
    await process.communicate(payload)
    if process.returncode:
        raise RuntimeError(f"the flood ended with status {process.returncode}")


def _send(port: int, payload: bytes, num_connections: int, seconds: float) -> None:
    selector = selectors.DefaultSelector()
    left = dict[int, memoryview]()
    for _ in range(num_connections):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setblocking(False)
        left[connection.fileno()] = memoryview(payload)
        selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)
    until = time.monotonic() + seconds
    while time.monotonic() < until and selector.get_map():
        for key, events in selector.select(0.1):
            with contextlib.suppress(BlockingIOError):
                if not _is_served(key.data, events, left, selector):
                    selector.unregister(key.data)


def _is_served(
    connection: socket.socket, events: int, left: dict[int, memoryview], selector: selectors.BaseSelector
) -> bool:
    """Sends and reads what is possible; False: it has been ended."""
    number = connection.fileno()
    try:
        if events & selectors.EVENT_WRITE:
            left[number] = left[number][connection.send(left[number][:PACKET_BYTES]) :]
            if not left[number]:
                selector.modify(connection, selectors.EVENT_READ, connection)
        return not events & selectors.EVENT_READ or connection.recv(PACKET_BYTES) != b""
    except ConnectionError:
        return False


if __name__ == "__main__":
    _send(int(sys.argv[1]), sys.stdin.buffer.read(), int(sys.argv[2]), float(sys.argv[3]))
