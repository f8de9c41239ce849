"""Ollama's API: its official client, synchronous and not, at an engine alone and through a gateway. The same
conversation as a chat has the same answer and tokens."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import ollama
import pytest
from PIL import Image

from fairlead.routing.replica import Replica
from fairlead_engine_testing import ScriptedEngine, answer
from fairlead_engine_testing.scripted_engine import scripted_info
from fairlead_testing.gateways import make_pool, running_gateway

QUESTION = "What is 7 plus 5?"
ASK: list[Any] = [{"role": "user", "content": QUESTION}]
CITY = {"city": {"type": "string", "enum": ["Oslo"]}}
SCHEMA = {"type": "object", "properties": CITY, "required": ["city"], "additionalProperties": False}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "description": "How it is", "parameters": SCHEMA}}
]
GREEDY = {"temperature": 0, "num_predict": 60, "num_ctx": 4096, "repeat_last_n": 64}
Ask = Callable[..., Any]


@pytest.fixture(params=["engine", "gateway"])
async def url(dinghy: Any, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Of an engine, and of a gateway in front of it."""
    if request.param == "engine":
        yield dinghy.url
        return
    replica = Replica("r", "r", "127.0.0.1", urlsplit(dinghy.url).port or 0)
    async with running_gateway(make_pool([replica], name="dinghy")) as (_, _, found):
        yield found


@pytest.fixture(params=["async", "sync"])
async def ask(url: str, request: pytest.FixtureRequest) -> AsyncIterator[Ask]:
    """`await ask("chat", …)`: a call of the official client; of a stream, all its parts."""
    if request.param == "async":
        async with ollama.AsyncClient(url) as client:

            async def waited(name: str, *args: Any, **options: Any) -> Any:
                found = await getattr(client, name)(*args, **options)
                return [part async for part in found] if options.get("stream") else found

            yield waited
        return
    with ollama.Client(url) as synchronous:

        def called(name: str, *args: Any, **options: Any) -> Any:
            found = getattr(synchronous, name)(*args, **options)
            return list(found) if options.get("stream") else found

        yield lambda *args, **options: asyncio.to_thread(called, *args, **options)


def as_chat(url: str, **fields: Any) -> dict[str, Any]:
    return posted(f"{url}/v1/chat/completions", {"model": "dinghy", "temperature": 0, **fields})


def posted(url: str, body: dict[str, Any]) -> dict[str, Any]:
    response = httpx.post(url, json=body, timeout=60)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def test_a_chat_is_what_openais_is_whole_and_streamed(ask: Ask, dinghy: Any) -> None:
    messages = [{"role": "system", "content": "Be brief."}, *ASK]
    chat = as_chat(dinghy.url, messages=messages, max_tokens=60)
    answer = await ask("chat", model="dinghy", messages=messages, options=GREEDY)
    assert answer.message.role == "assistant" and answer.message.content == chat["choices"][0]["message"]["content"]
    assert (answer.prompt_eval_count, answer.eval_count) == (
        chat["usage"]["prompt_tokens"],
        chat["usage"]["completion_tokens"],
    )
    parts = await ask("chat", model="dinghy", messages=messages, options=GREEDY, stream=True)
    assert "".join(part.message.content for part in parts) == answer.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    for last in (answer, parts[-1]):
        assert (last.model, last.done, last.done_reason) == ("dinghy", True, "stop")
        assert last.prompt_eval_count == chat["usage"]["prompt_tokens"]
        assert last.eval_count == chat["usage"]["completion_tokens"]
        assert 0 < last.prompt_eval_duration < last.total_duration and last.eval_duration > 0
        assert last.prompt_eval_duration + last.eval_duration == last.total_duration and last.created_at.endswith("Z")


async def test_an_answer_keeps_to_a_schema_or_is_json(ask: Ask) -> None:
    options = {**GREEDY, "num_predict": 400}
    chat = await ask("chat", model="dinghy", messages=ASK, format=SCHEMA, options=options)
    assert json.loads(chat.message.content) == {"city": "Oslo"}
    whole = await ask("generate", model="dinghy", prompt=QUESTION, format=SCHEMA, options=options)
    assert json.loads(whole.response) == {"city": "Oslo"}
    free = await ask("chat", model="dinghy", messages=ASK, format="json", options=GREEDY)
    assert free.message.content.startswith("{")


