"""What people have installed - the official client, langchain-openai and litellm - gets every feature over HTTP,
through gateway and engine, streamed and not.

`CHATS` and `TEXTS` are the tables: a feature is a request and what an answer must be like. Each client gets what a
plain request gets from the gateway; what a client cannot express, or leaves out of what it hands on, stands there with
the reason.
"""

import asyncio
import base64
import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from fairlead.routing.replica import Replica
from fairlead_engine.demo import resolve_model
from fairlead_engine_testing.adapters import write_random_adapter, write_random_soft_prompt
from fairlead_engine_testing.encoder_checkpoints import write_encoder, write_word_pieces
from fairlead_engine_testing.vision_checkpoints import noise, write_vision_model
from fairlead_testing.gateways import make_pool, running_gateway

pytestmark = [pytest.mark.slow, pytest.mark.matrix]

OPENAI, LANGCHAIN, LITELLM = "openai", "langchain", "litellm"
CLIENTS = (OPENAI, LANGCHAIN, LITELLM)
WHOLE, STREAMED = "whole", "streamed"

# -- the tables --

Answer = dict[str, Any]
"""`texts` and `ends`: of each choice, its text and finish_reason; `reasoning` of the first; `num_logprobs` of it."""


@dataclass
class Feature:
    """A request, what its answer must be like, and which clients cannot have it."""

    name: str
    holds: Callable[[Answer, Answer], Any]
    """Of the answer, and of that to the same prompt without the feature."""
    fields: dict[str, Any] = field(default_factory=dict)
    """OpenAI's own, which clients have parameters for."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Those that clients pass on as `extra_body`."""
    prompt: Any = None
    model: str = "dinghy"
    refuses_streams: str | None = None
    """The field that a stream is refused for."""
    without: dict[str, str] = field(default_factory=dict)
    """By client, or `CLIENT STREAMED`, why it cannot have it."""
    lost: dict[str, set[str]] = field(default_factory=dict)
    """By client, or `CLIENT STREAMED`, what it leaves out of the answer."""

    def __str__(self) -> str:
        return self.name.replace(" ", "-")

    def unfit(self, client: str, way: str) -> str | None:
        """Why this client cannot have it in this way."""
        return self.without.get(client) or self.without.get(f"{client} {way}")

    def seen(self, answer: Answer, client: str, way: str) -> Answer:
        """What of an answer the client hands on."""
        gone = self.lost.get(client, set()) | self.lost.get(f"{client} {way}", set())
        return {name: value for name, value in answer.items() if name not in gone}


def differs(answer: Answer, plain: Answer) -> bool:
    return bool(answer["texts"] != plain["texts"])


def matches(pattern: str) -> Callable[[Answer, Answer], Any]:
    return lambda answer, _: all(re.fullmatch(pattern, text, re.DOTALL) for text in answer["texts"])


def is_json(answer: Answer, _: Answer) -> bool:
    return isinstance(json.loads(answer["texts"][0]), dict)


ONE_CHOICE = "streams of several choices run together into one"
FIRST_CHOICE = {f"{LANGCHAIN} {STREAMED}": ONE_CHOICE, f"{LITELLM} {STREAMED}": ONE_CHOICE}
NO_REASONING = {LANGCHAIN: {"reasoning"}}
"""langchain-openai leaves out what OpenAI's chat completions have no field for."""
NO_LOGPROBS = {f"{LITELLM} {STREAMED}": {"num_logprobs"}}
"""litellm takes texts alone out of the events of a text completion."""
SHIP = {"type": "object", "properties": {"ship": {"type": "string", "maxLength": 9}}, "required": ["ship"]}
TAG = {"begin": "<ship>", "schema": SHIP, "end": "</ship>"}
TAGS = json.dumps({"type": "structural_tag", "structures": [TAG], "triggers": ["<ship>"]})
ASKED = [{"role": "user", "content": "What does the Heron carry?"}]


