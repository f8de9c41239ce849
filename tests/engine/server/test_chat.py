"""`POST /v1/chat/completions` as a client meets it, on a scripted engine; shapes are the official client's."""

import json
from typing import Any

import openai
import pytest

from fairlead_common.logs import JsonFormatter, LogfmtFormatter
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine.types import EngineRequest, FinishReason, SequenceOutput, TokenLogprobs
from fairlead_engine_testing import ScriptedEngine, answer
from fairlead_engine_testing.scripted_engine import scripted_info

USER = [{"role": "user", "content": "ahoy"}]


def says(tokenizer: PromptTokenizer, text: str, **options: object) -> ScriptedEngine:
    """An engine that answers every request with `text`."""
    return ScriptedEngine(answer(tokenizer.encode(text), **options))  # type: ignore[arg-type]


def official(app: Any) -> openai.AsyncOpenAI:
    """The official client, on the application in this process."""
    return openai.AsyncOpenAI(api_key="none", base_url="http://engine/v1", http_client=app.http, max_retries=0)


async def test_an_answer_has_openais_shape(start_app: Any, tokenizer: PromptTokenizer) -> None:
    app = start_app(says(tokenizer, "Größe 🚢", num_cached_tokens=4))
    raw = await official(app).chat.completions.with_raw_response.create(model="tiny", messages=USER)
    reply = raw.parse()
    assert reply.id.startswith("chatcmpl-")
    assert (reply.object, reply.model) == ("chat.completion", "tiny")
    [choice] = reply.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "Größe 🚢", "stop")
    assert choice.logprobs is None
    prompt = tokenizer.encode_chat(USER)
    assert app.engine.requests[0].prompt_token_ids == prompt
    assert reply.usage.prompt_tokens == len(prompt)
    assert reply.usage.completion_tokens == len(tokenizer.encode("Größe 🚢"))
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.prompt_tokens_details.cached_tokens == 4
    assert raw.headers["x-fairlead-cached-tokens"] == "4"


