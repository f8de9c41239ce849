"""Connections are read, and requests begun, a few in each round of the event loop, and in order."""

import asyncio
import itertools
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from fairlead_common.http import intake
from fairlead_common.http.intake import BEGINNINGS_PER_ROUND, READ_BYTES, READS_PER_ROUND, Inlet, Intake


class Connection(asyncio.Protocol):
    """Notes what comes."""

    def __init__(self, server: "Server") -> None:
        self.server = server
        self.came = bytearray()
        self.is_lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.inlet: Inlet = self.server.intake.open(transport, self)
        self.server.connections.append(self)

    def data_received(self, data: bytes) -> None:
        self.came += data
        self.server.reads.append((self, len(data)))

    def eof_received(self) -> bool:
        self.came += b"END"
        return False

    def connection_lost(self, _: Exception | None) -> None:
        self.is_lost = True
        self.inlet.close()


class Server:
    def __init__(self) -> None:
        self.intake = Intake()
        self.connections: list[Connection] = []
        self.reads: list[tuple[Connection, int]] = []
        self.clients: list[socket.socket] = []
        self.port = 0

    async def connect(self) -> tuple[Connection, socket.socket]:
        """Both ends; the server's is read here from now on."""
        known = len(self.connections)
        client = socket.create_connection(("127.0.0.1", self.port))
        self.clients.append(client)
        await self.until(lambda: len(self.connections) > known)
        await asyncio.sleep(0.01)
        return self.connections[-1], client

    async def until(self, condition) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.001)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    listening = await asyncio.get_running_loop().create_server(lambda: Connection(made), "127.0.0.1", 0)
    made.port = listening.sockets[0].getsockname()[1]
    yield made
    for connection in made.connections:
        connection.transport.abort()
    for client in made.clients:
        client.close()
    listening.close()
    await made.until(lambda: all(connection.is_lost for connection in made.connections))


async def test_many_that_send_at_once_are_read_a_few_in_each_round_and_in_order(server: Server) -> None:
    ends = [await server.connect() for _ in range(3 * READS_PER_ROUND)]
    for _, client in ends:
        client.send(b"x" * 2 * READ_BYTES)
    num_read = [0]
    while num_read[-1] < 3 * READS_PER_ROUND:
        await asyncio.sleep(0)
        num_read.append(len(server.reads))
    assert max(after - before for before, after in itertools.pairwise(num_read)) <= READS_PER_ROUND
    first = [connection for connection, _ in server.reads[: len(ends)]]
    assert first == [connection for connection, _ in ends], "nobody twice before all have had their turn"
    assert {num_bytes for _, num_bytes in server.reads} == {READ_BYTES}
    await server.until(lambda: all(len(connection.came) == 2 * READ_BYTES for connection, _ in ends))


async def test_those_whose_turn_was_cut_short_are_the_next(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "SECONDS_PER_ROUND", 0.0)
    ends = [await server.connect() for _ in range(4)]
    for _, client in ends:
        client.send(b"x" * 3 * READ_BYTES)
    await server.until(lambda: len(server.reads) >= 12)
    assert [connection for connection, _ in server.reads] == [connection for connection, _ in ends] * 3


async def test_what_is_paused_is_not_read_until_it_is_resumed(server: Server) -> None:
    connection, client = await server.connect()
    connection.inlet.pause_reading()
    client.send(b"ahoy")
    await asyncio.sleep(0.05)
    assert not connection.came
    connection.inlet.resume_reading()
    await server.until(lambda: connection.came == b"ahoy")


async def test_an_end_and_a_failure_are_noticed(server: Server) -> None:
    (ended, first), (failed, second) = [await server.connect() for _ in range(2)]
    first.send(b"ahoy")
    first.close()
    second.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset instead of an end
    second.close()
    await server.until(lambda: ended.is_lost and failed.is_lost)
    assert ended.came == b"ahoyEND"


async def test_a_connection_whose_protocol_breaks_down_ends_and_the_others_go_on(server: Server, caplog) -> None:
    (broken, first), (sound, second) = [await server.connect() for _ in range(2)]
    broken.data_received = None  # type: ignore[assignment,method-assign]
    first.send(b"x")
    second.send(b"ahoy")
    await server.until(lambda: broken.is_lost and sound.came == b"ahoy")
    assert "TypeError" in caplog.text


async def test_requests_are_begun_a_few_in_each_round_and_in_order() -> None:
    made, begun = Intake(), list[int]()
    for number in range(20):
        made.begin(lambda number=number: begun.append(number))
    rounds = []
    while len(begun) < 20:
        await asyncio.sleep(0)
        rounds.append(len(begun))
    assert begun == list(range(20))
    assert rounds[-3:] == [BEGINNINGS_PER_ROUND, 2 * BEGINNINGS_PER_ROUND, 20]
