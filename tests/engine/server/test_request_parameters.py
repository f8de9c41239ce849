"""Every parameter that is declared is one that does something, within the bounds that the reference says."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import tokenizers

from fairlead_common.tokens.embedding_prompts import EmbeddingPrompts
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_common.wire.messages import FIELD_TOKENS
from fairlead_engine.api.schemas import ENDPOINTS
from fairlead_engine.types import GENERATES, EngineRequest, ModelTask, SamplingParams, SequenceOutput, TokenLogprobs
from fairlead_engine.types.parameters import By, declared
from fairlead_engine_testing import ScriptedEngine
from fairlead_engine_testing.scripted_engine import echo, scripted_info

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "request-parameters.md"
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"} | {
    name: f"/v1/{name}" for name in ("embeddings", "rerank", "score", "classify")
}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "ahoy"}], "max_tokens": 2},
    "completions": {"prompt": "ahoy", "max_tokens": 2},
    "embeddings": {"input": "ahoy"},
    "rerank": {"query": "ahoy", "documents": ["ahoy", "line"]},
    "score": {"text_1": "ahoy", "text_2": "line"},
    "classify": {"input": "ahoy"},
    "tokenize": {"messages": [{"role": "user", "content": "ahoy"}]},
    "detokenize": {"tokens": [1, 2]},
}
BESIDE: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "tools": {"tool_choice": "none"},
    "functions": {"function_call": "none"},
    "length_penalty": {"use_beam_search": True, "max_tokens": 2},
}
"""Parameter → what it needs to be taken at all."""
SIDES = {
    "queries": {"queries": "ahoy", "documents": "line"},
    "documents": {"queries": "ahoy", "documents": "line"},
    "items": {"queries": "ahoy", "items": "line"},
    "data_1": {"data_1": "ahoy", "data_2": "line"},
    "data_2": {"data_1": "ahoy", "data_2": "line"},
}
"""The other names that a request for scores may have."""
EMBEDDER, CLASSIFIER = ModelTask(generates=False), ModelTask(generates=False, labels=("no", "yes"))
TASKS = {"rerank": EMBEDDER, "score": EMBEDDER, "classify": CLASSIFIER}
RANGE = re.compile(r"(above )?(-?\d+) … (-?\d+)?")
WORDS = re.compile(r'`"[\w-]+"`( or `"[\w-]+"`)+')
LENGTH = re.compile(r"at most (\d+) (characters|items|entries)$")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    of: tuple[str, ...]
    type: str
    accepted: str
    default: str
    by: str
    text: str


def rows() -> Iterator[Row]:
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            name, of, *rest = (cell.strip() for cell in line.strip("|").split("|"))
            yield Row(name.strip("`"), tuple(of.split(", ")), *rest)


TABLE = list(rows())


def engine_for(endpoint: str, script: Any = echo) -> ScriptedEngine:
    """One of a model that was made for such requests."""
    return ScriptedEngine(script, info=scripted_info(task=TASKS.get(endpoint, GENERATES)))


def test_every_field_of_every_request_is_declared_and_on_the_page() -> None:
    fields = {
        (endpoint, name)
        for endpoint, schema in ENDPOINTS.items()
        for name in schema.__struct_fields__
        if name != FIELD_TOKENS
    }
    assert {(name, each.name) for name, schema in ENDPOINTS.items() for each in declared(schema)} == fields
    assert {(endpoint, row.name) for row in TABLE for endpoint in row.of} == fields
    assert len(fields) == sum(len(row.of) for row in TABLE), "each once"


def test_what_is_sampled_by_and_not_declared_is_made_of_other_parameters() -> None:
    internal = set(SamplingParams.__struct_fields__) - {each.field for each in declared(SamplingParams)}
    assert internal == {"logprobs", "prompt_logprobs", "grammar", "thinking"}, (
        "a field without a Parameter is one that nobody can send"
    )


def tried(row: Row) -> Iterator[tuple[Any, bool]]:
    """Values at the bounds that the page says, and whether they are taken."""
    if found := RANGE.match(row.accepted):
        least, most = int(found[2]), found[3] and int(found[3])
        yield least, not found[1]
        yield least - 1, False
        if most:
            yield most, True
            yield most + 1, False
    elif found := LENGTH.match(row.accepted):
        one = {"string": "x", "list of integers": [1], "list of objects": [{"role": "user", "content": ""}]}
        for length, is_taken in ((int(found[1]), True), (int(found[1]) + 1, False)):
            value = {str(each): 1 for each in range(length)} if row.type == "object" else one[row.type] * length
            yield value, is_taken
    elif WORDS.fullmatch(row.accepted):
        yield "other", False
        for value in row.accepted.split(" or "):
            word = json.loads(value.strip("`"))
            yield word, word != "cls"  # which is for encoders
    elif row.by == "refused" and row.type in ("any", "string"):
        yield "other", False
        if row.accepted:
            yield json.loads(row.accepted.removeprefix("only ").strip("`")), True


BOUNDED = [(row, endpoint, value, is_taken) for row in TABLE for value, is_taken in tried(row) for endpoint in row.of]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("row", "endpoint", "value", "is_taken"),
    [case for case in BOUNDED if case[0].name != "model"],
    ids=lambda part: part.name if isinstance(part, Row) else str(part)[:20],
)
async def test_bounds_are_those_of_the_page(
    start_app: Any, row: Row, endpoint: str, value: Any, is_taken: bool
) -> None:
    body = {"model": "tiny"} | BODIES[endpoint] | (BESIDE.get(row.name, {}) if endpoint in PATHS else {})
    body |= {row.name: value}
    app = start_app(engine_for(endpoint, scored if "use_beam_search" in body else echo))
    reply = await app.http.post(PATHS.get(endpoint, f"/{endpoint}"), json=body)
    if is_taken:
        is_long = row.name in ("messages", "tools", "functions") or (row.name.startswith("max_") and value > 256)
        wanted = 400 if is_long else 200  # too long for this model's context, which is all
        assert reply.status_code == wanted, reply.text
        assert wanted == 200 or reply.json()["error"]["code"] == "context_length_exceeded"
        return
    error = reply.json()["error"]
    assert (reply.status_code, error["param"].split(".")[0]) == (400, row.name)
    if row.by == "refused":
        advice = row.text.rpartition(": ")[2].rstrip(".")
        assert advice[1:] in error["message"], "the page has the server's own advice"


def test_the_bounds_that_are_tried_are_not_few() -> None:
    assert len(BOUNDED) > 100
    untried = {row.name for row in TABLE if row.accepted and not any(case[0] is row for case in BOUNDED)}
    assert untried == {
        "tokens",
        "truncate_prompt_tokens",
        "stop",
        "logit_bias",
        "stream_options",
        "best_of",
        "thinking_token_budget",
        "injectable",
        *OF_BEAMS,
        *TEXTS,
        *STRUCTURED,
    }, "they have tests of their own"


@pytest.mark.parametrize("row", [row for row in TABLE if row.by == "nobody"], ids=lambda row: row.name)
async def test_what_changes_nothing_reaches_no_engine(start_app: Any, row: Row) -> None:
    value: Any = {"string": "x", "object": {"a": "b"}, "boolean": True, "any": "x"}[row.type]
    for endpoint in row.of:
        app = start_app(engine_for(endpoint))
        for more in ({}, {row.name: value}):
            reply = await app.http.post(PATHS[endpoint], json={"model": "tiny", **BODIES[endpoint], **more})
            assert reply.status_code == 200
        half = len(app.engine.requests) // 2
        without, with_it = ([each.sampling for each in part] for part in
                            (app.engine.requests[:half], app.engine.requests[half:]))  # fmt: skip
        assert without == with_it


# -- Nothing that is taken is without effect ---------------------------------------------------------------------------

SAID: list[dict[str, Any]] = [{"role": "user", "content": "ahoy"}, {"role": "assistant", "content": "<|user|>one two"}]
OF_BEAMS = ("early_stopping",)
TEXTS = ("bad_words", "dry_sequence_breakers")
STRUCTURED: dict[str, Any] = {
    "response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}, "guided_json": {},
    "guided_regex": "a", "guided_choice": ["a"], "guided_grammar": 'start: "a"',
}  # fmt: skip
OTHER: dict[str, Any] = {
    "model": "other", "messages": [{"role": "user", "content": "other"}], "prompt": "other", "tokens": [3],
    "query": "other", "documents": ["other"], "items": "other", "queries": "other", "top_n": 1, "dimensions": 1,
    "return_documents": False, "text_1": "other", "text_2": "other", "data_1": "other", "data_2": "other",
    "input": "other", "encoding_format": "base64", "pooling": "mean",
    "tools": [{"type": "function", "function": {"name": "tide"}}], "chat_template_kwargs": {"is_loud": True},
    "add_generation_prompt": False, "continue_final_message": True, "return_token_strs": True,
    "cache_salt": "x", "priority": 3, "max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 1, "stop": "x",
    "stop_token_ids": [5], "include_stop_str_in_output": True, "ignore_eos": True, "n": 2, "temperature": 0.5,
    "top_p": 0.5, "top_k": 5, "min_p": 0.5, "presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 2,
    "logit_bias": {"5": 1}, "allowed_token_ids": [5], "bad_words": ["fox"], "dry_multiplier": 1, "dry_base": 2,
    "dry_allowed_length": 3, "dry_penalty_last_n": 9, "dry_sequence_breakers": ["x"], "top_n_sigma": 1,
    "xtc_probability": 1, "xtc_threshold": 0.2, "seed": 5, "stream": True, "stream_options": {"include_usage": True},
    "echo": True, "best_of": 2, "prompt_logprobs": 1, "thinking_token_budget": 5, "reasoning_effort": "low",
    "logprobs": 1, "top_logprobs": 1, "return_token_ids": True, "return_tokens_as_token_ids": True,
    "skip_special_tokens": False, "tool_choice": "required", "parallel_tool_calls": False,
    "prompt_cache_retention": "24h", "prompt_cache_options": {"ttl": "30m"},
    "truncate_prompt_tokens": 1, "truncation_side": "right", "prompt_name": "query",
    "use_beam_search": True, "injectable": True, "functions": [{"name": "tide"}], "function_call": {"name": "tide"},
    **STRUCTURED,
}  # fmt: skip
"""Of each parameter a value that is not its default."""
NEEDED: dict[str, dict[str, Any]] = {
    "tools": {"tool_choice": "none"},
    "functions": {"function_call": "none"},
    "function_call": {"functions": [{"name": "tide"}]},
    "tool_choice": {"tools": [{"type": "function", "function": {"name": "tide"}}]},
    "parallel_tool_calls": {"tools": [{"function": {"name": "tide"}}], "tool_choice": "required"},
    "top_logprobs": {"logprobs": True},
    "return_tokens_as_token_ids": {"logprobs": 1},
    "stream_options": {"stream": True},
    "truncation_side": {"truncate_prompt_tokens": 2},
    "injectable": {"stream": True, "tools": [{"type": "function", "function": {"name": "tide"}}]},
}
"""What must be there for it to have an effect, with and without it."""


@pytest.fixture(scope="module")
def particular(tokenizer: PromptTokenizer) -> PromptTokenizer:
    """A tokenizer with a special token that it adds, and a chat template with a variable."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.tokenizer_json)
    end = ("<|end|>", backend.token_to_id("<|end|>"))
    backend.post_processor = tokenizers.processors.TemplateProcessing(single="<|end|> $A", special_tokens=[end])
    assert tokenizer.chat_template is not None
    backend.add_tokens(
        [tokenizers.AddedToken(text, special=False) for text in ("<think>", "</think>", "<tool_call>", "</tool_call>")]
    )
    template = "{# <think> #}{% if is_loud %}LOUD{% endif %}{{ reasoning_effort }}" + tokenizer.chat_template.source
    return PromptTokenizer(
        backend.to_str(),
        chat_template=template,
        special_tokens={"eos_token": "<|end|>"},
        embedding_prompts=EmbeddingPrompts({"query": "query: "}),
    )


