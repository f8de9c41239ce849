"""The budget of a request in the engine: what would cost too much is refused by name, and holds nobody up."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead_common.http.lanes import LARGE_BYTES, Pacer
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine.server.app import build_app
from fairlead_engine.types import EngineRequest, FinishReason, SequenceOutput, TokenLogprobs
from fairlead_engine_testing import ScriptedEngine
from fairlead_engine_testing.scripted_engine import Script, scripted_info
from fairlead_testing.harm import measured_harm
from fairlead_testing.hostile_bodies import Hostile, hostile_bodies, lists_in_arguments

SIZE = 8 * 2**20
GENEROUS_STALL_SECONDS = 0.5
GENEROUS_GROWTH_BYTES = 100 * 2**20


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
async def test_large_bodies_are_decoded_in_turn(start_app: Any, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    seen = list[int]()

    async def pace(self: Pacer, num_bytes: int) -> None:
        seen.append(num_bytes)

    monkeypatch.setattr(Pacer, "pace", pace)
    body = json.dumps({"model": "tiny", "unknown": "x" * LARGE_BYTES}).encode()
    assert (await start_app().http.post(path, content=body)).status_code == 400
    assert seen == [len(body)]


@pytest.mark.parametrize("hostile", list(hostile_bodies("tiny", SIZE))[::4], ids=str)
async def test_what_costs_too_much_is_refused_and_holds_nobody_up(start_app: Any, hostile: Hostile) -> None:
    app, body = start_app(), hostile.body
    async with measured_harm() as harm:
        response = await app.http.post(hostile.path, content=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, hostile.param)
    assert hostile.says in error["message"].replace(",", "")
    assert harm.stalled_seconds < GENEROUS_STALL_SECONDS
    assert harm.grown_bytes < GENEROUS_GROWTH_BYTES
    assert app.engine.requests == []


async def test_json_within_json_is_held_to_it_too(start_app: Any) -> None:
    app, hostile = start_app(), lists_in_arguments("tiny", SIZE)
    body = hostile.body
    async with measured_harm() as harm:
        response = await app.http.post(hostile.path, content=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "messages")
    assert "arguments of tool calls" in error["message"]
    assert harm.stalled_seconds < GENEROUS_STALL_SECONDS


def of_tools(depth: int) -> bytes:
    body = b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"tools":[{"x":%b%b%b}]}'
    return body % (b"[" * depth, b",".join([b"1"] * 75_000), b"]" * depth)


def of_messages(number: int, content: str, end: str) -> bytes:
    messages = [{"role": "user", "content": content}] * number
    return json.dumps({"model": "tiny", "messages": messages, "chat_template_kwargs": {"eos_token": end}}).encode()


CHAT = "/v1/chat/completions"
INDENTING = "{{ tools | tojson(indent=4) }}"
REPEATING = "{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}"


@pytest.mark.parametrize(
    ("path", "template", "body", "says"),
    [
        pytest.param(
            "/tokenize", INDENTING, of_tools(900), "at most 64 lists", id="a short line begins with 3,600 spaces"
        ),
        pytest.param("/tokenize", INDENTING, of_tools(60), "makes more than", id="indented"),
        pytest.param(CHAT, REPEATING, of_messages(4000, "x", "y" * 2**20), "chat_template_kwargs", id="repeated"),
        pytest.param(
            CHAT,
            REPEATING,
            of_messages(400, "", "ahoy " * 2000),
            "maximum context length",
            id="a small request, a large prompt",
        ),
    ],
)
async def test_a_template_that_makes_much_of_its_input_is_bounded(
    start_app: Any, tokenizer: PromptTokenizer, path: str, template: str, body: bytes, says: str
) -> None:
    app = start_app(tokenizer=PromptTokenizer(tokenizer.tokenizer_json, chat_template=template))
    async with measured_harm() as harm:
        response = await app.http.post(path, content=body)
    assert response.status_code == 400
    assert says in response.json()["error"]["message"]
    assert harm.stalled_seconds < GENEROUS_STALL_SECONDS
    assert harm.grown_bytes < GENEROUS_GROWTH_BYTES


@pytest.mark.parametrize(("num_tokens", "status"), [(64, 200), (65, 400), (2_000_000, 400)])
async def test_no_more_ids_become_text_than_the_model_has_context_for(
    start_app: Any, num_tokens: int, status: int
) -> None:
    app = start_app(ScriptedEngine(info=scripted_info(max_model_len=64)))
    async with measured_harm() as harm:
        response = await app.http.post("/detokenize", json={"tokens": [7] * num_tokens})
    assert response.status_code == status
    if status == 400:
        error = response.json()["error"]
        assert (error["param"], error["code"]) == ("tokens", "context_length_exceeded")
    assert harm.grown_bytes < GENEROUS_GROWTH_BYTES


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "x" * 513), ("user", "x" * 513), ("safety_identifier", "x" * 513), ("prompt_cache_key", "x" * 513),
        ("prompt_cache_retention", "x" * 513), ("moderation", {"x" * 513: ""}),
        ("service_tier", "x" * 513), ("metadata", {str(number): "" for number in range(65)}),
        ("metadata", {"x" * 513: ""}), ("cache_salt", "é" * 257), ("x" * 2**20, 1), ("logit_bias", "x" * 2**20),
        ("messages", [{"role": "x" * 2**20, "content": ""}]), ("chat_template_kwargs", {"x" * 2**20: 1, "messages": 1}),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
async def test_a_field_that_is_too_long_is_refused_by_name_in_few_words(start_app: Any, field: str, value: Any) -> None:
    app = start_app(unknown_fields="refuse")
    async with measured_harm() as harm:
        response = await app.chat(**{field: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(field[:100])
    assert len(response.content) < 2000
    assert harm.stalled_seconds < GENEROUS_STALL_SECONDS
    assert app.engine.requests == []


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "x" * 512, "metadata": {str(number): "x" for number in range(64)}, "cache_salt": "é" * 256},
        {"chat_template_kwargs": {"x": [[]] * 5000}},
    ],
)
async def test_what_is_within_it_is_served(start_app: Any, fields: dict[str, Any]) -> None:
    assert (await start_app(ScriptedEngine(info=scripted_info(max_model_len=16_384))).chat(**fields)).status_code == 200


@pytest.mark.parametrize("text", ["9" * 4400, "-" + "9" * 4000, "1e999", "0." + "5" * 100_000])
@pytest.mark.parametrize("field", ["max_tokens", "seed", "temperature", "top_logprobs", "n", "stop_token_ids"])
async def test_numbers_of_any_length_are_refused_by_name(start_app: Any, field: str, text: str) -> None:
    app = start_app()
    value = f"[{text}]" if field == "stop_token_ids" else text
    body = f'{{"model":"tiny","messages":[{{"role":"user","content":"x"}}],"{field}":{value}}}'
    response = await app.http.post("/v1/chat/completions", content=body)
    if field == "temperature" and text.startswith("0."):
        assert response.status_code == 200
        return
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(field)
    assert len(response.content) < 2000


async def test_a_malformed_body_costs_no_more_than_a_good_one(start_app: Any) -> None:
    for body in (b'{"x":' + b"[1]," * 2_000_000 + b"NaN", b'{"x":' + b"[" * 900 + b"NaN" + b"]" * 900 + b"}"):
        async with measured_harm() as harm:
            response = await start_app().http.post("/v1/chat/completions", content=body)
        assert response.status_code == 400
        assert harm.stalled_seconds < GENEROUS_STALL_SECONDS
        assert harm.grown_bytes < GENEROUS_GROWTH_BYTES


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat", {"n": 64, "logprobs": True, "top_logprobs": 20, "max_tokens": 1000}),
        ("chat", {"n": 64, "logprobs": True, "top_logprobs": 20, "max_completion_tokens": 1000}),
        ("complete", {"prompt": ["x"] * 64, "logprobs": 20, "max_tokens": 1000}),
    ],
)
async def test_an_answer_that_cannot_be_sent_whole_is_refused_before_it_begins(
    start_app: Any, path: str, fields: dict[str, Any]
) -> None:
    app = start_app(ScriptedEngine(info=scripted_info(max_model_len=4096)))
    response = await getattr(app, path)(**fields)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "answer_too_large")
    assert "lower" in error["message"]
    assert "stream" in error["message"]
    assert app.engine.requests == []
    assert (await getattr(app, path)(**fields, stream=True)).status_code == 200


TOP = [(token_id, -1.5) for token_id in range(65, 85)]


def ranked(num_steps: int, num_top: int, end: FinishReason | None = None) -> Script:
    """Steps of 64 tokens with their log-probabilities."""

    def script(request: EngineRequest) -> Iterator[SequenceOutput]:
        for number in range(1, num_steps + 1):
            yield SequenceOutput(
                request_id=request.request_id,
                new_token_ids=[65] * 64,
                logprobs=[TokenLogprobs(65, -1.5, TOP[:num_top]) for _ in range(64)],
                finish_reason=end if number == num_steps else None,
            )

    return script


async def test_an_answer_without_max_tokens_ends_where_it_gets_too_large(start_app: Any) -> None:
    app = start_app(ScriptedEngine(ranked(500, 20)))
    async with measured_harm() as harm:
        response = await app.chat(logprobs=True, top_logprobs=20)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "answer_too_large")
    assert app.engine.running == set()
    assert harm.grown_bytes < 2 * GENEROUS_GROWTH_BYTES


async def test_the_largest_answer_holds_nobody_up(start_app: Any) -> None:
    app = start_app(ScriptedEngine(ranked(300, 19, FinishReason.STOP)))
    async with measured_harm() as harm:
        response = await app.chat(logprobs=True, top_logprobs=19)
    content = response.json()["choices"][0]["logprobs"]["content"]
    assert (response.status_code, len(content), len(content[-1]["top_logprobs"])) == (200, 300 * 64, 19)
    assert harm.grown_bytes < 2 * GENEROUS_GROWTH_BYTES


def scored(request: EngineRequest) -> Iterator[SequenceOutput]:
    """The whole prompt in one step."""
    scores = [TokenLogprobs(token_id, -1.5, TOP) for token_id in request.prompt_token_ids[1:]]
    yield SequenceOutput(
        request_id=request.request_id,
        new_token_ids=[],
        prompt_logprobs=scores,
        finish_reason=FinishReason.LENGTH,
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_a_step_that_scores_thousands_of_tokens_holds_nobody_up(start_app: Any, stream: bool) -> None:
    """As many as a GPU's step computes by default."""
    app = start_app(ScriptedEngine(scored, info=scripted_info(max_model_len=8200)))
    fields = {"prompt": [65] * 8192, "echo": True, "logprobs": 20, "max_tokens": 0, "stream": stream}
    await app.complete(**{**fields, "prompt": [65] * 9})
    async with measured_harm() as harm:
        response = await app.complete(**fields)
    assert response.status_code == 200
    assert response.text.count("-1.5") == 8191 * 21
    assert harm.stalled_seconds < 0.1


