"""What a request leaves behind: nothing that only the garbage collector finds, whose search holds up tokens."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def garbage() -> Iterator[set[str]]:
    """The types of what the collector alone finds of what was made meanwhile; filled in when left."""
    found: set[str] = set()
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found.update(type(each).__name__ for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.mark.parametrize("body", [b"no JSON", b'{"model":"tiny","messages":[],"temprature":1}'])
async def test_a_refused_request_leaves_no_circle_of_its_own(start_app: Any, body: bytes) -> None:
    app = start_app()
    for _ in range(2):
        assert (await app.http.post("/v1/chat/completions", content=body)).status_code == 400
    with garbage() as found:
        await app.http.post("/v1/chat/completions", content=body)
    assert not found & {"RequestError", "Exchange", "Task"}, found


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answered_request_leaves_no_circle_of_its_own(start_app: Any, stream: bool) -> None:
    app = start_app()
    for _ in range(2):
        assert (await app.chat(stream=stream)).status_code == 200
    with garbage() as found:
        await app.chat(stream=stream)
    assert not found & {"Generation", "ChatReply", "Detokenizer", "RequestStream", "Exchange", "Task"}, found
