"""Ollama's API at a gateway: the engine behind it answers a chat, and the official client has Ollama's lines."""

import json
from typing import Any

import ollama
import pytest

from fairlead_testing.fake_engine import Death, FakeEngine
from fairlead_testing.fake_engine.engine import Refusal

ASK: list[Any] = [{"role": "user", "content": "ahoy"}]
BODY: dict[str, Any] = {"model": "fake", "messages": ASK}
PNG = "iVBORw0KGgoAAAANSUhEUg=="


async def test_an_engine_sees_a_chat_and_the_client_lines(start) -> None:
    setup = await start()
    async with ollama.AsyncClient(setup.url) as client:
        options = {"num_predict": 8, "num_ctx": 2048}
        whole = await client.chat(**BODY, options=options)
        parts = [part async for part in await client.chat(**BODY, options=options, stream=True)]
        told = await client.generate("fake", "ahoy", system="Be brief.", options=options)
    assert [request.path for request in setup.engines[0].requests] == ["/v1/chat/completions"] * 3
    sent = setup.engines[0].requests[0].json()
    assert sent["max_tokens"] == 8 and "options" not in sent and sent["messages"] == ASK
    text = "".join(setup.engines[0].tokens)
    assert whole.message.content == "".join(part.message.content or "" for part in parts) == told.response == text
    assert whole.prompt_eval_count == parts[-1].prompt_eval_count and whole.eval_count == parts[-1].eval_count
    assert [each["role"] for each in setup.engines[0].requests[2].json()["messages"]] == ["system", "user"]


async def test_usage_is_counted_as_that_of_a_chat(start) -> None:
    setup = await start()
    await setup.post({**BODY, "stream": False}, "/api/chat")
    first = await setup.metric("fairlead_gateway_tokens_total{")
    async with setup.http.post(f"{setup.url}/api/chat", json=BODY) as response:
        assert response.headers["content-type"] == "application/x-ndjson" and response.headers["x-request-id"]
        assert json.loads((await response.read()).splitlines()[-1])["done_reason"] == "stop"
    assert first > 0 and await setup.metric("fairlead_gateway_tokens_total{") == 2 * first
    assert 'outcome="completed",status="200"} 2.0' in await setup.metrics()


async def test_an_engine_that_dies_in_the_middle_ends_the_stream_with_an_error(start) -> None:
    setup = await start()
    setup.engines[0].death = Death.AFTER_ONE_TOKEN
    async with ollama.AsyncClient(setup.url) as client:
        parts = await client.chat(**BODY, stream=True)
        assert (await anext(parts)).message.content
        with pytest.raises(ollama.ResponseError, match="failed in the middle of its answer"):
            await anext(parts)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_full_engine_is_left_for_another_and_refusals_are_ollamas(start, streamed: bool) -> None:
    setup = await start(engines=[FakeEngine("engine-0"), FakeEngine("engine-1")])
    setup.engines[0].refusal = Refusal.UNAVAILABLE
    async with setup.http.post(f"{setup.url}/api/chat", json={**BODY, "stream": streamed}) as response:
        assert response.status == 200
    setup.engines[1].refusal = Refusal.UNAVAILABLE
    status, answer, _ = await setup.post({**BODY, "stream": streamed}, "/api/chat")
    assert status == 503 and isinstance(answer["error"], str)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/api/chat", b"{", 400, "not valid JSON"),
        ("/api/chat", {**BODY, "model": "none"}, 404, "'none' does not exist"),
        ("/api/chat", {**BODY, "fairlead_prompt_tokens": {}}, 400, "fairlead_prompt_tokens"),
        ("/api/chat", {"model": "fake", "messages": [{"role": "user", "content": "a" * 40_000}]}, 400, "context"),
        ("/api/show", {"model": "none"}, 404, "'none' does not exist"),
        ("/api/show", b"[" * 500_000, 400, "more than"),
        ("/api/pull", {"model": "fake"}, 404, "/api/pull"),
    ],
)
async def test_refusals_are_ollamas(start, path: str, body: Any, status: int, words: str) -> None:
    setup = await start(unknown_fields="refuse")
    found, answer, _ = await setup.post(body, path)
    assert (found, list(answer)) == (status, ["error"])
    assert words in answer["error"]


async def test_models_are_those_of_the_fleet(start) -> None:
    setup = await start()
    async with ollama.AsyncClient(setup.url) as client:
        assert [each.model for each in (await client.list()).models] == ["fake"]
        assert [each.model for each in (await client.ps()).models] == ["fake"]
        assert (await client.show("fake")).capabilities == ["completion"]
    for path in ("/api/tags", "/default/fake/api/tags"):
        async with setup.http.get(setup.url + path) as response:
            assert "fake" in [each["name"] for each in (await response.json())["models"]]
    async with setup.http.post(f"{setup.url}/api/tags") as response:
        assert response.status == 405 and isinstance((await response.json())["error"], str)


async def test_a_models_own_path_needs_no_model(start) -> None:
    setup = await start()
    status, answer, _ = await setup.post({"messages": ASK, "stream": False}, "/default/fake/api/chat")
    assert (status, answer["message"]["role"], answer["done"]) == (200, "assistant", True)


async def test_images_are_parts(start) -> None:
    setup = await start()
    await setup.post({"model": "fake", "messages": [{**ASK[0], "images": [PNG]}], "stream": False}, "/api/chat")
    [_, image] = setup.engines[0].requests[0].json()["messages"][0]["content"]
    assert image["image_url"] == {"url": f"data:image/png;base64,{PNG}"}