def scored(request: EngineRequest) -> Iterable[SequenceOutput]:
    """`echo` with log-probabilities where they are asked for."""
    for output in echo(request):
        if request.sampling.logprobs is not None:
            top = [(token_id, -0.5) for token_id in range(request.sampling.logprobs)]
            output.logprobs = [TokenLogprobs(token_id, -0.5, top) for token_id in output.new_token_ids]
        yield output


ACTING = [
    (endpoint, each.name)
    for endpoint, schema in ENDPOINTS.items()
    for each in declared(schema)
    if each.parameter.by in (By.GATEWAY, By.ENGINE)
    and each.name not in (*OF_BEAMS, "length_penalty", "best_effort", "user", "prompt_cache_key")
]
"""Without those that tell answers of beam searches apart, which `test_beam_search.py` has on a real model, that which
only shows in what is not refused, in `test_messages.py`, and those that are for gateways, in `test_sessions.py`."""


@pytest.mark.matrix
@pytest.mark.parametrize(("endpoint", "name"), ACTING)
async def test_every_parameter_reaches_the_engine_or_shows_in_the_answer(
    start_app: Any, particular: PromptTokenizer, endpoint: str, name: str
) -> None:
    beside = NEEDED.get(name, {}) if endpoint in PATHS else {}
    if name in ("logprobs", "return_tokens_as_token_ids") and endpoint == "chat":
        beside = dict.fromkeys(beside, True)
    value = {
        "add_special_tokens": endpoint == "chat" or endpoint == "tokenize",
        "logprobs": 1 if endpoint == "completions" else True,
    }
    given = SIDES.get(name, BODIES[endpoint]) if endpoint == "score" else BODIES[endpoint]
    body = {"model": "tiny", **given, **beside}
    if endpoint == "chat":
        body["messages"] = SAID
    elif endpoint == "completions":
        body["prompt"] = "<|user|>ahoy"
    elif name == "prompt":
        body = {"model": "tiny"}
    elif name == "continue_final_message":
        body["messages"] = SAID
    seen = []
    for more in ({}, {name: value.get(name, OTHER.get(name))}):
        app = start_app(engine_for(endpoint, scored), tokenizer=particular, tool_call_parser="hermes")
        reply = await app.http.post(PATHS.get(endpoint, f"/{endpoint}"), json=body | more)
        assert reply.status_code == 200 or (name, reply.status_code) in (("model", 404), ("prompt", 400)), reply.text
        requests = [
            msgspec.structs.replace(request, request_id="", arrival_time=0.0, part_of=None)
            for request in app.engine.requests
        ]
        seen.append((requests, re.sub(r'"(id|created)":("[^"]*"|\d+)', "", reply.text)))
    assert seen[0] != seen[1]


