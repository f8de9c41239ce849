"""Ollama's API: what its requests ask of chats and completions, and what becomes of the answers, whole and as lines."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import ollama
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_common.openai.prompts import PromptError
from fairlead_common.openai.translate import Translation, translation_of
from fairlead_common.openai.unknown_fields import UnknownFields

ASK: list[dict[str, Any]] = [{"role": "user", "content": "ahoy"}]
PNG = "iVBORw0KGgoAAAANSUhEUg=="
USAGE = {"prompt_tokens": 40, "completion_tokens": 7}
CHAT = "/v1/chat/completions"


def new(path: str) -> Translation:
    translation = translation_of(path)
    assert translation is not None
    return translation


def sent(path: str = "/api/chat", *, to: str = CHAT, **fields: Any) -> dict[str, Any]:
    """The request in the OpenAI form."""
    given = {"messages": ASK} if path == "/api/chat" else {}
    found, body = new(f"/a/b{path}").request(
        json.dumps({"model": "m", **given, **fields}).encode(), UnknownFields("refuse")
    )
    assert found == to
    return dict(json.loads(body))


def refused(path: str = "/api/chat", **fields: Any) -> str:
    """The field that is named."""
    with pytest.raises(PromptError) as caught:
        sent(path, **fields)
    assert caught.value.message.startswith(f"{caught.value.field}: ")
    return caught.value.field


def answered(message: dict[str, Any], path: str = "/api/chat", **choice: Any) -> dict[str, Any]:
    translation = new(path)
    translation.request(b'{"model": "m", "messages": [{"role": "user", "content": "a"}]}', UnknownFields("refuse"))
    body = {"model": "m", "choices": [{"message": message, **choice}], "usage": USAGE}
    status, told = translation.answer(200, json.dumps(body).encode(), "r")
    assert status == 200
    return dict(json.loads(told))


def streamed(payloads: Sequence[Any], cuts: Sequence[int] = ()) -> list[dict[str, Any]]:
    """Lines of a stream with these chunks, events handed over in groups."""
    translation = new("/api/chat")
    translation.request(b'{"model": "m", "messages": [{"role": "user", "content": "a"}]}', UnknownFields("refuse"))
    events = [f"data: {each if isinstance(each, str) else json.dumps(each)}\n\n".encode() for each in payloads]
    bounds = [0, *sorted(cuts), len(events)]
    told = b"".join(translation.events(b"".join(events[a:b])) for a, b in pairwise(bounds))
    assert told.endswith(b"\n")
    return [json.loads(line) for line in told.splitlines()]


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"delta": delta, "finish_reason": finish_reason}]}


# -- Requests ---------------------------------------------------------------------------------------------------------


def test_a_chat_streams_unless_it_says_otherwise() -> None:
    streams = {"stream": True, "stream_options": {"include_usage": True}}
    assert sent() == {"model": "m", "messages": ASK, "best_effort": True, **streams}
    assert sent(stream=False) == {"model": "m", "messages": ASK, "best_effort": True}


def test_the_tag_that_clients_add_is_no_part_of_a_name() -> None:
    """Ollama's names without a tag mean `latest`; here what stands behind a colon is an adapter."""
    assert sent(model="m:latest") == sent() and sent(model="m:pirate")["model"] == "m:pirate"
    assert sent("/api/embed", to="/v1/embeddings", model="m:latest", input="a")["model"] == "m"
    assert new("/api/show").request(b'{"name": "m:latest"}', UnknownFields("refuse"))[0] == "/v1/models/m"


