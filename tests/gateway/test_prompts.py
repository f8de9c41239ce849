"""PromptReader: the ids an engine would make itself, once per request, in processes of their own; never an error."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import fairlead_engine.demo
from fairlead.gateway.openai.parse import InferenceRequest, parse
from fairlead.gateway.prompts.fields import raw_prompt
from fairlead.gateway.prompts.reader import PromptReader, ReadPrompt, Tokenizers
from fairlead_common.http.lanes import Pacer
from fairlead_common.openai.prompts import TextPrompts
from fairlead_common.openai.unknown_fields import UnknownFields
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_common.wire.blocks import extra_bytes, hash_blocks, num_cacheable_blocks
from fairlead_common.wire.messages import FIELD_TOKENS, ModelInfo, PromptTokens
from fairlead_common.workers.pool import Workers
from fairlead_engine.api.prompts import chat_fields
from fairlead_engine.api.request_body import decode
from fairlead_engine.api.schemas import ChatRequest, CompletionRequest
from fairlead_engine.api.served_model import ModelFiles, ServedModel
from fairlead_engine.api.service import Service
from fairlead_engine.config import ServerConfig
from fairlead_engine.errors import RequestError
from fairlead_engine.server.app import build_app
from fairlead_engine_testing import ScriptedEngine
from fairlead_engine_testing.prompts_here import PromptsHere, prompts_here
from fairlead_engine_testing.scripted_engine import scripted_info
from fairlead_testing.fake_engine.prompts import told

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MAX_MODEL_LEN = 16_384
TOKENIZER = PromptTokenizer.from_folder(Path(fairlead_engine.demo.__file__).parent / "dinghy")
INFO = scripted_info(vocab_size=TOKENIZER.vocab_size, max_model_len=MAX_MODEL_LEN)
ENGINE = ServedModel("dinghy", ModelFiles(TOKENIZER, {}), INFO)
MODEL_INFO = msgspec.json.decode(ENGINE.protocol_json, type=ModelInfo)
DIGEST = TOKENIZER.digest


def request(path: str = CHAT, **fields: Any) -> InferenceRequest:
    return parse(path, json.dumps({"model": "dinghy", **fields}).encode(), [], request_id="1")


def chat(content: Any = "ahoy", **fields: Any) -> InferenceRequest:
    return request(messages=[{"role": "user", "content": content}], **fields)


def ids_of(prompt: ReadPrompt, digest: str = DIGEST) -> list[list[int]]:
    return [list(tokens.token_ids) for tokens in prompt.by_digest[digest]]


@pytest.fixture
async def tokenizers() -> AsyncIterator[Tokenizers]:
    tokenizers = await loaded()
    yield tokenizers
    tokenizers.close()


@pytest.fixture
def reader(tokenizers: Tokenizers) -> PromptReader:
    return PromptReader(tokenizers, Pacer())


# -- Agreement with the engine -----------------------------------------------------------------------------------------

ROLES = st.sampled_from(["user", "assistant", "system", "developer", "tool"])
TEXT = st.text(max_size=20) | st.sampled_from(
    ["<|end|>", "What is 12 + 30?", "<|user|> x", "<tool_call>{}</tool_call>"]
)
PARTS = st.lists(st.fixed_dictionaries({"type": st.sampled_from(["text", "input_text", "image_url"]), "text": TEXT}))
CALL = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": TEXT, "arguments": st.sampled_from(['{"a": 1}', "{", "[]", "5"])})}
)
MESSAGE = st.fixed_dictionaries(
    {"role": ROLES, "content": TEXT | PARTS | st.none()},
    optional={"tool_calls": st.lists(CALL, max_size=2), "name": TEXT, "reasoning": st.none() | TEXT},
)
PARAMETERS = st.fixed_dictionaries({"properties": st.dictionaries(TEXT, st.just({"type": "string"}), max_size=2)})
TOOL = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": TEXT, "description": TEXT, "parameters": PARAMETERS})}
)
FLAG = st.sampled_from([True, False, None])
GARBAGE = st.sampled_from([None, 5, -1.5, "x", [], {}, [None], [[]], True, {"role": 1}, 2**70, "\u0000", [5, "x"]])
OPTIONS = {
    "add_special_tokens": FLAG,
    "cache_salt": st.none() | TEXT,
    "n": st.sampled_from([1, 3]),
    "truncate_prompt_tokens": st.none() | st.integers(-1, 12),
    "truncation_side": st.sampled_from([None, "left", "right"]),
    "max_tokens": st.none() | st.integers(1, MAX_MODEL_LEN),
}
CHATS = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE, max_size=6)},
    optional={
        **OPTIONS,
        "tools": st.none() | st.lists(TOOL, max_size=2),
        "chat_template_kwargs": st.sampled_from([None, {}, {"bos_token": "<|end|>"}, {"tools": 1}, {"x": [1]}]),
        "add_generation_prompt": FLAG,
        "continue_final_message": FLAG,
    },
)
IDS = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=30)
COMPLETIONS = st.fixed_dictionaries(
    {"prompt": TEXT | st.lists(TEXT, max_size=4) | IDS | st.lists(IDS, max_size=4)}, optional=OPTIONS
)
NAMES = [
    *("messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "prompt"),
    *("add_special_tokens", "cache_salt", "truncate_prompt_tokens", "truncation_side", "max_tokens"),
]


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Mostly requests as people send them, some with something wrong in one field. What is wrong with `max_tokens` is
    left to engines, so gateways tokenise such prompts nevertheless."""
    path = draw(st.sampled_from([CHAT, COMPLETION]))
    body = draw(CHATS if path == CHAT else COMPLETIONS)
    if draw(st.integers(0, 3)) == 0:
        body[draw(st.sampled_from([name for name in NAMES if name != "max_tokens"]))] = draw(GARBAGE)
    return path, body