async def test_a_prompt_is_a_chat_and_raw_a_completion(ask: Ask, dinghy: Any) -> None:
    messages = [{"role": "system", "content": "Be brief."}, *ASK]
    chat = as_chat(dinghy.url, messages=messages, max_tokens=60)
    asked: dict[str, Any] = {"model": "dinghy", "prompt": QUESTION, "options": GREEDY}
    whole = await ask("generate", **asked, system="Be brief.")
    assert whole.response == chat["choices"][0]["message"]["content"]
    parts = await ask("generate", **asked, system="Be brief.", stream=True)
    assert "".join(part.response for part in parts) == whole.response and parts[-1].eval_count == whole.eval_count
    body = {"model": "dinghy", "prompt": QUESTION, "max_tokens": 60, "temperature": 0}
    completion = posted(f"{dinghy.url}/v1/completions", body)
    raw = await ask("generate", **asked, raw=True)
    assert raw.response == completion["choices"][0]["text"]
    assert raw.prompt_eval_count == completion["usage"]["prompt_tokens"]
    parts = await ask("generate", **asked, raw=True, stream=True)
    assert "".join(part.response for part in parts) == raw.response


async def test_options_reach_the_engine(ask: Ask) -> None:
    cut = await ask("chat", model="dinghy", messages=ASK, options={**GREEDY, "num_predict": 1})
    assert (cut.done_reason, cut.eval_count) == ("length", 1)
    text = (await ask("chat", model="dinghy", messages=ASK, options=GREEDY)).message.content
    stopped = await ask("chat", model="dinghy", messages=ASK, options={**GREEDY, "stop": [text[-1]]})
    assert stopped.message.content == text[: text.index(text[-1])] and stopped.done_reason == "stop"
    hot = {"temperature": 5.0, "top_k": 50, "top_p": 0.9, "min_p": 0.01, "num_predict": 20, "repeat_penalty": 1.1}
    answers = [
        (await ask("chat", model="dinghy", messages=ASK, options={**hot, "seed": seed})).message.content
        for seed in (1, 1, 2)
    ]
    assert answers[0] == answers[1] != answers[2]
    told = await ask("chat", model="dinghy", messages=ASK, options=GREEDY, logprobs=True, top_logprobs=2)
    assert "".join(each.token for each in told.logprobs).startswith(text[:1])
    assert {len(each.top_logprobs) for each in told.logprobs} == {2}


async def test_a_last_message_of_the_assistant_is_continued(ask: Ask, dinghy: Any) -> None:
    begun = [*ASK, {"role": "assistant", "content": "1"}]
    chat = as_chat(dinghy.url, messages=begun, max_tokens=60, continue_final_message=True, add_generation_prompt=False)
    answer = await ask("chat", model="dinghy", messages=begun, options=GREEDY)
    assert answer.message.content == chat["choices"][0]["message"]["content"]


async def test_without_a_prompt_a_model_is_loaded(ask: Ask) -> None:
    assert (await ask("generate", model="dinghy")).done_reason == "load"
    assert (await ask("chat", model="dinghy", messages=[])).done_reason == "load"
    [part] = await ask("generate", model="dinghy", keep_alive=0, stream=True)
    assert (part.response, part.done, part.done_reason) == ("", True, "unload")


async def test_vectors_are_openais(ask: Ask, dinghy: Any) -> None:
    texts = ["ahoy", "a boat"]
    body = {"model": "dinghy", "input": texts}
    vectors = posted(f"{dinghy.url}/v1/embeddings", body)
    found = await ask("embed", model="dinghy", input=texts)
    assert [list(each) for each in found.embeddings] == [each["embedding"] for each in vectors["data"]]
    assert found.prompt_eval_count == vectors["usage"]["prompt_tokens"] and found.total_duration > 0
    assert list((await ask("embeddings", model="dinghy", prompt="ahoy")).embedding) == vectors["data"][0]["embedding"]
    assert (await ask("embed", model="dinghy", input="")).embeddings == []


