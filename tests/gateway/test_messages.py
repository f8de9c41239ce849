"""`POST /v1/messages` at a gateway: the engine behind it answers a chat, and the client has Anthropic's form."""

import json
from typing import Any

import anthropic
import pytest

from fairlead_testing.fake_engine import Death, FakeEngine
from fairlead_testing.fake_engine.engine import Refusal

PATH = "/v1/messages"
ASK: list[Any] = [{"role": "user", "content": "ahoy"}]
BODY: dict[str, Any] = {"model": "fake", "max_tokens": 8, "messages": ASK}


def official(url: str, **options: Any) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, **options)


async def test_an_engine_sees_a_chat_and_the_client_a_message(start) -> None:
    setup = await start()
    async with official(setup.url) as client:
        message = await client.messages.create(**BODY, system="Be brief.")
        async with client.messages.stream(**BODY, system="Be brief.") as stream:
            told = await stream.get_final_message()
    assert [request.path for request in setup.engines[0].requests] == ["/v1/chat/completions"] * 2
    sent = setup.engines[0].requests[0].json()
    assert [each["role"] for each in sent["messages"]] == ["system", "user"]
    [whole], [streamed] = message.content, told.content
    assert whole.type == "text" and whole.text == getattr(streamed, "text", None) == "".join(setup.engines[0].tokens)
    assert message.usage.input_tokens == told.usage.input_tokens + (told.usage.cache_read_input_tokens or 0)
    assert message.stop_reason == told.stop_reason == "end_turn"


async def test_usage_is_counted_as_that_of_a_chat(start) -> None:
    setup = await start()
    await setup.post(BODY, PATH)
    first = await setup.metric("fairlead_gateway_tokens_total{")
    async with setup.http.post(f"{setup.url}{PATH}", json={**BODY, "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream") and response.headers["request-id"]
        assert (await response.read()).startswith(b"event: message_start\n")
    assert first > 0 and await setup.metric("fairlead_gateway_tokens_total{") == 2 * first
    assert 'outcome="completed",status="200"} 2.0' in await setup.metrics()


async def test_an_engine_that_dies_in_the_middle_ends_the_stream_with_an_error(start) -> None:
    setup = await start()
    setup.engines[0].death = Death.AFTER_ONE_TOKEN
    async with setup.http.post(f"{setup.url}{PATH}", json={**BODY, "stream": True}) as response:
        events = (await response.read()).split(b"\n\n")
    assert events[0].startswith(b"event: message_start\n")
    name, data = events[-2].split(b"\n")
    told = json.loads(data.removeprefix(b"data: "))
    assert (name, told["type"], told["error"]["type"]) == (b"event: error", "error", "api_error")
    assert b"message_stop" not in b"".join(events)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_full_engine_is_left_for_another_and_refusals_are_anthropics(start, streamed: bool) -> None:
    setup = await start(engines=[FakeEngine("engine-0"), FakeEngine("engine-1")])
    setup.engines[0].refusal = Refusal.UNAVAILABLE
    async with setup.http.post(f"{setup.url}{PATH}", json={**BODY, "stream": streamed}) as response:
        assert response.status == 200
    setup.engines[1].refusal = Refusal.UNAVAILABLE
    status, answer, _ = await setup.post({**BODY, "stream": streamed}, PATH)
    assert (status, answer["error"]["type"]) == (503, "overloaded_error")


@pytest.mark.parametrize(
    ("body", "status", "kind", "words"),
    [
        (b"{", 400, "invalid_request_error", "not valid JSON"),
        ({"model": "fake", "messages": ASK}, 400, "invalid_request_error", "max_tokens: is missing"),
        ({**BODY, "model": "none"}, 404, "not_found_error", "'none' does not exist"),
        ({**BODY, "messages": [{"role": "user", "content": "a" * 40_000}]}, 400, "invalid_request_error", "context"),
    ],
)
async def test_refusals_are_anthropics(start, body: Any, status: int, kind: str, words: str) -> None:
    setup = await start()
    found, answer, headers = await setup.post(body, PATH)
    assert (found, answer["type"], answer["error"]["type"]) == (status, "error", kind)
    assert words in answer["error"]["message"]
    assert answer["request_id"] == headers["x-request-id"] == headers["request-id"]


async def test_a_models_own_path_needs_no_model(start) -> None:
    setup = await start()
    body = {name: value for name, value in BODY.items() if name != "model"}
    status, answer, _ = await setup.post(body, f"/default/fake{PATH}")
    assert (status, answer["type"], answer["role"]) == (200, "message", "assistant")


async def test_fields_that_are_not_known_are_left_out_or_refused_as_the_setting_says(start) -> None:
    body = {**BODY, "shade": 1}
    ignoring, refusing = await start(), await start(unknown_fields="refuse")
    assert (await ignoring.post(body, PATH))[0] == 200
    assert "shade" not in ignoring.engines[0].requests[0].json()
    status, answer, _ = await refusing.post(body, PATH)
    assert status == 400 and answer["error"]["message"].startswith("shade: is not supported")