def engine_ids(path: str, body: dict[str, Any]) -> list[list[int]] | None:
    """What an engine makes of it; None = a 400."""
    raw = json.dumps({"model": "dinghy", **body}).encode()
    try:
        if path == CHAT:
            return [
                prompt.token_ids
                for prompt in prompts_here(decode(raw, ChatRequest, UnknownFields("refuse")), ENGINE, chat_fields)
            ]
        request = decode(raw, CompletionRequest, UnknownFields("refuse"))
        return [prompt.token_ids for prompt in prompts_here(request, ENGINE, lambda request: request.prompt_fields)]
    except RequestError:
        return None


@pytest.fixture(scope="module")
def old_reader() -> Iterator[tuple[asyncio.Runner, PromptReader]]:
    """One that goes on from example to example, and so has the more in its cache."""
    with asyncio.Runner() as runner:
        tokenizers = runner.run(loaded())
        yield runner, PromptReader(tokenizers, Pacer())
        runner.run(closed(tokenizers))


async def loaded() -> Tokenizers:
    tokenizers = Tokenizers()
    await tokenizers.add(*told(MODEL_INFO))
    return tokenizers


async def closed(tokenizers: Tokenizers) -> None:
    tokenizers.close()


@given(bodies())
@example((CHAT, {"messages": [{"role": "tool", "content": [{"type": "image_url"}]}], "truncate_prompt_tokens": 3}))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_gateways_ids_are_those_the_engine_makes_itself(
    old_reader: tuple[asyncio.Runner, PromptReader], case: tuple[str, dict[str, Any]]
) -> None:
    path, body = case
    runner, reader = old_reader
    known = NAMES[:5] + NAMES[6:-1] if path == CHAT else NAMES[5:]  # engines refuse other fields, and gateways read on
    body = {name: value for name, value in body.items() if name in known}
    prompt = runner.run(reader.read(request(path, **body), [DIGEST]))
    expected = engine_ids(path, body)
    if expected is None:
        assert prompt.by_digest == {}
        assert prompt.num_tokens == 0
        assert prompt.tokens_field(DIGEST) is None
        return
    assert ids_of(prompt) == expected
    assert prompt.num_tokens == sum(map(len, expected))
    field = prompt.tokens_field(DIGEST)
    assert field is not None
    assert msgspec.json.decode(field, type=PromptTokens) == PromptTokens(digest=DIGEST, prompts=expected)
    assert engine_ids(path, {**body, FIELD_TOKENS: json.loads(field)}) == expected
    extra = extra_bytes(cache_salt=body.get("cache_salt"))
    for tokens, ids in zip(prompt.by_digest[DIGEST], expected, strict=True):
        assert tokens.hashes(16) == hash_blocks(ids, 16, extra=extra)[: num_cacheable_blocks(len(ids), 16)]


