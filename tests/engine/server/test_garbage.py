"""What a refused request leaves behind: nothing that only the garbage collector finds, whose search holds up tokens."""

import gc
from typing import Any

import pytest


@pytest.mark.parametrize("body", [b"no JSON", b'{"model":"tiny","messages":[],"temprature":1}'])
async def test_a_refused_request_leaves_no_circle_of_its_own(start_app: Any, body: bytes) -> None:
    app = start_app()
    for _ in range(2):
        assert (await app.http.post("/v1/chat/completions", content=body)).status_code == 400
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await app.http.post("/v1/chat/completions", content=body)
        gc.collect()
        found = {type(each).__name__ for each in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert not found & {"RequestError", "Exchange", "Task"}, found