def test_every_declared_sampling_parameter_changes_what_a_real_model_answers(
    served: Any, tokenizer: PromptTokenizer
) -> None:
    fox, dog = (tokenizer.encode(text)[0] for text in (" fox", " dog"))
    text = tokenizer.decode([fox])
    foxes = {"temperature": 0, "logit_bias": {str(fox): 100, str(dog): 99}}
    ends = {"temperature": 0, "logit_bias": {str(tokenizer.token_id("<|end|>")): 100}}
    drawn = {"temperature": 1, "seed": 1}
    dry = {**foxes, "dry_multiplier": 100}
    excluding = {**drawn, "xtc_probability": 1, "logit_bias": foxes["logit_bias"], "xtc_threshold": 0.6}
    cases: dict[str, tuple[dict[str, Any], Any]] = {
        "temperature": (drawn, 0), "top_p": (drawn, 0.001), "top_k": (drawn, 1), "min_p": (drawn, 1),
        "seed": (drawn, 2),
        "presence_penalty": (foxes, 2), "frequency_penalty": (foxes, 2), "repetition_penalty": (foxes, 2),
        "logit_bias": ({"temperature": 0}, {str(fox): 100}), "max_tokens": (foxes, 2), "min_tokens": (ends, 3),
        "ignore_eos": (ends, True), "stop": (foxes, text * 2), "stop_token_ids": (foxes, [fox]),
        "include_stop_str_in_output": (foxes | {"stop": text}, True),
        "allowed_token_ids": (foxes, [dog]), "bad_words": (foxes, [text * 2]), "dry_multiplier": (foxes, 100),
        "dry_base": (foxes | {"dry_multiplier": 0.1}, 10), "dry_allowed_length": (dry, 4),
        "dry_penalty_last_n": (dry, 2), "dry_sequence_breakers": (dry, [text]), "top_n_sigma": (drawn, 0.1),
        "xtc_probability": (drawn | {"logit_bias": foxes["logit_bias"]}, 1),
        "xtc_threshold": (excluding, 0.1),
    }  # fmt: skip
    assert set(cases) == {each.name for each in declared(SamplingParams)}
    for name, (base, value) in cases.items():
        answers = []
        for fields in (base, base | {name: value}):
            body = {"model": "tiny", "prompt": "The quick brown", "max_tokens": 6, **fields}
            reply = httpx.post(f"{served.url}/v1/completions", json=body)
            assert reply.status_code == 200, reply.text
            answers.append((reply.json()["choices"][0], reply.json()["usage"]["completion_tokens"]))
        assert answers[0] != answers[1], name