async def test_an_engine_over_http_tokenises_as_the_gateway_does(reader: PromptReader) -> None:
    engine = ScriptedEngine(info=INFO)
    engine.alive = True
    service = Service("dinghy", engine, ServerConfig(), make_asked=PromptsHere)
    service.ready(ModelFiles(TOKENIZER, {}), INFO)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Größe?"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}]},
        {"role": "tool", "content": "⚓"},
    ]
    prompt = await reader.read(request(messages=messages, cache_salt="blue"), [DIGEST])
    field = prompt.tokens_field(DIGEST)
    assert field is not None
    transport = httpx.ASGITransport(app=build_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
        said = (await http.post("/tokenize", json={"model": "dinghy", "messages": messages})).json()
        answer = await http.post(
            CHAT, json={"model": "dinghy", "messages": messages, "max_tokens": 1, FIELD_TOKENS: json.loads(field)}
        )
    assert answer.status_code == 200
    assert [said["tokens"]] == ids_of(prompt) == [list(each.prompt_token_ids) for each in engine.requests]


# -- Digests -----------------------------------------------------------------------------------------------------------


def other_info() -> ModelInfo:
    other = PromptTokenizer(
        TOKENIZER.tokenizer_json, chat_template="{{ messages[0].content }}", special_tokens=TOKENIZER.special_tokens
    )
    return msgspec.structs.replace(MODEL_INFO, digest=other.digest, chat_template="{{ messages[0].content }}")


async def test_a_prompt_is_read_for_each_digest_and_completed_later(
    reader: PromptReader, tokenizers: Tokenizers
) -> None:
    other = other_info()
    prompt = await reader.read(chat(), ["unknown", other.digest])
    assert prompt.by_digest == {}
    assert prompt.num_tokens == len('[{"role": "user", "content": "ahoy"}]') // 4
    await tokenizers.add(*told(other))
    assert await reader.read(chat(), [other.digest, DIGEST], prompt) is prompt
    assert ids_of(prompt) == [TOKENIZER.encode_chat([{"role": "user", "content": "ahoy"}])]
    assert ids_of(prompt, other.digest) == [TOKENIZER.encode("ahoy", add_special_tokens=False)]
    seconds = prompt.seconds
    await reader.read(chat(), [other.digest, DIGEST], prompt)
    assert prompt.seconds == seconds > 0, "there was nothing left to do"


async def test_a_request_that_was_refused_is_not_tried_again(reader: PromptReader) -> None:
    prompt = await reader.read(chat(content=5), [DIGEST])
    assert await reader.read(chat(), [DIGEST], prompt) is prompt
    assert prompt.by_digest == {}


async def test_the_field_is_encoded_once_per_digest(reader: PromptReader) -> None:
    prompt = await reader.read(chat(), [DIGEST])
    assert prompt.tokens_field(DIGEST) is prompt.tokens_field(DIGEST)
    assert prompt.tokens_field("another") is None


async def test_more_tokens_than_an_engine_takes_in_a_body_are_not_sent(
    reader: PromptReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.gateway.prompts.reader.MAX_TOKENS_SENT", 20)
    few, many = [await reader.read(chat("x " * number), [DIGEST]) for number in (3, 30)]
    assert few.tokens_field(DIGEST) is not None
    assert many.tokens_field(DIGEST) is None


# -- What is not tokenised here ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/embeddings"])
async def test_other_paths_have_no_prompt(reader: PromptReader, path: str) -> None:
    prompt = await reader.read(request(path, prompt="x", tokens=[1]), [DIGEST])
    assert (prompt.num_tokens, prompt.by_digest, prompt.affinity) == (0, {}, "")


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("messages", rb'[{"role": "user", "content": "\ud800"}]'),
        ("messages", b'[{"role": "user", "content": 1e999}]'),
        ("messages", b"[" * 50_000 + b"]" * 50_000),
        ("messages", b"[{"),
        ("messages", b"null"),
        ("messages", b""),
        ("cache_salt", rb'"\udfff"'),
        ("cache_salt", b"5"),
        ("chat_template_kwargs", b'{"bos_token": 5}'),
    ],
)
async def test_no_request_makes_it_raise(reader: PromptReader, name: str, raw: bytes) -> None:
    garbage = chat()
    garbage.fields[name] = msgspec.Raw(raw)
    prompt = await reader.read(garbage, [DIGEST])
    assert prompt.by_digest == {} or name == "chat_template_kwargs"
    assert prompt.num_tokens == 0 or name == "chat_template_kwargs"


