"""Chat templates in the shapes of common families, rendered here and by transformers: the same bytes and refusals.

The templates are of our own making: compact, with the constructs that those of the families are made of.
"""

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest

from fairlead_common.openai.chat import ChatTemplate, ChatTemplateError

TEMPLATES = {path.stem: path.read_text(encoding="utf-8") for path in Path(__file__).with_name("templates").iterdir()}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'How it is outside: <wind> & "rain"',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Tromsø, 東京"},
                "days": {"type": "array", "items": {"type": "integer"}},
                "unit": {"type": "string", "enum": ["°C", "°F"]},
                "either": {"type": ["string", "number"]},
            },
            "required": ["city"],
        },
    },
}
BARE = {"type": "function", "function": {"name": "now", "description": "", "parameters": {"properties": {}}}}
SYSTEM = {"role": "system", "content": " Be brief.\n"}
USER = {"role": "user", "content": "  Weather in Tromsø <&> 'today'?  "}
AYE = {"role": "assistant", "content": ' Aye, it\'s "fair".\n'}


def call(place: str, number: int = 0) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": {"city": place, "days": [1, 2], "deep": {"x": None, "y": 1.5}}}
    return {"id": f"call{number:05}", "type": "function", "function": function}


CALLED = {"role": "assistant", "content": None, "tool_calls": [call("Tromsø")]}
CALLED_TWICE = {"role": "assistant", "content": "Both.", "tool_calls": [call("東京"), call("Oslo", 1)]}
RESULT = {"role": "tool", "content": '{"wind": "5 m/s"}', "tool_call_id": "call00000", "name": "get_weather"}
THOUGHT = {"role": "assistant", "content": "Fair.", "reasoning_content": "\nThe wind is low.\n"}
WRITTEN = {"role": "assistant", "content": "<think>\nLow wind.\n</think>\n\nFair."}
CHATS: dict[str, list[dict[str, Any]]] = {
    "plain": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, AYE, USER],
    "answered": [USER, AYE],
    "called": [SYSTEM, USER, CALLED, RESULT],
    "called twice": [USER, CALLED_TWICE, RESULT, {**RESULT, "content": "rain", "tool_call_id": "call00001"}, AYE, USER],
    "thought": [USER, THOUGHT, USER, CALLED, RESULT, THOUGHT],
    "thinking": [USER, {**THOUGHT, "thinking": "Hm.", "tool_calls": [call("Oslo")]}, RESULT],
    "written": [USER, WRITTEN, USER, WRITTEN],
    "only system": [SYSTEM],
    "out of turn": [USER, USER],
    "answer first": [AYE, USER],
    "result first": [RESULT, USER],
    "short id": [USER, {**CALLED, "tool_calls": [{**call("Oslo"), "id": "1"}]}, RESULT],
    "channels": [USER, {"role": "assistant", "content": "<|channel|>final<|message|>x"}],
    "skip": [USER, {"role": "user", "content": "skip"}, AYE],
    "leave": [USER, {"role": "user", "content": "leave"}, AYE],
    "hide": [{"role": "user", "content": "hide"}],
    "escape": [{"role": "user", "content": "escape"}],
    "change": [{"role": "user", "content": "change"}],
}
VARIABLES: dict[str, dict[str, Any]] = {
    "none": {},
    "switches": {"enable_thinking": False, "reasoning_effort": "high", "date_string": "1 Jan 2030",
                 "tools_in_user_message": False, "builtin_tools": ["code_interpreter", "search"]},
    "other tokens": {"bos_token": "<begin>"},
}  # fmt: skip
ENDS: dict[str, dict[str, Any]] = {
    "prompt": {"add_generation_prompt": True},
    "whole": {"add_generation_prompt": False},
    "continued": {"add_generation_prompt": False, "continue_final_message": True},
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_families_are_rendered_and_refused_as_by_transformers(name: str, as_transformers: Any) -> None:
    ours, num_rendered, num_refused = ChatTemplate(TEMPLATES[name], SPECIAL), 0, 0
    for chat, messages in CHATS.items():
        for tools in (None, [WEATHER], [WEATHER, BARE]):
            for variables in VARIABLES.values():
                for end in ENDS.values():
                    given = {"chat_template": TEMPLATES[name], **SPECIAL, **end, **variables}
                    expected = _rendered(as_transformers, messages, tools=tools, **given)
                    if isinstance(expected, Exception) and type(expected) is not jinja2.TemplateError:
                        filled = [{"content": "", **message} for message in _without_nulls(messages)]
                        expected = _rendered(as_transformers, filled, tools=tools or [], **given)
                    written = [_written(message) for message in messages]
                    try:
                        rendered: str | Exception = ours.render(written, tools=tools, **end, **variables)
                    except ChatTemplateError as error:
                        rendered = error
                    if isinstance(expected, Exception):
                        num_refused += 1
                        assert isinstance(rendered, ChatTemplateError), (chat, end, expected, rendered)
                        if type(expected) is jinja2.TemplateError:  # in the template's own words
                            assert str(expected) in str(rendered), (chat, end)
                    else:
                        num_rendered += 1
                        assert rendered == expected, (chat, tools is not None, variables, end)
    assert num_rendered > 200
    assert num_refused or name in ("hermes", "phi4", "olmo2", "qwen25", "qwen3")


BE_KIND = {"role": "developer", "content": "Be kind."}
LATER = {"role": "system", "content": "Be quick."}
PLACES: dict[str, list[dict[str, Any]]] = {
    "two": [SYSTEM, LATER, USER],
    "developer": [BE_KIND, USER],
    "both": [SYSTEM, BE_KIND, USER],
    "later": [SYSTEM, USER, AYE, LATER, USER],
    "behind the user": [USER, LATER, AYE, USER],
    "behind a result": [SYSTEM, USER, CALLED, RESULT, LATER],
    "last": [SYSTEM, USER, AYE, LATER],
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_instructions_are_shown_wherever_agents_put_them(name: str, as_transformers: Any) -> None:
    """As transformers renders them, where the template shows them; Claude Code and Codex send them in between, which
    many templates refuse or leave out."""
    ours = ChatTemplate(TEMPLATES[name], SPECIAL)
    if not ours.shows_system:
        pytest.skip("shows no instructions at all")
    for chat, messages in PLACES.items():
        texts = [message["content"].strip() for message in messages if message["role"] in ("system", "developer")]
        given = {"chat_template": TEMPLATES[name], **SPECIAL, "add_generation_prompt": True}
        expected = _rendered(as_transformers, messages, tools=None, **given)
        try:
            rendered = ours.render([_written(message) for message in messages])
        except ChatTemplateError:
            assert chat == "behind a result" and isinstance(expected, Exception)  # the template takes no results, or
            continue  # nobody but the assistant behind results
        assert all(rendered.count(text) == 1 for text in texts), (chat, rendered)
        if isinstance(expected, str) and all(text in expected for text in texts):
            assert rendered == expected, chat


def _rendered(as_transformers: Any, messages: Any, **given: Any) -> str | Exception:
    try:
        return str(as_transformers(messages, **given))
    except (jinja2.TemplateError, ValueError, TypeError) as error:
        return error


def _without_nulls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in message.items() if value is not None} for message in messages]


def _written(message: dict[str, Any]) -> dict[str, Any]:
    """As clients send it: the arguments of calls are JSON in a string."""
    if "tool_calls" not in message:
        return message
    calls = [
        {**each, "function": {**each["function"], "arguments": json.dumps(each["function"]["arguments"])}}
        for each in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}