@pytest.mark.parametrize("stream", [False, True])
async def test_prompts_with_more_scores_than_an_answer_holds_are_refused_before_they_are_computed(
    start_app: Any, stream: bool
) -> None:
    app = start_app(ScriptedEngine(scored, info=scripted_info(max_model_len=4096)))
    response = await app.complete(prompt=[[65] * 3000] * 8, echo=True, logprobs=20, max_tokens=0, stream=stream)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "answer_too_large", "prompt")
    assert "504,000" in error["message"]
    assert app.engine.requests == []


async def test_log_probabilities_that_nobody_reads_end_their_request(start_app: Any) -> None:
    app = start_app(ScriptedEngine(ranked(2000, 20)))
    body = {"model": "tiny", "prompt": "ahoy", "logprobs": 20, "max_tokens": 200, "stream": True}
    messages = iter([{"type": "http.request", "body": json.dumps(body).encode()}])
    told: list[bytes] = []
    may_read = asyncio.Event()

    async def receive() -> Any:
        return next(messages, None) or await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await may_read.wait()
            told.append(message["body"])

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}
    async with measured_harm() as harm:
        answering = asyncio.create_task(build_app(app.service)(scope, receive, send))
        async with asyncio.timeout(60):
            while not app.engine.requests or app.engine.running:
                await asyncio.sleep(0.01)
    assert harm.grown_bytes < 2 * GENEROUS_GROWTH_BYTES
    may_read.set()
    await answering
    assert b"read the stream faster" in b"".join(told)
