"""Empty arguments are an object for clients, calls have the forms of the tools, and nothing else is touched."""

import json
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_common.openai.tool_forms import CallForms, input_of
from fairlead_engine.external.chat_calls import StreamedCalls, with_calls

PLAIN = CallForms(None, None)
HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "fake"}


def whole(reason: str, *arguments: Any) -> bytes:
    calls = [{"id": "x", "type": "function", "function": {"name": "f", "arguments": each}} for each in arguments]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": reason}]}).encode()


@pytest.mark.parametrize("empty", ["", None])
def test_empty_arguments_of_a_whole_answer_are_an_object(empty: str | None) -> None:
    told = with_calls(whole("tool_calls", empty, '{"a": 1}', " "), PLAIN)
    calls = json.loads(told)["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == ["{}", '{"a": 1}', " "]


@pytest.mark.parametrize(
    "body",
    [
        whole("tool_calls", '{"a": 1}'), whole("length", ""),
        b'{"choices": [{"message": {"content": "\\"tool_calls\\": [{"}}]}',
        b'{"tool_calls": [{', b'{"choices": [[], {"message": {"tool_calls": [{"function": []}]}}]}',
    ],
)  # fmt: skip
def test_other_answers_are_not_touched(body: bytes) -> None:
    assert with_calls(body, PLAIN) == body


def chunk(*choices: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(HEAD | {"choices": list(choices)}).encode() + b"\n\n"


def calling(index: int, arguments: Any, *, choice: int = 0, name: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"index": choice, "delta": {"tool_calls": [{"index": index, "function": function}]}, "finish_reason": None}


def ending(reason: str, choice: int = 0) -> dict[str, Any]:
    return {"index": choice, "delta": {}, "finish_reason": reason}


def joined(events: bytes) -> dict[tuple[int, int], str]:
    """The arguments of each call, by choice and call; asserts that none grows after its end."""
    arguments, over = defaultdict[tuple[int, int], str](str), set()
    for event in events.split(b"\n\n"):
        payload = event.removeprefix(b"data: ")
        for choice in json.loads(payload)["choices"] if payload.startswith(b"{") else ():
            for call in choice["delta"].get("tool_calls", ()):
                key = choice["index"], call["index"]
                assert key not in over
                over |= {other for other in arguments if other[0] == key[0] and other[1] != key[1]}
                arguments[key] += call["function"].get("arguments") or ""
            if choice["finish_reason"]:
                over |= {other for other in arguments if other[0] == choice["index"]}
    return dict(arguments)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, dict[tuple[int, int], str]]:
    """Chunks of two choices with up to three calls each, and the arguments that clients should find."""
    parts, expected = list[list[dict[str, Any]]](), dict[tuple[int, int], str]()
    for choice in range(draw(st.integers(1, 2))):
        told = list[dict[str, Any]]()
        for index in range(draw(st.integers(0, 3))):
            texts = draw(st.lists(st.sampled_from(["", None, "{", " ", '"a": 1}']), max_size=3))
            told += [calling(index, draw(st.sampled_from(["", None])), choice=choice, name="f")]
            told += [calling(index, text, choice=choice) for text in texts]
            expected[choice, index] = "".join(text or "" for text in texts) or "{}"
        last = ending("tool_calls", choice)
        if told and draw(st.booleans()):
            last["delta"] = told.pop()["delta"]
        parts.append([*told, last])
    events = b""
    while any(parts):
        of = draw(st.sampled_from([each for each in parts if each]))
        events += chunk(of.pop(0))
    return events + b": comment\n\ndata: [DONE]\n\n", expected


@given(stream=streams(), sizes=st.lists(st.integers(1, 4)))
def test_streamed_arguments_join_to_an_object_however_the_events_come(
    stream: tuple[bytes, dict[tuple[int, int], str]], sizes: list[int]
) -> None:
    events, expected = stream
    rest, arguments, told = [each + b"\n\n" for each in events.split(b"\n\n")[:-1]], StreamedCalls(PLAIN), b""
    for size in [*sizes, len(rest)]:
        told += arguments.feed(b"".join(rest[:size]))
        rest = rest[size:]
    assert joined(told) == expected
    if all(text != "{}" for text in expected.values()):
        assert told == events


def test_several_calls_in_one_event_are_completed_there_and_a_cut_answer_is_not() -> None:
    both = calling(0, "", name="f")
    both["delta"]["tool_calls"] += calling(1, None, name="g")["delta"]["tool_calls"]
    told = StreamedCalls(PLAIN).feed(chunk(both) + chunk(ending("tool_calls")))
    assert joined(told) == {(0, 0): "{}", (0, 1): "{}"} and told.count(b"data:") == 3
    cut = chunk(calling(0, "", name="f")) + chunk(ending("length"))
    assert StreamedCalls(PLAIN).feed(cut) == cut


@pytest.mark.parametrize("hostile", [
    '{"choices": [{"index": [], "delta": {"tool_calls": [{"index": {}, "function": 3}]}}]}',
    '{"choices": {"tool_calls": [{', '[{"tool_calls": [{"index": 0}]}]'])  # fmt: skip
def test_events_of_another_shape_pass(hostile: str) -> None:
    event = b"data: " + hostile.encode() + b"\n\n"
    assert StreamedCalls(PLAIN).feed(event) == event


@given(text=st.text(st.characters(exclude_categories=["Cs"])), cuts=st.lists(st.integers(1, 9)), is_held=st.booleans())
def test_streamed_calls_of_custom_tools_are_the_text_of_their_arguments(
    text: str, cuts: list[int], is_held: bool
) -> None:
    """Models that are not held to the form may write anything for arguments."""
    arguments = json.dumps({"input" if is_held else "command": text})
    forms = CallForms([{"type": "custom", "custom": {"name": "f"}}], None)
    stream, told = StreamedCalls(forms), b""
    pieces, rest = [""], arguments
    for size in [*cuts, len(arguments)]:
        pieces, rest = [*pieces, rest[:size]], rest[size:]
    for place, piece in enumerate(pieces):
        told += stream.feed(chunk(calling(0, piece, name=None if place else "f")))
    told += stream.feed(chunk(ending("tool_calls")))
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in told.splitlines() if line]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert calls[0]["type"] == "custom" and calls[0]["custom"]["name"] == "f"
    assert "".join(call["custom"]["input"] for call in calls) == (text if is_held else arguments)
    assert input_of(arguments) == (text if is_held else arguments)
