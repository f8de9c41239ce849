"""Every refusal has the right status and OpenAI's error shape."""

import asyncio
import json
from typing import Any

import openai
import pytest

from fairlead.routing.replica import Limits
from fairlead_testing.fake_engine import FakeEngine, Refusal
from fairlead_testing.gateways import SCALED_TO_ZERO, make_pool

ONE_AT_A_TIME = Limits(max_num_seqs=1, max_num_queued_tokens=0)
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


def error_of(document: dict[str, Any]) -> dict[str, Any]:
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    assert document["error"]["message"]
    return document["error"]


async def test_an_unknown_model_is_404_by_name(start) -> None:
    setup = await start()
    status, body, headers = await setup.post({**CHAT, "model": "gpt-9"})
    assert status == 404
    error = error_of(body)
    assert (error["code"], error["param"], error["type"]) == ("model_not_found", "model", "invalid_request_error")
    assert error["message"] == "The model 'gpt-9' does not exist. Served: 'fake'."
    assert headers["x-request-id"]


async def test_an_unknown_model_is_told_of_few_of_many_models(start) -> None:
    setup = await start(pools=lambda _: [make_pool(name=f"fake-{number:02}") for number in range(12)])
    _, body, _ = await setup.post({**CHAT, "model": "gpt-9"})
    names = ", ".join(f"'fake-{number:02}'" for number in range(10))
    assert body["error"]["message"] == (
        f"The model 'gpt-9' does not exist. Served: {names} and 2 more (GET /v1/models)."
    )


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "no body"),
        (b"{", "valid JSON"),
        (b'{"model": "fake", "messages": [}', "valid JSON"),
        (b'{"model": "fake"} trailing', "valid JSON"),
        (b'{"model": "\xff"}', "valid JSON"),
        (b"[1, 2]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"messages": []}', "'model' is missing"),
        (b'{"model": 7}', "'model' must be a string"),
        (b'{"model": null}', "'model' is missing"),
        (b'{"model": ""}', "'model' is missing"),
        (b'{"model": "' + b"x" * 600 + b'"}', "longer than 512"),
        (b'{"model": "fake", "x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", "nested too deeply"),
        (b'{"model": "fake", "temperature": NaN}', "valid JSON"),
    ],
)
async def test_a_malformed_body_is_400_and_says_what_is_wrong(start, body: bytes, part: str) -> None:
    setup = await start()
    status, document, _ = await setup.post(body)
    assert status == 400
    assert part in error_of(document)["message"]
    assert setup.engines[0].requests == []


async def test_an_engines_own_400_comes_through(start) -> None:
    setup = await start()
    long = [{"role": "user", "content": "word " * 1000}]
    status, document, headers = await setup.post({**CHAT, "messages": long})
    assert status == 400
    assert "context" in error_of(document)["message"]
    assert headers["x-fairlead-replica"] == "engine-0"


async def test_a_body_above_the_limit_is_413_whether_or_not_its_length_is_declared(start) -> None:
    setup = await start(max_body_bytes=10_000)
    large = json.dumps({**CHAT, "padding": "x" * 20_000}).encode()

    async def chunked():
        for start in range(0, len(large), 5_000):
            yield large[start : start + 5_000]

    async with setup.http.post(f"{setup.url}/v1/chat/completions", data=chunked()) as response:
        assert response.status == 413
        assert error_of(await response.json())["code"] == "request_too_large"
    status, document, _ = await setup.post(large)
    assert status == 413
    assert "10000" in error_of(document)["message"]
    assert (await setup.post(CHAT))[0] == 200


async def test_a_compressed_body_is_415(start) -> None:
    setup = await start()
    status, document, _ = await setup.post(CHAT, headers={"content-encoding": "gzip"}, compress=None)
    assert status == 415
    assert "gzip" in error_of(document)["message"]


async def test_unknown_paths_are_404_and_wrong_methods_405(start) -> None:
    setup = await start()
    status, document, _ = await setup.post(CHAT, "/v1/images")
    assert (status, error_of(document)["code"]) == (404, "unknown_url")
    async with setup.http.get(f"{setup.url}/v1/chat/completions") as response:
        assert response.status == 405
        assert response.headers["allow"] == "POST"
        assert error_of(await response.json())["code"] == "method_not_allowed"
    status, _, headers = await setup.post(CHAT, "/v1/models")
    assert (status, headers["allow"]) == (405, "GET, HEAD")


async def raw(setup, data: bytes) -> tuple[bytes, bytes]:
    """Head and body of the answer to bytes of any kind."""
    head, _, body = (await setup.answers(data)).partition(b"\r\n\r\n")
    return head, body


@pytest.mark.parametrize("ending", [b"\r\n\r\n", b""])
async def test_headers_above_the_limit_are_431_even_if_they_never_end(start, ending: bytes) -> None:
    setup = await start(max_header_bytes=2000)
    head, body = await raw(setup, b"GET /v1/models HTTP/1.1\r\nhost: a\r\nx-much: " + b"x" * 5000 + ending)
    assert head.startswith(b"HTTP/1.1 431 ")
    assert error_of(json.loads(body))["code"] == "headers_too_large"


async def test_a_body_that_does_not_come_is_408(start) -> None:
    setup = await start(body_timeout=0.1)
    head, body = await raw(setup, b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n{")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert error_of(json.loads(body))["code"] == "request_timeout"


async def test_nothing_to_serve_with_is_503_at_once_with_the_conditions_sentence(start) -> None:
    setup = await start(pools=lambda engines: [make_pool([], outlook=SCALED_TO_ZERO)])
    status, document, headers = await setup.post(CHAT)
    assert status == 503
    error = error_of(document)
    assert error["code"] == "no_replicas"
    assert "It is scaled to zero replicas." in error["message"]
    assert "retry-after" not in headers, "nobody scales it, so that waiting does not help"
    with pytest.raises(openai.InternalServerError, match="It is scaled to zero"):
        await setup.openai.with_options(max_retries=2).chat.completions.create(**CHAT)
    assert 'outcome="no_replicas",status="503"} 2.0' in await setup.metrics(), "the official client asks once"


async def test_a_full_queue_is_429_at_once_and_says_when_to_come_back(start) -> None:
    setup = await start(engines=[FakeEngine(limits=ONE_AT_A_TIME)], max_queue=2)
    setup.engines[0].gate.clear()
    tasks = [asyncio.create_task(setup.post(CHAT)) for _ in range(3)]
    await setup.until(lambda: len(setup.gateway.pools.find("fake", None).queue) == 2)
    status, document, headers = await setup.post(CHAT)
    assert status == 429
    assert error_of(document)["code"] == "queue_full"
    assert int(headers["retry-after"]) >= 1
    setup.engines[0].gate.set()
    assert [status for status, _, _ in await asyncio.gather(*tasks)] == [200, 200, 200]


async def test_replicas_that_keep_refusing_are_503_after_the_attempts(start) -> None:
    setup = await start(3, max_attempts=2)
    for engine in setup.engines:
        engine.refusal = Refusal.UNAVAILABLE
    status, document, headers = await setup.post(CHAT)
    assert status == 503
    assert error_of(document)["code"] == "replica_failed"
    assert "retry-after" in headers
    assert sum(len(engine.requests) for engine in setup.engines) == 2


async def test_a_request_id_that_could_not_stand_in_a_log_is_replaced(start) -> None:
    setup = await start()
    for bad in ("x" * 200, "with space", "semi;colon"):
        _, _, headers = await setup.post(CHAT, headers={"x-request-id": bad})
        assert headers["x-request-id"] != bad
