"""Sessions as clients name them: by header, `prompt_cache_key` or `user`, in every dialect."""

import json
from typing import Any

import pytest

from fairlead.gateway.openai.parse import parse, parse_form
from fairlead.routing.sessions import NO_SESSION, session_hash
from fairlead_testing.gateways import make_pool

MESSAGES = [{"role": "user", "content": "Say hello"}]
CHAT = {"model": "fake", "messages": MESSAGES}
NAMED = [
    pytest.param("/v1/chat/completions", CHAT, {"x-session-id": "s"}, id="header"),
    pytest.param("/v1/chat/completions", {**CHAT, "prompt_cache_key": "s"}, {}, id="prompt_cache_key"),
    pytest.param("/v1/chat/completions", {**CHAT, "user": "s"}, {}, id="user"),
    pytest.param("/v1/responses", {"model": "fake", "input": "Hi", "prompt_cache_key": "s"}, {}, id="responses"),
    pytest.param("/v1/responses", {"model": "fake", "input": "Hi", "user": "s"}, {}, id="responses-user"),
    pytest.param(
        "/v1/messages",
        {**CHAT, "max_tokens": 5, "metadata": {"user_id": "user_1_session_2"}},
        {},
        id="messages",
    ),
    pytest.param("/api/chat", {**CHAT, "stream": False}, {"x-session-id": "s"}, id="ollama"),
]


@pytest.mark.parametrize(("path", "body", "headers"), NAMED)
async def test_a_session_stays_where_it_was_among_equals_and_others_go_in_turn(start, path, body, headers) -> None:
    setup = await start(3)
    first = (await setup.post(body, path, headers=headers))[2]["x-fairlead-replica"]
    others = []
    for _ in range(3):
        assert (await setup.post(body, path, headers=headers))[2]["x-fairlead-replica"] == first
        others.append((await setup.post(CHAT))[2]["x-fairlead-replica"])
    assert len(set(others)) == 3
    name = 'fairlead_gateway_session_decisions_total{model="default/fake",replica='
    assert await setup.metric(f'{name}"new"') == 1
    assert await setup.metric(f'{name}"last"') == 3


async def test_a_session_whose_replica_is_gone_goes_on_elsewhere(start) -> None:
    setup = await start(2)
    session = {"x-session-id": "s"}
    last = (await setup.post(CHAT, headers=session))[2]["x-fairlead-replica"]
    (left,) = (engine for engine in setup.engines if engine.name != last)
    setup.fleet.publish([make_pool([left.replica()])])
    for _ in range(3):
        status, _, headers = await setup.post(CHAT, headers=session)
        assert (status, headers["x-fairlead-replica"]) == (200, left.name)


def session_of(body: dict[str, Any] | bytes, *headers: tuple[bytes, bytes]) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse("/v1/chat/completions", data, headers, request_id="r").session


def test_the_header_goes_first_then_the_key_of_the_cache_then_the_user() -> None:
    named = {"prompt_cache_key": "key", "user": "user"}
    assert session_of(named, (b"x-session-id", b"header")) == session_hash("header")
    assert session_of(named) == session_hash("key")
    assert session_of({"user": "user", "prompt_cache_key": None}) == session_hash("user")
    assert session_of(b'{"user": "\\u0075ser"}') == session_hash("user"), "however it is written"
    form = b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--x--\r\n'
    headers = {b"content-type": b"multipart/form-data; boundary=x", b"x-session-id": b"header"}
    assert parse_form("/v1/audio/transcriptions", form, headers, request_id="r").session == session_hash("header")


@pytest.mark.parametrize("value", [None, "", 5, ["s"], {"a": "b"}, "x" * 513])
def test_what_engines_refuse_names_no_session(value) -> None:
    assert session_of({"user": value}) == NO_SESSION