@pytest.mark.parametrize("prompts", [["x"] * 129, [[5]] * 129, [*(["x"] * 129), 5], ["x" * 2**15] * 129])
async def test_more_prompts_than_an_engine_takes_are_left_to_it_without_a_look_at_each(
    reader: PromptReader, prompts: list[Any]
) -> None:
    text = json.dumps(prompts).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextPrompts, "places", lambda _: pytest.fail("a hundred thousand would take a second"))
        assert raw_prompt(COMPLETION, {"prompt": text}, None).fields is None
    many = await reader.read(request(COMPLETION, prompt=prompts), [DIGEST])
    assert many.by_digest == many.too_long == {}
    assert many.num_tokens > 0
    assert reader.num_left == 1


NOT_TOKENISED = [
    chat("one two three " * 300_000),
    request(COMPLETION, prompt="x " * 2_000_000),
    request(COMPLETION, prompt=["short", "x " * 2_000_000]),
    request(COMPLETION, prompt=[5] * 20_000),
    request(COMPLETION, prompt=[12345] * 500_000),
    request(COMPLETION, prompt=[[5], [12345] * 500_000, [6]]),
]


@pytest.mark.parametrize("number", range(len(NOT_TOKENISED)))
async def test_a_prompt_that_is_sure_to_be_too_long_is_not_tokenised(reader: PromptReader, number: int) -> None:
    prompt = await reader.read(NOT_TOKENISED[number], [DIGEST])
    assert (prompt.by_digest, prompt.num_tokens) == ({}, 0)
    assert prompt.too_long[DIGEST].code == "context_length_exceeded"
    assert f"maximum context length is {MAX_MODEL_LEN} tokens" in prompt.too_long[DIGEST].message
    assert reader.num_left == 0


async def test_a_prompt_that_turns_out_to_be_too_long_is_noted(reader: PromptReader) -> None:
    prompt = await reader.read(chat("one two three " * 8000), [DIGEST])
    assert (prompt.by_digest, prompt.num_tokens) == ({}, 0)
    engine = TOKENIZER.encode_chat([{"role": "user", "content": "one two three " * 8000}])
    assert f"the prompt has {len(engine)};" in prompt.too_long[DIGEST].message


# -- Affinity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "fields", "affinity"),
    [
        (CHAT, {"messages": [{"role": "system", "content": "no"}, {"role": "user", "content": "abcdefgh"}]}, "abcde"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "ab"}, "cd"]}]}, "abcd"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, ""),
        (CHAT, {"messages": [{"role": "system", "content": "abc"}]}, ""),
        (CHAT, {"messages": "abc"}, ""),
        (COMPLETION, {"prompt": "abcdefgh"}, "abcde"),
        (COMPLETION, {"prompt": ["abcdefgh", "x"]}, "abcde"),
        (COMPLETION, {"prompt": [1, 2, 3, 4]}, "1 2 3"),
        (COMPLETION, {"prompt": [[11, 22, 33]]}, "11 22"),
        (COMPLETION, {"prompt": [{}]}, "{}"),
        (COMPLETION, {"prompt": []}, ""),
        (COMPLETION, {}, ""),
    ],
)
async def test_affinity_is_the_beginning_of_what_the_user_says(
    path: str, fields: dict[str, Any], affinity: str
) -> None:
    reader = PromptReader(Tokenizers(), Pacer())  # which starts no process
    assert (await reader.read(request(path, **fields), [], affinity_length=5)).affinity == affinity