def test_options_are_fields_of_a_chat() -> None:
    every = {
        "num_predict": 8.0, "temperature": 0.5, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 7, "stop": ["."],
        "repeat_penalty": 1.1, "presence_penalty": 1, "frequency_penalty": 0.5,
    }  # fmt: skip
    loading = {"num_ctx": 8192, "num_gpu": -1, "num_thread": 4, "repeat_last_n": 64, "mirostat": 1, "tfs_z": 0.9}
    found = sent(options={**every, **loading}, stream=False, keep_alive="5m")
    assert {name: value for name, value in found.items() if name not in ("model", "messages", "best_effort")} == {
        "max_tokens": 8, "temperature": 0.5, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 7, "stop": ["."],
        "repetition_penalty": 1.1, "presence_penalty": 1.0, "frequency_penalty": 0.5,
    }  # fmt: skip
    assert "max_tokens" not in sent(options={"num_predict": -1}) and "seed" not in sent(options={"seed": -1})
    assert set(ollama.Options.model_fields) >= loading.keys() - {"min_p"}
    assert "max_tokens" not in sent(options=dict.fromkeys(ollama.Options.model_fields))  # the client knows no others


@pytest.mark.parametrize(
    ("think", "expected"),
    [
        (None, {}),
        (True, {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}),
        (False, {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}),
        (
            "low",
            {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}, "reasoning_effort": "low"},
        ),
    ],
)
def test_thinking_is_told_to_the_template(think: Any, expected: dict[str, Any]) -> None:
    found = sent(think=think)
    assert {name: found[name] for name in ("chat_template_kwargs", "reasoning_effort") if name in found} == expected


def test_formats() -> None:
    assert sent(format="json")["response_format"] == {"type": "json_object"}
    [*_, kept_to] = sent(format={"type": "object"})["response_format"].values()
    assert kept_to == {"name": "answer", "schema": {"type": "object"}}, "not strict: kept to as far as it can be"
    assert "response_format" not in sent(format="")
    assert refused(format="xml") == "format"


def test_a_history_with_calls_images_and_thoughts() -> None:
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    other = {"id": "mine", "function": {"name": "g", "arguments": '{"b":2}'}}
    messages = [
        {"role": "user", "content": "see", "images": [PNG, "/9j/4AAQ"]},
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [call, other, call]},
        {"role": "tool", "content": "1", "tool_name": "g"},
        {"role": "tool", "content": "2"},
        {"role": "tool", "content": "3", "name": "f"},
        {"role": "tool", "content": "4", "tool_call_id": "any"},
    ]
    told = sent(messages=messages, tools=[{"type": "function", "function": {"name": "f"}}])["messages"]
    assert told[0]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9j/4AAQ"}},
    ]
    assert told[1]["reasoning_content"] == "hm" and told[1]["content"] is None
    assert [each["function"]["arguments"] for each in told[1]["tool_calls"]] == ['{"a":1}', '{"b":2}', '{"a":1}']
    ids = [each["id"] for each in told[1]["tool_calls"]]
    assert len(set(ids)) == 3 and ids[1] == "mine"
    assert [each["tool_call_id"] for each in told[2:]] == [ids[1], ids[0], ids[2], "any"]


@pytest.mark.parametrize("kind", [{"type": "Function"}, {}])
def test_tools_are_functions_whatever_type_they_say(kind: dict[str, str]) -> None:
    told = sent(messages=[{"role": "user", "content": "x"}], tools=[{**kind, "function": {"name": "f"}}])
    assert told["tools"] == [{"type": "function", "function": {"name": "f"}}]


def test_a_last_message_of_the_assistant_is_continued() -> None:
    found = sent(messages=[{"role": "Developer", "content": "a"}, *ASK, {"role": "assistant", "content": "I"}])
    assert found["messages"][0] == {"role": "developer", "content": "a"}
    assert found["continue_final_message"] is True and found["add_generation_prompt"] is False


def test_a_prompt_is_a_chat_or_raw() -> None:
    found = sent("/api/generate", prompt="a", system="b", images=[PNG], suffix="", context=[], template="")
    assert [each["role"] for each in found["messages"]] == ["system", "user"]
    assert found["messages"][1]["content"][1]["image_url"]["url"].endswith(PNG)
    raw = sent("/api/generate", to="/v1/completions", prompt="a", raw=True, options={"num_predict": 3}, stream=False)
    assert raw == {"model": "m", "prompt": "a", "max_tokens": 3}