async def test_a_stream_gives_the_same_text_in_chunks(start_app: Any, tokenizer: PromptTokenizer) -> None:
    app = start_app(says(tokenizer, "日本語 and 👩‍👩‍👧"))
    stream = await official(app).chat.completions.create(
        model="tiny", messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "日本語 and 👩‍👩‍👧"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "stop"
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks[:-2])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(tokenizer.encode("日本語 and 👩‍👩‍👧"))
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_a_stream_ends_with_done_and_shows_usage_only_when_asked(start_app: Any) -> None:
    response = await start_app().chat(stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.text.endswith("data: [DONE]\n\n")
    assert '"usage"' not in response.text


async def test_a_stop_string_ends_the_answer_and_the_work(start_app: Any, tokenizer: PromptTokenizer) -> None:
    app = start_app(says(tokenizer, "one two three four five six"))
    body = (await app.chat(stop=["four", "never"])).json()
    assert body["choices"][0]["message"]["content"] == "one two three "
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["choices"][0]["stop_reason"] == "four"
    assert len(app.engine.aborted) == 1
    assert not app.engine.running


async def test_several_choices_come_with_their_own_index_and_seed(start_app: Any, tokenizer: PromptTokenizer) -> None:
    app = start_app(says(tokenizer, "aye"))
    body = (await app.chat(n=3, seed=7)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [request.sampling.seed for request in app.engine.requests] == [7, 8, 9]
    assert len({request.request_id for request in app.engine.requests}) == 3
    assert body["usage"]["prompt_tokens"] == len(tokenizer.encode_chat(USER))
    assert body["usage"]["completion_tokens"] == 3 * len(tokenizer.encode("aye"))


async def test_logprobs_have_token_bytes_and_alternatives(start_app: Any, tokenizer: PromptTokenizer) -> None:
    token_ids = tokenizer.encode("a🚢")

    def script(request: EngineRequest) -> list[SequenceOutput]:
        assert request.sampling.logprobs == 2
        logprobs = [TokenLogprobs(each, -0.5, [(each, -0.5), (65, float("-inf"))]) for each in token_ids]
        return [
            SequenceOutput(
                request_id=request.request_id,
                new_token_ids=token_ids,
                logprobs=logprobs,
                finish_reason=FinishReason.STOP,
            )
        ]

    app = start_app(ScriptedEngine(script))
    reply = await official(app).chat.completions.create(model="tiny", messages=USER, logprobs=True, top_logprobs=2)
    content = reply.choices[0].logprobs.content
    assert bytes(byte for entry in content for byte in entry.bytes) == "a🚢".encode()
    assert [entry.logprob for entry in content] == [-0.5] * len(token_ids)
    assert content[0].token == "a"
    assert [top.logprob for top in content[0].top_logprobs] == [-0.5, -9999.0]


async def test_every_sampling_field_reaches_the_engine(start_app: Any) -> None:
    app = start_app()
    fields = {
        "temperature": 0.3, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "repetition_penalty": 1.1, "seed": 3, "min_tokens": 1, "ignore_eos": True, "stop_token_ids": [3],
    }  # fmt: skip
    await app.chat(**fields, stop="x", max_completion_tokens=9, include_stop_str_in_output=True, cache_salt="s")
    [request] = app.engine.requests
    sent = {name: getattr(request.sampling, name) for name in fields}
    assert sent == {**fields, "stop_token_ids": (3,)}
    assert (request.sampling.stop, request.sampling.include_stop, request.sampling.max_tokens) == (("x",), True, 9)
    assert request.cache_salt == "s"


async def test_without_a_limit_a_chat_may_use_the_whole_context(start_app: Any) -> None:
    app = start_app()
    await app.chat()
    await app.chat(max_tokens=-1)
    await app.chat(max_tokens=5, max_completion_tokens=-1)
    await app.complete(max_tokens=-1)
    assert [request.sampling.max_tokens for request in app.engine.requests] == [None] * 4
    await app.complete()
    assert app.engine.requests[-1].sampling.max_tokens == 16


async def test_null_means_the_default_for_every_optional_field(start_app: Any) -> None:
    names = ["temperature", "top_p", "n", "stop", "stream", "seed", "max_tokens", "tools", "tool_choice", "logprobs"]
    response = await start_app().chat(**dict.fromkeys([*names, "response_format", "logit_bias", "user", "metadata"]))
    assert response.status_code == 200, response.text


async def test_fields_that_change_nothing_are_accepted(start_app: Any) -> None:
    response = await start_app().chat(
        user="u", metadata={"a": "b"}, store=False, service_tier="auto", parallel_tool_calls=True, logit_bias={},
        response_format={"type": "text"}, tool_choice="none", modalities=["text"], safety_identifier="s",
        prompt_cache_retention="24h", prompt_cache_options={"mode": "implicit", "ttl": "30m"}, prompt_cache_key="k",
        moderation={"model": "m", "policy": {"input": {"mode": "score"}}}, stream=True,
        stream_options={"include_obfuscation": False},
    )  # fmt: skip
    assert response.status_code == 200, response.text


async def test_tools_are_shown_to_the_model_by_its_template(start_app: Any, tokenizer: PromptTokenizer) -> None:
    app = start_app()
    tool = {"type": "function", "function": {"name": "tide", "parameters": {"type": "object"}}}
    await app.chat(tools=[tool], tool_choice="none")
    assert '"name": "tide"' in tokenizer.decode(app.engine.requests[0].prompt_token_ids)


async def test_content_in_parts_is_joined(start_app: Any, tokenizer: PromptTokenizer) -> None:
    app = start_app()
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "hoy"}]
    await app.chat(messages=[{"role": "user", "content": parts}])
    assert app.engine.requests[0].prompt_token_ids == tokenizer.encode_chat(USER)


async def test_a_long_chat_is_tokenised_like_a_short_one(start_app: Any, tokenizer: PromptTokenizer) -> None:
    app = start_app(ScriptedEngine(info=scripted_info(max_model_len=20_000)))
    long = " fox" * 10_000
    response = await app.chat(messages=[{"role": "user", "content": long}])
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert str(len(tokenizer.encode_chat([{"role": "user", "content": long}]))) in response.json()["error"]["message"]


async def test_the_request_id_is_echoed_or_made(start_app: Any) -> None:
    app = start_app()
    body = {"model": "tiny", "messages": USER}
    given = await app.http.post("/v1/chat/completions", json=body, headers={"x-request-id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    assert given.json()["id"] == "chatcmpl-abc-1"
    made = await app.http.post("/v1/chat/completions", json=body, headers={"x-request-id": "no spaces please"})
    assert made.headers["x-request-id"] not in ("", "no spaces please")


@pytest.mark.parametrize("stream", [False, True])
async def test_one_log_line_tells_what_a_request_was_and_cost(
    start_app: Any, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    app = start_app()
    with caplog.at_level("INFO", logger="fairlead_engine.request"):
        await app.chat(stream=stream, max_tokens=3)
        await app.http.get("/health")
    [record] = [record for record in caplog.records if record.name == "fairlead_engine.request"]
    line = LogfmtFormatter().format(record)
    for part in ("msg=request", "path=/v1/chat/completions", "status=200", "outcome=ok", "model=tiny",
                 f"stream={stream}", "num_completion_tokens=3",
                 "finish_reason=length", "ttft_seconds=", "duration_seconds="):  # fmt: skip
        assert part in line
    facts = json.loads(JsonFormatter().format(record))
    assert (facts["stream"], facts["num_completion_tokens"], facts["logger"]) == (stream, 3, "fairlead_engine.request")
    assert [f"{name}=" in line for name in facts] == [True] * len(facts), "both formats have the same keys"
