"""Who gets a connection, and how it changes its process."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack

import pytest

from fairlead_engine.config import ServerConfig
from fairlead_engine.host.peer_link import Acceptor, Ask, Closed, Here, Line, Passage, PeerLoaded, ToPeer
from fairlead_engine.server.peers import share


class Process:
    """Takes connections while it is willing."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.is_willing = True
        self.taken: list[socket.socket] = []

    @property
    def room(self) -> int:
        return self.limit - len(self.taken)

    def take(self, connection: socket.socket) -> bool:
        if self.is_willing:
            self.taken.append(connection)
        return self.is_willing


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[list[Process], int], None]]:
    """Has so many clients come to these processes."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        places: list[Process] = []
        acceptor = Acceptor(listener, lambda: places)
        acceptor.open()
        clients: list[socket.socket] = []

        async def come(processes: list[Process], number: int) -> None:
            places[:] = processes
            before = sum(len(each.taken) for each in processes)
            clients.extend(stack.enter_context(socket.create_connection(listener.getsockname())) for _ in range(number))
            while sum(len(each.taken) for each in processes) < before + number:
                await asyncio.sleep(0)

        yield come
        acceptor.close()
        for each in (connection for process in places for connection in process.taken):
            each.close()


async def test_connections_are_spread_evenly_and_make_good_what_has_ended(connect: Callable[..., object]) -> None:
    processes = [Process(20), Process(20), Process(20)]
    await connect(processes, 30)  # type: ignore[misc]
    assert [len(each.taken) for each in processes] == [10, 10, 10]
    for connection in processes[1].taken[:6]:
        connection.close()
        processes[1].taken.remove(connection)
    await connect(processes, 6)  # type: ignore[misc]
    assert [len(each.taken) for each in processes] == [10, 10, 10]


async def test_nobody_gets_more_than_it_may_while_another_has_room(connect: Callable[..., object]) -> None:
    processes = [Process(2), Process(9), Process(1)]
    await connect(processes, 12)  # type: ignore[misc]
    assert [len(each.taken) for each in processes] == [2, 9, 1]
    await connect(processes, 3)  # type: ignore[misc]
    assert [len(each.taken) for each in processes] == [3, 10, 2]


async def test_a_process_that_takes_none_loses_none(connect: Callable[..., object]) -> None:
    processes = [Process(5), Process(5)]
    processes[0].is_willing = False
    await connect(processes, 8)  # type: ignore[misc]
    assert len(processes[1].taken) == 8


async def test_a_connection_that_cannot_be_adopted_leaves_room() -> None:
    async def adopt(connection: socket.socket) -> bool:
        connection.close()
        return False

    here = Here(3, lambda connection: asyncio.ensure_future(adopt(connection)))
    with socket.socket() as connection:
        assert here.take(connection)
        assert here.room == 2
        while here.room != 3:
            await asyncio.sleep(0)


@pytest.mark.parametrize("number", [1, 2, 7, 64])
def test_the_shares_of_all_processes_are_the_whole(number: int) -> None:
    config = ServerConfig(
        api_servers=number, max_connections=100, max_body_bytes=1024, max_partial_body_bytes=64 * 1024
    )
    shares = [share(config, place) for place in range(number)]
    assert sum(each.max_connections for each in shares) == 100
    assert min(each.max_connections for each in shares) >= 1
    assert sum(each.max_partial_body_bytes for each in shares) <= 64 * 1024
    assert share(ServerConfig(), 0) == ServerConfig()


async def test_what_is_given_can_be_used_at_the_other_end() -> None:
    ends, taken = socket.socketpair(), []
    one, other = Passage(ends[0], taken.append), Passage(ends[1], taken.append)
    client, connection = socket.socketpair()
    assert one.give(connection)
    connection.close()
    other.open()
    while not taken:
        await asyncio.sleep(0)
    client.sendall(b"ahoy")
    assert taken[0].recv(10) == b"ahoy"
    one.close()
    with socket.socket() as late:
        assert not other.give(late), "its other end is gone"
    other.close()
    for each in (client, *taken):
        each.close()


async def test_a_line_ends_with_its_other_end() -> None:
    ends = socket.socketpair()
    one: Line[PeerLoaded | Closed] = await Line.over(ends[0], PeerLoaded | Closed)
    other: Line[ToPeer] = await Line.over(ends[1], ToPeer)
    other.send(PeerLoaded())
    other.send(Closed(3))
    one.send(Ask())
    assert [await one.receive(), await one.receive()] == [PeerLoaded(), Closed(3)]
    assert await other.receive() == Ask()
    other.close()
    assert await one.receive() is None
    one.close()
    one.send(Ask())
    for _ in range(3):  # until both are closed
        await asyncio.sleep(0)