@pytest.mark.parametrize(
    ("path", "fields", "reply"),
    [
        ("/api/generate", {}, {"response": "", "done_reason": "load"}),
        ("/api/generate", {"prompt": "", "keep_alive": 0}, {"response": "", "done_reason": "unload"}),
        ("/api/chat", {"messages": []}, {"message": {"role": "assistant", "content": ""}, "done_reason": "load"}),
        ("/api/embed", {"input": []}, {"embeddings": []}),
        ("/api/embeddings", {"prompt": ""}, {"embedding": []}),
    ],
)
def test_an_empty_request_loads(path: str, fields: dict[str, Any], reply: dict[str, Any]) -> None:
    translation = new(path)
    found, body = translation.request(json.dumps({"model": "m", **fields}).encode(), UnknownFields("refuse"))
    assert (found, json.loads(body)) == ("/tokenize", {"model": "m", "prompt": ""})
    status, told = translation.answer(200, b'{"count": 0}', "r")
    assert status == 200 and json.loads(told).items() >= reply.items()


def test_vectors() -> None:
    translation = new("/api/embed")
    found, body = translation.request(
        b'{"model": "m", "input": ["a", "b"], "dimensions": 3, "truncate": false}', UnknownFields("refuse")
    )
    assert (found, json.loads(body)) == ("/v1/embeddings", {"model": "m", "input": ["a", "b"], "dimensions": 3})
    data = [{"index": 1, "embedding": [2.0]}, {"index": 0, "embedding": [1.0]}]
    told = json.loads(translation.answer(200, json.dumps({"data": data, "usage": USAGE}).encode(), "r")[1])
    assert ollama.EmbedResponse(**told).embeddings == [[1.0], [2.0]] and told["prompt_eval_count"] == 40


def test_the_end_of_a_text_that_is_too_long_for_a_vector_is_left_out_unless_that_is_refused() -> None:
    for truncate in (b"true", b"null"):
        asked = b'{"model": "m", "input": "a", "truncate": ' + truncate + b"}"
        _, body = new("/api/embed").request(asked, UnknownFields("refuse"))
        assert json.loads(body).items() >= {"truncate_prompt_tokens": -1, "truncation_side": "right"}.items()
    _, body = new("/api/embeddings").request(b'{"model": "m", "prompt": "a"}', UnknownFields("refuse"))
    assert json.loads(body) == {"model": "m", "input": "a"}


@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        ("/api/chat", {"options": {"num_ctxx": 1}}, "options.num_ctxx"),
        ("/api/chat", {"options": {"typical_p": 0.5}}, "options.typical_p"),
        ("/api/chat", {"options": {"temperature": "hot"}}, "options.temperature"),
        ("/api/chat", {"messages": [{"role": "owner", "content": "a"}]}, "messages[0].role"),
        ("/api/chat", {"messages": [{"role": "user", "images": ["AAAA"]}]}, "messages[0].images[0]"),
        ("/api/generate", {"prompt": "a", "template": "{{ .Prompt }}"}, "template"),
        ("/api/generate", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("/api/generate", {"prompt": "a", "context": [1]}, "context"),
        ("/api/generate", {"prompt": "a", "raw": True, "system": "b"}, "system"),
        ("/api/generate", {"prompt": "a", "width": 4}, "width"),
        ("/api/show", {"model": ""}, "model"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(path: str, fields: dict[str, Any], field: str) -> None:
    assert refused(path, **fields) == field


# -- Answers ----------------------------------------------------------------------------------------------------------


def test_a_whole_answer() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a": 1}'}}
    cut = {"index": 1, "id": "d", "function": {"name": "f", "arguments": '{"a'}}
    content = [{"token": "hi", "logprob": -0.5, "bytes": [104, 105], "top_logprobs": []}]
    message = {"content": "hi", "reasoning_content": "hm", "tool_calls": [call, cut]}
    told = answered(message, finish_reason="length", logprobs={"content": content})
    assert told["message"] == {
        "role": "assistant", "content": "hi", "thinking": "hm",
        "tool_calls": [{"id": "c", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}}],
    }  # fmt: skip
    assert told["logprobs"] == content
    read = ollama.ChatResponse(**told)
    assert (read.done_reason, read.prompt_eval_count, read.eval_count) == ("length", 40, 7)
    assert (read.total_duration or 0) == (read.prompt_eval_duration or 0) + (read.eval_duration or 0) > 0


@given(st.lists(st.integers(0, 8), max_size=4))
def test_lines_do_not_depend_on_how_events_are_cut(cuts: list[int]) -> None:
    lines = streamed(
        [
            chunk(role="assistant", content=""),
            chunk(reasoning_content="hm"),
            chunk(content="hi"),
            chunk(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a"'}}]),
            chunk(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}]),
            chunk("tool_calls", tool_calls=[{"index": 1, "id": "d", "function": {"name": "g", "arguments": "{}"}}]),
            {"choices": [], "usage": USAGE},
            "[DONE]",
        ],
        cuts,
    )
    calls = [call for line in lines for call in line["message"].get("tool_calls", [])]
    assert [(call["id"], call["function"]["arguments"]) for call in calls] == [("c", {"a": 1}), ("d", {})]
    assert [line["message"].get("thinking") or line["message"]["content"] for line in lines[:2]] == ["hm", "hi"]
    assert [line["done"] for line in lines] == [False] * 4 + [True]
    last = ollama.ChatResponse(**lines[-1])
    assert (last.done_reason, last.eval_count, last.message.content) == ("stop", 7, "")
    assert 0 < (last.prompt_eval_duration or 0) < (last.total_duration or 0)


