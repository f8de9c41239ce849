"""`POST /v1/messages/count_tokens` at a gateway: Anthropic's form and errors, an engine's `/tokenize` behind them."""

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anthropic
import pytest

from fairlead.gateway.access import KeyedAccess
from fairlead.routing.replica import Replica
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.fake_engine.engine import Refusal
from fairlead_testing.fake_vllm import FakeVllm
from fairlead_testing.gateways import make_pool, running_gateway

PATH = "/v1/messages/count_tokens"
ASK: list[Any] = [{"role": "user", "content": "ahoy"}]
BODY = {"model": "fake", "messages": ASK}
KEY, WRONG = "alice-0123456789abcdef", "mallory-0123456789abc"


def official(url: str, key: str = "none", **options: Any) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0, **options)


async def test_the_official_client_gets_what_an_engine_counts(start) -> None:
    setup = await start()
    async with official(setup.url) as client:
        tools: Any = [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]
        counted = await client.messages.count_tokens(model="fake", messages=ASK, system="Be brief.", tools=tools)
    [request] = setup.engines[0].requests
    assert request.path == "/tokenize"
    said = request.json()
    assert [each["role"] for each in said["messages"]] == ["system", "user"]
    assert said["tools"][0]["function"]["name"] == "f"
    del said["add_generation_prompt"], said["model"]
    chat = await setup.openai.chat.completions.create(model="fake", **said)
    assert counted.input_tokens == chat.usage.prompt_tokens


async def test_an_engine_that_is_not_ours_counts_by_its_own_tokenize() -> None:
    async with AsyncExitStack() as stack:
        vllm = await stack.enter_async_context(FakeVllm())
        replica = Replica("pod", "pod", "127.0.0.1", vllm.port)
        _, _, url = await stack.enter_async_context(running_gateway(make_pool([replica], served_name=vllm.served_name)))
        client = await stack.enter_async_context(official(url))
        counted = await client.messages.count_tokens(model=vllm.served_name, messages=ASK)
        assert counted.input_tokens == len("ahoy") + 2


async def test_a_models_own_path_needs_no_model(start) -> None:
    setup = await start()
    status, answer, headers = await setup.post({"messages": ASK}, f"/default/fake{PATH}", headers={"x-request-id": "r"})
    assert (status, answer) == (200, {"input_tokens": 6})
    assert (headers["request-id"], headers["x-fairlead-replica"]) == ("r", "engine-0")


@pytest.mark.parametrize(
    ("body", "status", "kind", "words"),
    [
        (b"{", 400, "invalid_request_error", "not valid JSON"),
        (b"[" * 300_000, 400, "invalid_request_error", "lists and objects"),
        ({"model": "fake"}, 400, "invalid_request_error", "messages: is missing"),
        ({**BODY, "stream": True}, 400, "invalid_request_error", "stream: is not supported"),
        ({**BODY, "model": "none"}, 404, "not_found_error", "'none' does not exist"),
        ({"messages": ASK}, 400, "invalid_request_error", "model"),
        ({**BODY, "fairlead_prompt_tokens": {}}, 400, "invalid_request_error", "fairlead_prompt_tokens"),
    ],
)
async def test_refusals_are_anthropics(start, body: Any, status: int, kind: str, words: str) -> None:
    setup = await start(unknown_fields="refuse")
    found, answer, headers = await setup.post(body, PATH, headers={"anthropic-version": "?", "anthropic-beta": "a,b"})
    assert (found, answer["type"], answer["error"]["type"]) == (status, "error", kind)
    assert words in answer["error"]["message"]
    assert answer["request_id"] == headers["x-request-id"] == headers["request-id"]
    assert setup.engines[0].requests == []


async def test_other_methods_and_large_bodies_are_refused_in_the_same_shape(start) -> None:
    setup = await start(max_body_bytes=1000, max_headers=20)
    async with setup.http.get(f"{setup.url}{PATH}") as response:
        assert (response.status, (await response.json())["error"]["type"]) == (405, "invalid_request_error")
    status, answer, _ = await setup.post({**BODY, "system": "a" * 2000}, PATH)
    assert (status, answer["error"]["type"]) == (413, "invalid_request_error")
    status, answer, _ = await setup.post(BODY, PATH, headers={f"x-{number}": "a" for number in range(30)})
    assert (status, answer["error"]["type"], answer["request_id"]) == (431, "invalid_request_error", "")


async def test_what_an_engine_refuses_is_told_in_anthropics_terms(start) -> None:
    setup = await start()
    setup.engines[0].refusal = Refusal.UNAVAILABLE
    status, answer, _ = await setup.post(BODY, PATH)
    assert (status, answer["error"]["type"]) == (503, "overloaded_error")
    setup.engines[0].refusal = None
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    async with official(setup.url) as client:
        with pytest.raises(anthropic.BadRequestError) as caught:
            await client.messages.count_tokens(model="fake", messages=[{"role": "user", "content": [image]}])  # type: ignore[list-item]
    assert "not supported by this model" in caught.value.message and "image_url" not in caught.value.message


async def test_a_full_engine_is_left_for_another_and_it_is_one_request(start) -> None:
    engines = [FakeEngine("engine-0"), FakeEngine("engine-1")]
    setup = await start(engines=engines)
    engines[0].refusal = Refusal.UNAVAILABLE
    for _ in range(4):
        assert (await setup.post(BODY, PATH))[:2] == (200, {"input_tokens": 6})
    assert len(engines[1].requests) == 4
    text = await setup.metrics()
    assert 'fairlead_gateway_requests_total{model="default/fake",outcome="completed",status="200"} 4.0' in text


# -- API keys ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def keyed(start, tmp_path: Path):
    (tmp_path / "alice").write_text(KEY + "\n")
    return await start(access=KeyedAccess(tmp_path))


async def test_the_official_client_is_served_with_a_key_and_told_without(keyed) -> None:
    async with official(keyed.url, KEY) as client:
        assert (await client.messages.count_tokens(model="fake", messages=ASK)).input_tokens == 6
    async with official(keyed.url, WRONG) as client:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            await client.messages.count_tokens(model="fake", messages=ASK)
    error = caught.value.response.json()
    assert (error["type"], error["error"]["type"]) == ("error", "authentication_error")
    assert WRONG not in json.dumps(error)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": KEY}, 200),
        ({"x-api-key": WRONG}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": f"Bearer {KEY}"}, 401),
        ({"x-api-key": KEY, "authorization": f"Bearer {WRONG}"}, 401),
        ({"x-api-key": WRONG, "authorization": f"Bearer {KEY}"}, 200),
        ([("x-api-key", KEY), ("x-api-key", KEY)], 401),
        ({"api-key": KEY}, 200),
        ({"api-key": WRONG}, 401),
        ({"x-api-key": WRONG, "api-key": KEY}, 401),
    ],
)
async def test_other_headers_are_read_where_there_is_no_authorization(keyed, headers: Any, status: int) -> None:
    assert (await keyed.post(BODY, PATH, headers=headers))[0] == status
    async with keyed.http.get(f"{keyed.url}/v1/models", headers=headers) as response:
        assert response.status == status
    assert not any(KEY in str(each.headers) for each in keyed.engines[0].requests)