def image(seed: int) -> list[dict[str, Any]]:
    content = io.BytesIO()
    noise(40, 32, seed).save(content, "PNG")
    url = "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
    parts = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    return [{"role": "user", "content": parts}]


CHATS = [
    Feature("adapter", differs, model="dinghy:pirate"),
    Feature("soft prompt", differs, {"temperature": 2.0, "seed": 3}, {"ignore_eos": True}, model="dinghy:soft"),
    Feature("image", differs, prompt=image(1), model="vision"),
    Feature("seed", differs, {"temperature": 1.5, "seed": 7}),
    Feature("top_p", differs, {"temperature": 1.5, "seed": 7, "top_p": 0.5}),
    Feature("n", lambda each, _: len({*each["texts"]}) == 3, {"n": 3, "temperature": 1.5, "seed": 5},
            without=FIRST_CHOICE),
    Feature("logprobs", lambda each, _: each["num_logprobs"] > 1, {"logprobs": True, "top_logprobs": 2}),
    Feature("logit_bias", differs, {"logit_bias": {"300": 100}}),
    Feature("stop", lambda each, plain: plain["texts"][0].startswith(each["texts"][0]) and differs(each, plain),
            {"stop": ["e"]}),
    Feature("penalties", differs, {"frequency_penalty": 2.0, "presence_penalty": 2.0, "max_tokens": 60},
            {"ignore_eos": True}),
    Feature("sampling beyond OpenAI's", differs, {"temperature": 1.5, "seed": 7},
            {"top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1, "dry_multiplier": 0.8, "bad_words": ["wet"]}),
    Feature("allowed_token_ids", differs, {}, {"allowed_token_ids": [300, 301], "ignore_eos": True}),
    Feature("priority", lambda *_: True, {}, {"priority": -3}),
    Feature("beam search", lambda each, _: len({*each["texts"]}) == 2, {"n": 2}, {"use_beam_search": True},
            refuses_streams="use_beam_search"),
    Feature("reasoning within a budget", lambda each, _: each["reasoning"] and each["texts"][0], {},
            {"chat_template_kwargs": {"enable_thinking": True}, "thinking_token_budget": 8, "ignore_eos": True},
            lost=NO_REASONING),
    Feature("json_object", is_json, {"response_format": {"type": "json_object"}, "max_tokens": 200},
            {"thinking_token_budget": 0}),
    Feature("json_schema", is_json,
            {"response_format": {"type": "json_schema", "json_schema": {"name": "ship", "schema": SHIP}},
                                     "max_tokens": 60}, {"thinking_token_budget": 0}),
    Feature("regex", matches("[xyz]{4}"), {}, {"structured_outputs": {"regex": "[xyz]{4}"}}),
    Feature("choice", matches("port|starboard"), {}, {"structured_outputs": {"choice": ["port", "starboard"]}}),
    Feature("guided_choice", matches("port|starboard"), {}, {"guided_choice": ["port", "starboard"]}),
    Feature("grammar", matches("aye( aye)*"), {"max_tokens": 50},
            {"structured_outputs": {"grammar": 'start: "aye" (" aye")~0..3'}}),
    Feature("structural tag", matches(r"(.*<ship>\{.*\}</ship>)?.*"), {"max_tokens": 40},
            {"structured_outputs": {"structural_tag": TAGS}}),
]  # fmt: skip
TEXTS = [
    Feature("adapter", differs, model="dinghy:pirate"),
    Feature("soft prompt", differs, model="dinghy:soft"),
    Feature("seed", differs, {"temperature": 1.5, "seed": 7}),
    Feature("n", lambda each, _: len({*each["texts"]}) == 3, {"n": 3, "temperature": 1.5, "seed": 5},
            {"ignore_eos": True}, without=FIRST_CHOICE),
    Feature("best_of", lambda each, _: len(each["texts"]) == 1, {"best_of": 3, "temperature": 1.5, "seed": 5},
            refuses_streams="best_of"),
    Feature("logprobs", lambda each, _: each["num_logprobs"] > 2, {"logprobs": 2}, lost=NO_LOGPROBS),
    Feature("echo with the prompt's logprobs", lambda each, plain: each["texts"][0].endswith(plain["texts"][0])
            and each["num_logprobs"] > 15, {"echo": True, "logprobs": 1}, lost=NO_LOGPROBS),
    Feature("prompt_logprobs", lambda *_: True, {}, {"prompt_logprobs": 1}, refuses_streams="prompt_logprobs"),
    Feature("logit_bias", differs, {"logit_bias": {"300": 100}}),
    Feature("stop", differs, {"stop": ["a"]}),
    Feature("beam search", lambda each, _: len({*each["texts"]}) == 2, {"n": 2}, {"use_beam_search": True},
            refuses_streams="use_beam_search"),
    Feature("regex", matches("[xyz]{4}"), {}, {"structured_outputs": {"regex": "[xyz]{4}"}}),
]  # fmt: skip
BASE = {"temperature": 0, "max_tokens": 16}

# -- the fleet --


@dataclass
class Fleet:
    """A gateway in front of three engines, and what is said to it."""

    url: str
    litellm: "Worker"

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"

    def put_in(self, answer_id: str | None, tool_call_id: str | None) -> Any:
        """What is answered to a result for a call."""
        return self.plain(
            f"/chat/completions/{answer_id}/inject", model="dinghy", tool_call_id=tool_call_id, content="9"
        ).json()

    def plain(self, path: str, **body: Any) -> httpx.Response:
        """A request without a client."""
        return httpx.post(f"{self.v1}{path}", json=body, timeout=60)


class Worker:
    """litellm in a process of its own: it leaves an event loop behind, and is slow to import."""

    _PROGRAM = Path(__file__).with_name("litellm_worker.py")

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(self._PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        )  # fmt: skip

    def __call__(self, call: str, *, streamed: bool = False, **fields: Any) -> Any:
        """What litellm answers, as JSON; raises `openai.APIError`'s status and text as `Refused`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps({"call": call, "streamed": streamed, "fields": fields}), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        if "refused" in answer:
            raise Refused(answer["refused"])
        return answer["answer"]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Refused(Exception):
    """The gateway has refused what a client sent."""


@contextmanager
def serving(pools: list[Any]) -> Iterator[str]:
    """A gateway in a thread of its own; its URL."""
    started, end, told = threading.Event(), asyncio.Event(), list[Any]()

    async def serve() -> None:
        async with running_gateway(*pools, follow=True) as (gateway, _, url):
            told.extend((asyncio.get_running_loop(), url))
            try:
                async with asyncio.timeout(60):
                    while not all(pool.prompts.digests for pool in gateway.pools):
                        await asyncio.sleep(0.01)
            finally:
                started.set()
            await end.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    started.wait()
    loop, url = told
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()


def dinghy_that_thinks(folder: Path) -> Path:
    """The dinghy with a template that has its answers begin with reasoning where that is asked for. Its last two words
    stand for the tokens around it."""
    shutil.copytree(resolve_model("demo://dinghy"), folder)
    template, tokenizer = folder / "chat_template.jinja", folder / "tokenizer.json"
    begin = "{%- if enable_thinking %}{{- '<think>' }}{%- endif %}"
    template.write_text(template.read_text().rstrip().removesuffix("{%- endif %}") + begin + "{%- endif %}\n")
    files = json.loads(tokenizer.read_text())
    vocabulary, merges = files["model"]["vocab"], files["model"]["merges"]
    for marker in ("</think>", "<think>"):
        word = "".join(merges.pop())
        vocabulary[marker] = number = vocabulary.pop(word)
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
        files["added_tokens"].append({"id": number, "content": marker, **plain})
    tokenizer.write_text(json.dumps(files))
    return folder


@pytest.fixture(scope="module")
def fleet(start_engine_in: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    litellm, starter = Worker(), start_engine_in(folder)
    try:
        dinghy = dinghy_that_thinks(folder / "dinghy")
        adapters = [
            f"pirate={write_random_adapter(folder / 'pirate', dinghy)}",
            f"soft={write_random_soft_prompt(folder / 'soft', dinghy, num_virtual_tokens=40)}",
        ]
        engines = {"dinghy": starter("--model", str(dinghy), "--lora-modules", ",".join(adapters))}
        engines["vision"] = starter("--model", str(write_vision_model(folder / "vision")))
        encoder = write_encoder(folder / "encoder", "bert", classifies=True, num_labels=1)
        write_word_pieces(encoder)
        engines["encoder"] = starter("--model", str(encoder))
        pools = []
        for name, engine in engines.items():
            engine.wait_ready()
            at = urlsplit(engine.url)
            replica = Replica(uid=name, name=name, host=str(at.hostname), port=int(at.port or 0))
            pools.append(make_pool([replica], name=name))
        with serving(pools) as url:
            yield Fleet(url, litellm)
    finally:
        litellm.close()
        starter.kill()


# -- the clients, each as its manual has it --


def official(fleet: Fleet) -> openai.OpenAI:
    return openai.OpenAI(base_url=fleet.v1, api_key="none", max_retries=0)


def read_whole(body: dict[str, Any]) -> Answer:
    """Of an answer as OpenAI writes it."""
    choices = body["choices"]
    first = choices[0]
    logprobs = first.get("logprobs") or {}
    message = first.get("message", {})
    return {
        "texts": [(each.get("message") or {}).get("content") or each.get("text") or "" for each in choices],
        "ends": [each["finish_reason"] for each in choices],
        "reasoning": message.get("reasoning_content") or "",
        "num_logprobs": len(logprobs.get("content") or logprobs.get("tokens") or []),
    }


def read_stream(chunks: list[dict[str, Any]]) -> Answer:
    """Of the events of a stream."""
    texts, ends = dict[int, str](), dict[int, str]()
    reasoning, num_logprobs = "", 0
    for choice in (each for chunk in chunks for each in chunk["choices"]):
        delta, index = choice.get("delta") or {}, choice["index"]
        texts[index] = texts.get(index, "") + (delta.get("content") or choice.get("text") or "")
        reasoning += delta.get("reasoning_content") or ""
        logprobs = choice.get("logprobs") or {}
        num_logprobs += len(logprobs.get("content") or logprobs.get("tokens") or []) if index == 0 else 0
        if choice.get("finish_reason"):
            ends[index] = choice["finish_reason"]
    order = sorted(texts)
    return {
        "texts": [texts[index] for index in order], "ends": [ends.get(index) for index in order],
        "reasoning": reasoning, "num_logprobs": num_logprobs,
    }  # fmt: skip


def ask_openai(fleet: Fleet, feature: Feature, fields: dict[str, Any], prompt: Any, *, streamed: bool) -> Answer:
    with official(fleet) as client:
        chats = not isinstance(prompt, str)
        create: Any = client.chat.completions.create if chats else client.completions.create
        named = {"messages" if chats else "prompt": prompt, "model": feature.model, **fields}
        try:
            answer = create(**named, extra_body=feature.extra, stream=streamed)
        except openai.BadRequestError as error:
            raise Refused(str(error)) from error
        if streamed:
            return read_stream([chunk.model_dump() for chunk in answer])
        return read_whole(answer.model_dump())


def ask_langchain(fleet: Fleet, feature: Feature, fields: dict[str, Any], prompt: Any, *, streamed: bool) -> Answer:
    import langchain_openai
    from langchain_core.messages import convert_to_messages

    chats = not isinstance(prompt, str)
    kind: Any = langchain_openai.ChatOpenAI if chats else langchain_openai.OpenAI
    own = {"model": feature.model, "base_url": fleet.v1, "api_key": "none", "max_retries": 0}
    model = kind(**own, **({"extra_body": feature.extra} if feature.extra else {}))
    asked: Any = convert_to_messages(prompt) if chats else prompt
    try:
        if streamed:
            pieces = [*(model.stream(asked, **fields) if chats else model._stream(asked, **fields))]
            whole = pieces[0]
            for piece in pieces[1:]:
                whole += piece
            text = whole.content if chats else whole.text
            about = whole.response_metadata if chats else whole.generation_info
            generations = [(text, about)]
        else:
            result = model.generate([asked], **fields).generations[0]
            generations = [(each.text, each.generation_info) for each in result]
    except openai.BadRequestError as error:
        raise Refused(str(error)) from error
    logprobs = generations[0][1].get("logprobs") or {}
    return {
        "texts": [text for text, _ in generations], "ends": [about["finish_reason"] for _, about in generations],
        "num_logprobs": len(logprobs.get("content") or logprobs.get("tokens") or []),
    }  # fmt: skip


def ask_litellm(fleet: Fleet, feature: Feature, fields: dict[str, Any], prompt: Any, *, streamed: bool) -> Answer:
    chats = not isinstance(prompt, str)
    provider = "openai" if chats else "text-completion-openai"
    named = {"messages" if chats else "prompt": prompt, "model": f"{provider}/{feature.model}", **fields}
    extra = {"extra_body": feature.extra} if feature.extra else {}
    call = "completion" if chats else "text_completion"
    answer = fleet.litellm(call, streamed=streamed, **named, **extra, api_base=fleet.v1, api_key="none")
    return read_stream(answer) if streamed else read_whole(answer)


ASK: dict[str, Callable[..., Answer]] = {OPENAI: ask_openai, LANGCHAIN: ask_langchain, LITELLM: ask_litellm}


# -- the tests --


def try_feature(fleet: Fleet, feature: Feature, prompt: Any, client: str, way: str) -> None:
    """The client's answer is the one that a plain request gets, which is as the feature has it."""
    prompt = feature.prompt or prompt
    fields, is_text = {**BASE, **feature.fields}, isinstance(prompt, str)
    path, named = ("/completions", {"prompt": prompt}) if is_text else ("/chat/completions", {"messages": prompt})
    ask = ASK[client]
    if feature.unfit(client, way):
        return
    if way == STREAMED and feature.refuses_streams:
        with pytest.raises(Refused, match=feature.refuses_streams):
            ask(fleet, feature, fields, prompt, streamed=True)
        return
    reply = fleet.plain(path, model=feature.model, **named, **fields, **feature.extra)
    assert reply.status_code == 200, reply.text
    expected = read_whole(reply.json())
    if feature.model == "dinghy":
        plain = fleet.plain(path, model="dinghy", **named, **BASE)
    elif feature.prompt is None:
        plain = fleet.plain(path, model="dinghy", **named, **fields, **feature.extra)
    else:
        plain = fleet.plain(path, model=feature.model, messages=image(2), **BASE)
    assert feature.holds(expected, read_whole(plain.json())), expected
    answer = ask(fleet, feature, fields, prompt, streamed=way == STREAMED)
    assert feature.seen(answer, client, way) == {
        name: value for name, value in feature.seen(expected, client, way).items() if name in answer
    }


@pytest.mark.parametrize("way", [WHOLE, STREAMED])
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("feature", CHATS, ids=str)
def test_a_chat_has_every_feature(fleet: Fleet, feature: Feature, client: str, way: str) -> None:
    try_feature(fleet, feature, ASKED, client, way)


@pytest.mark.parametrize("way", [WHOLE, STREAMED])
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("feature", TEXTS, ids=str)
def test_a_text_completion_has_every_feature(fleet: Fleet, feature: Feature, client: str, way: str) -> None:
    try_feature(fleet, feature, "The Heron carries", client, way)


TOOL = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.mark.parametrize("client", [OPENAI, LITELLM])
def test_a_result_is_put_into_a_streamed_answer(fleet: Fleet, client: str) -> None:
    """None of the clients has a call for it: what they stream names answer and call, for a plain request. Not with
    langchain-openai, which puts an id of its own in place of the answer's."""
    asked: Any = [{"role": "user", "content": "Tell me the time in Paris."}]
    own: Any = {"tools": [TOOL], "max_tokens": 200, "temperature": 0}
    extra = {"injectable": True, "ignore_eos": True}
    put_in: Any = None
    if client == LITELLM:
        order = {"model": "openai/dinghy", "messages": asked, **own, "extra_body": extra}
        put_in = fleet.litellm("completion_with_result", **order, api_base=fleet.v1, api_key="none")
    else:
        with official(fleet) as official_client:
            create: Any = official_client.chat.completions.create
            for chunk in create(model="dinghy", messages=asked, **own, extra_body=extra, stream=True):
                calls = [call for choice in chunk.choices for call in choice.delta.tool_calls or []]
                put_in = put_in or (calls and fleet.put_in(chunk.id, calls[0].id))
    assert put_in["object"] == "chat.completion.injection" and put_in["num_tokens"] > 3


TEXT = "A fairlead guides the line."


@pytest.mark.parametrize("client", CLIENTS)
def test_embeddings_are_those_of_a_plain_request(fleet: Fleet, client: str) -> None:
    said = fleet.plain("/embeddings", model="dinghy", input=[TEXT, "ahoy"]).json()
    expected = [each["embedding"] for each in said["data"]]
    if client == OPENAI:
        with official(fleet) as official_client:
            data = official_client.embeddings.create(model="dinghy", input=[TEXT, "ahoy"]).data
        vectors = [each.embedding for each in data]
    elif client == LANGCHAIN:
        import langchain_openai

        embeddings = langchain_openai.OpenAIEmbeddings(
            model="dinghy", base_url=fleet.v1, api_key="none", check_embedding_ctx_length=False
        )  # type: ignore[call-arg,arg-type]
        vectors = embeddings.embed_documents([TEXT, "ahoy"])
    else:
        order = {"model": "openai/dinghy", "input": [TEXT, "ahoy"], "encoding_format": "float"}
        data = fleet.litellm("embedding", **order, api_base=fleet.v1, api_key="none")["data"]
        vectors = [each["embedding"] for each in data]
    assert len(vectors) == 2 and len(vectors[0]) > 32
    for vector, other in zip(vectors, expected, strict=True):
        assert vector == pytest.approx(other, abs=1e-5)


READINGS: dict[str, dict[str, Any]] = {
    "/rerank": {"query": "ship", "documents": ["the line", "a ship", "fair"]},
    "/score": {"text_1": "ship", "text_2": ["the line", "a ship"]},
    "/classify": {"input": ["the line", "a ship"]},
}


@pytest.mark.parametrize("path", READINGS)
def test_rankings_scores_and_classes_come_through_the_official_client(fleet: Fleet, path: str) -> None:
    """It has no call for them, but one for whatever an API has besides. langchain-openai has none, and litellm one for
    rankings."""
    body = {"model": "encoder", **READINGS[path]}
    said = fleet.plain(path, **body).json()
    with official(fleet) as client:
        answer: Any = client.post(path, body=body, cast_to=object)
    for volatile in ("id", "created"):
        said.pop(volatile, None)
        answer.pop(volatile, None)
    assert answer == said


def test_litellm_ranks(fleet: Fleet) -> None:
    body = READINGS["/rerank"]
    said = fleet.plain("/rerank", model="encoder", **body).json()
    answer = fleet.litellm("rerank", model="hosted_vllm/encoder", **body, api_base=fleet.v1, api_key="none")
    ranked = [(each["index"], each["relevance_score"]) for each in answer["results"]]
    assert ranked == [(each["index"], each["relevance_score"]) for each in said["results"]]
    assert len({score for _, score in ranked}) == 3


@pytest.mark.parametrize("client", CLIENTS)
def test_a_priority_reaches_whom_it_is_for(fleet: Fleet, client: str) -> None:
    """Nobody waits here, so only a wrong one can be seen to arrive."""
    wrong = Feature("wrong priority", differs, {}, {"priority": "high"})
    with pytest.raises(Refused, match="priority"):
        ASK[client](fleet, wrong, BASE, ASKED, streamed=False)