def test_an_error_ends_a_stream() -> None:
    lines = streamed([chunk(content="hi"), {"error": {"message": "it died", "type": "server_error"}}])
    assert lines[0]["message"]["content"] == "hi" and lines[1] == {"error": "it died"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "max_tokens must be 1 or more"}}, "num_predict must be 1 or more"),
        ({"error": {"message": "messages[1].content[2].image_url is none"}}, "messages[1].images[1] is none"),
        ({"error": "as at SGLang"}, "as at SGLang"),
        ({"detail": 1}, "What serves this model answered with HTTP 400."),
    ],
)
def test_refusals_have_one_text(body: Any, message: str) -> None:
    status, told = new("/api/chat").answer(400, json.dumps(body).encode(), "r")
    assert (status, json.loads(told)) == (400, {"error": message})
    assert json.loads(new("/api/chat").answer(502, b"<html>", "r")[1]) == {
        "error": "What serves this model answered with HTTP 502."
    }


@pytest.mark.parametrize(
    ("path", "fields"), [("/api/chat", {"messages": ASK}), ("/api/embed", {"input": "a"}), ("/api/tags", {})]
)
def test_what_is_no_such_answer_is_told(path: str, fields: dict[str, Any]) -> None:
    translation = new(path)
    translation.request(json.dumps(fields).encode(), UnknownFields("refuse"))
    status, told = translation.answer(200, b"[]", "r")
    assert status == 502 and json.loads(told).keys() == {"error"}


# -- Models -----------------------------------------------------------------------------------------------------------


def test_models_are_listed() -> None:
    one = {"id": "m", "created": 1700000000, "state": "asleep", "max_model_len": 512}
    listed = json.dumps({"object": "list", "data": [one, {"id": "m:a", "parent": "m"}]}).encode()

    def told(path: str, body: bytes = listed) -> Any:
        translation = new(path)
        assert translation.request(b'{"model": "m"}', UnknownFields("refuse"))[0].startswith("/v1/models")
        return json.loads(translation.answer(200, body, "r")[1])

    models = ollama.ListResponse(**told("/api/tags")).models
    assert [each.model for each in models] == ["m", "m:a"] and models[0].digest != models[1].digest
    assert models[1].details is not None and models[1].details.parent_model == "m"
    assert [each.model for each in ollama.ProcessResponse(**told("/api/ps")).models] == ["m:a"]
    shown = ollama.ShowResponse(
        **told("/api/show", json.dumps({**one, "capabilities": ["completion", "tools"]}).encode())
    )
    assert shown.capabilities == ["completion", "tools"] and shown.modelinfo is not None
    assert shown.modelinfo[f"{shown.modelinfo['general.architecture']}.context_length"] == 512
