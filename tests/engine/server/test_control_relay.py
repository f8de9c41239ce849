"""A peer that cannot ask the first process says so."""

import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from fairlead_engine.server.peer_process import ControlRelay


async def unasked(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("these paths are the first process's")


@contextmanager
def no_more_files() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def refuse(connection: socket.socket) -> bool:
    return False


def hang_up(connection: socket.socket) -> bool:
    connection.shutdown(socket.SHUT_RDWR)
    return True


@pytest.mark.parametrize(("give", "has_files"), [(refuse, True), (hang_up, True), (hang_up, False)])
async def test_a_question_that_cannot_be_passed_on_is_answered(
    give: Callable[[socket.socket], bool], has_files: bool
) -> None:
    relay = ControlRelay(unasked, give)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=relay), base_url="http://engine") as client:
        if has_files:
            answer = await client.get("/health")
        else:
            with no_more_files():
                answer = await client.get("/health")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_dead")
    assert "the engine's first process does not answer" in answer.json()["error"]["message"]
    relay.close()
