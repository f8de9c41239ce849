"""What the first HTTP process knows of another, which it asks and waits for."""

import asyncio
import resource
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.process_client import ProcessClient
from fairlead_engine.host.engine_stream import EngineStream
from fairlead_engine.host.lifecycle import Lifecycle
from fairlead_engine.host.peer_link import Ask, FromPeer, Here, Line, Passage, PeerFigures, ToPeer
from fairlead_engine.server import peers as module
from fairlead_engine.server.peers import Peer, Peers


@pytest.fixture
async def known() -> AsyncIterator[tuple[Peers, Peer, Line[ToPeer]]]:
    """Peers of which there is one, and that one's end of the line."""
    client = ProcessClient(EngineConfig(model="fake://"), num_peers=1)
    stream = EngineStream(client, Lifecycle())
    all_of_them = Peers(client, stream, take_control=lambda _: None, on_lost=lambda: None)
    peer = Peer(1, stream, lambda _: None, lambda *_: None)
    ours, theirs = socket.socketpair()
    line: Line[FromPeer] = await Line.over(ours, FromPeer)
    far: Line[ToPeer] = await Line.over(theirs, ToPeer)
    peer._line, peer.is_serving = line, True
    all_of_them._peers = [peer]
    listening = asyncio.create_task(peer._listen(line))
    yield all_of_them, peer, far
    listening.cancel()
    for each in (line, far):
        each.close()
    peer.loaded.cancel()


async def test_who_asks_gets_what_was_counted_after_that(known: tuple[Peers, Peer, Line[ToPeer]]) -> None:
    _, peer, far = known
    peer.ask()
    assert isinstance(await far.receive(), Ask)
    asking = asyncio.create_task(peer.answer())
    assert isinstance(await far.receive(), Ask)
    far.send(PeerFigures(1, []))
    while peer.figures.num_running != 1:
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not asking.done(), "this was counted before it was asked for"
    far.send(PeerFigures(2, []))
    await asking
    assert (peer.figures.num_running, peer.silent_seconds) == (2, 0.0)


async def test_an_answer_that_comes_too_late_answers_nobody_else(
    known: tuple[Peers, Peer, Line[ToPeer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, peer, far = known
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 0.05)
    await peer.answer()
    assert peer.silent_seconds > 0.0
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 5.0)
    asking = asyncio.create_task(peer.answer())
    await asyncio.sleep(0)
    far.send(PeerFigures(1, []))
    while peer.figures.num_running != 1:
        await asyncio.sleep(0)
    assert not asking.done()
    far.send(PeerFigures(2, []))
    await asking


async def test_a_drain_that_is_asked_for_again_and_again_ends(
    known: tuple[Peers, Peer, Line[ToPeer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As supervisors repeat SIGTERM; this process hangs."""
    monkeypatch.setattr(module, "_MARGIN_SECONDS", 0.1)
    peers, _, _ = known

    async def repeat() -> None:
        while True:
            peers.drain(0.0, 0.2)
            await asyncio.sleep(0.05)

    repeating = asyncio.create_task(repeat())
    try:
        await asyncio.wait_for(peers.drained(), 3.0)
    finally:
        repeating.cancel()


async def test_who_is_in_a_hurry_waits_no_longer(
    known: tuple[Peers, Peer, Line[ToPeer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MARGIN_SECONDS", 0.1)
    peers, _, _ = known
    peers.drain(0.0, 900.0)
    peers.hurry()
    peers.drain(0.0, 900.0)
    await asyncio.wait_for(peers.drained(), 3.0)


async def test_a_connection_for_which_there_is_no_descriptor_takes_no_room() -> None:
    adopted: list[Any] = []
    here = Here(2, adopted.append)  # type: ignore[arg-type]
    ours, theirs = socket.socketpair()
    near, far = Passage(ours, lambda _: None), Passage(theirs, here.take, here.missed)
    connection, client = socket.socketpair()
    assert near.give(connection)
    connection.close()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        far._receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    with client:
        client.settimeout(5.0)
        assert client.recv(1) == b"", "its client is told"
    assert (adopted, here.num_closed, here.room) == ([], 1, 2)
    for each in (ours, theirs):
        each.close()