async def test_models_are_listed_and_shown(ask: Ask, url: str, request: pytest.FixtureRequest) -> None:
    [model] = (await ask("list")).models
    assert model.model == "dinghy" and model.modified_at.year >= 1970 and len(model.digest) == 64
    [running] = (await ask("ps")).models
    assert running.model == "dinghy" and running.expires_at.year == 9999
    shown = await ask("show", "dinghy")
    assert "completion" in shown.capabilities
    if "engine" in request.node.name:  # the gateway of this test has asked for no limits
        assert shown.modelinfo[f"{shown.modelinfo['general.architecture']}.context_length"] == 512
    async with httpx.AsyncClient(base_url=url) as http:
        version = (await http.get("/api/version")).json()["version"]
        assert [*map(int, version.split("."))] >= [0, 13, 4], "from which on Codex trusts in /v1/responses"


async def test_refusals_are_ollamas_and_name_the_field(ask: Ask, url: str) -> None:
    for name, options, status, words in (
        ("chat", {"model": "other", "messages": ASK}, 404, "'other'"),
        ("chat", {"model": "other", "messages": ASK, "stream": True}, 404, "'other'"),
        ("show", {"model": "other"}, 404, "'other'"),
        ("chat", {"model": "dinghy", "messages": ASK, "options": {"temperature": -1}}, 400, "temperature"),
        ("chat", {"model": "dinghy", "messages": [{"role": "user", "content": "ahoy " * 2000}]}, 400, "context"),
        ("generate", {"model": "dinghy", "prompt": "a", "context": [1]}, 400, "context: is not supported"),
        ("pull", {"model": "dinghy"}, 404, "/api/pull"),
        ("delete", {"model": "dinghy"}, 404, "/api/delete"),
    ):
        with pytest.raises(ollama.ResponseError, match=words) as caught:
            await ask(name, **options)
        assert caught.value.status_code == status and isinstance(caught.value.error, str)
    image = io.BytesIO()
    Image.new("RGB", (4, 4)).save(image, "PNG")
    seen = {"role": "user", "content": "See", "images": [image.getvalue()]}
    with pytest.raises(ollama.ResponseError, match="is not supported by this model"):
        await ask("chat", model="dinghy", messages=[seen])
    async with httpx.AsyncClient(base_url=url) as http:
        response = await http.post("/api/chat", content=b"{")
    assert response.status_code == 400 and response.json().keys() == {"error"}


@pytest.mark.parametrize("streamed", [False, True])
async def test_tools_over_two_turns(start_app: Any, tokenizer: Any, streamed: bool) -> None:
    """As agents do it: a call, and its result sent back with the message as it came."""
    text = '<think>Far.</think>I look.<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    engine = ScriptedEngine(answer(tokenizer.encode(text)), info=scripted_info(max_model_len=4096))
    app = start_app(engine, tool_call_parser="hermes", reasoning_parser="think")
    async with ollama.AsyncClient("http://engine", transport=app.http._transport) as client:

        async def said(**fields: Any) -> list[Any]:
            found: Any = await client.chat("tiny", messages, tools=TOOLS, stream=streamed, **fields)
            return [part async for part in found] if streamed else [found]

        messages: list[Any] = [{"role": "user", "content": "Weather in Oslo?"}]
        parts = await said(think=True)
        assert "".join(part.message.thinking or "" for part in parts) == "Far."
        assert "".join(part.message.content for part in parts) == "I look." and parts[-1].done_reason == "stop"
        [called] = [part.message for part in parts if part.message.tool_calls]
        [call] = called.tool_calls
        assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Oslo"})
        messages += [called, {"role": "tool", "tool_name": "get_weather", "content": "rain"}]
        assert (await said())[-1].prompt_eval_count > parts[-1].prompt_eval_count
        assert {"completion", "tools", "thinking"} <= set((await client.show("tiny")).capabilities or ())


async def test_lines_are_lines_of_json(url: str) -> None:
    """As any other client reads them: streamed unless the request says otherwise."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        body = {"model": "dinghy", "messages": ASK, "options": GREEDY}
        async with http.stream("POST", "/api/chat", json=body) as response:
            assert response.headers["content-type"] == "application/x-ndjson" and response.headers["x-request-id"]
            lines = [json.loads(line) async for line in response.aiter_lines()]
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
        whole = await http.post("/api/chat", json={**body, "stream": False})
        assert whole.headers["content-type"] == "application/json" and whole.json()["done"] is True
        assert (await http.head("/api/tags")).status_code == 200
        assert (await http.get("/api/chat")).status_code == 405