# -- Where the work is done --------------------------------------------------------------------------------------------


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The jobs that were done beside others."""
    seen: list[bytes] = []
    ask_beside = Workers.ask_beside

    def spy(self: Workers, job: bytes, num_bytes: int = 0) -> Coroutine[Any, Any, bytes]:
        seen.append(job)
        return ask_beside(self, job, num_bytes)

    monkeypatch.setattr(Workers, "ask_beside", spy)
    return seen


def conversation(num_turns: int) -> InferenceRequest:
    roles = ("user", "assistant")
    return request(
        messages=[{"role": roles[turn % 2], "content": f"{turn} " + "ahoy sailor " * 60} for turn in range(num_turns)]
    )


async def test_long_prompts_are_tokenised_beside_others_and_what_is_known_not_again(
    reader: PromptReader, beside: list[bytes]
) -> None:
    await reader.read(chat("What is 12 + 30?"), [DIGEST])
    assert beside == []
    cold = await reader.read(conversation(36), [DIGEST])
    assert len(beside) == 1
    assert cold.num_cached_tokens == 0
    grown = await reader.read(conversation(38), [DIGEST])
    assert cold.num_tokens - 300 <= grown.num_cached_tokens <= cold.num_tokens
    warm = await reader.read(conversation(38), [DIGEST])
    assert len(beside) == 1
    assert warm.num_cached_tokens == warm.num_tokens == grown.num_tokens
    assert warm.seconds > 0 and cold.seconds > 0


@pytest.mark.parametrize(
    "long",
    [
        chat("one two three " * 2000),
        request(COMPLETION, prompt="one two three " * 2000),
        request(COMPLETION, prompt=["one two " * 2000, "short", "one two " * 2000], add_special_tokens=False),
    ],
)
async def test_long_prompts_have_the_same_ids(reader: PromptReader, long: InferenceRequest) -> None:
    path = long.path
    body = {name: json.loads(bytes(raw)) for name, raw in long.fields.items()}
    assert ids_of(await reader.read(long, [DIGEST])) == engine_ids(path, body)


async def test_others_go_on_while_a_long_prompt_is_tokenised(reader: PromptReader) -> None:
    long = asyncio.create_task(reader.read(request(COMPLETION, prompt="one two three " * 2000), [DIGEST]))
    await asyncio.sleep(0)
    short = await reader.read(chat("What is 12 + 30?"), [DIGEST])
    assert short.by_digest
    assert not long.done()
    assert DIGEST in (await long).by_digest


async def test_when_too_many_wait_engines_do_it(reader: PromptReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.gateway.prompts.reader.MAX_WAITING", 3)
    waiting = [asyncio.create_task(reader.read(chat(f"ahoy {number}"), [DIGEST])) for number in range(3)]
    await asyncio.sleep(0)
    beyond = await reader.read(chat("ahoy"), [DIGEST])
    assert beyond.by_digest == {}
    assert beyond.num_tokens > 0
    assert beyond.affinity == "ahoy"
    assert reader.num_left == 1
    assert all(prompt.by_digest for prompt in await asyncio.gather(*waiting))


async def test_while_no_process_is_up_engines_do_it(reader: PromptReader, tokenizers: Tokenizers) -> None:
    await reader.read(chat(), [DIGEST])
    model = tokenizers.get(DIGEST)
    assert model is not None and model.workers._stem is not None
    os.kill(model.workers._stem.pid, signal.SIGKILL)
    tries = [await reader.read(chat(), [DIGEST])]
    while not tries[-1].by_digest or len(tries) == 1:
        await asyncio.sleep(0.01)
        tries.append(await reader.read(chat(), [DIGEST]))
    assert all(prompt.num_tokens > 0 for prompt in tries)
    assert reader.num_left == sum(not prompt.by_digest for prompt in tries) > 0
