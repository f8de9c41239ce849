"""Tools for chat templates without a place for tools: an instruction in a message, and calls and results as text.
Instructions for templates that have a place for one message of the system.

Calls are written as Hermes writes calls, JSON between `<tool_call>` and `</tool_call>`: models learn of the format from
the instruction, and see earlier calls in the same form. Gateway and engine render the same text.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_CALL, _RESULT = "tool_call", "tool_response"
_RESULT_ROLES = ("tool", "function")
_SYSTEM_ROLES = ("system", "developer")
_BEFORE = "You can call functions where a call helps with the request. These are the functions, a JSON object each:"
_AFTER = f"""To call a function, end your answer with a JSON object of its name and its arguments, between tags as here:
<{_CALL}>
{{"name": "the function's name", "arguments": {{"parameter": "value"}}}}
</{_CALL}>
For several calls write as many of these, one below the other. The arguments must fit the function's parameters. The \
results come in the next message, between <{_RESULT}> and </{_RESULT}>, in the order of the calls. Without need for a \
call, answer as usual."""


def instruction(tools: Sequence[Mapping[str, Any]]) -> str:
    """The text that describes the functions and how a call is written."""
    described = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return f"{_BEFORE}\n<tools>\n{described}\n</tools>\n\n{_AFTER}"


def as_instructed(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, in_system: bool
) -> list[Mapping[str, Any]]:
    """Messages with calls and results as text, and with the instruction, if there are tools. `messages`: with contents
    as templates get them and arguments as objects. `in_system`: whether the template shows a system message; otherwise
    the first message of the user begins with the instruction."""
    told: list[Mapping[str, Any]] = []
    ends_with_result = False
    for message in messages:
        is_result = message.get("role") in _RESULT_ROLES
        shown = _plain(message)
        joins = bool(told) and told[-1].get("role") == shown.get("role") == "user" and (is_result or ends_with_result)
        if joins:  # many templates refuse two messages of the user in a row
            told[-1] = {**told[-1], "content": _joined(told[-1].get("content"), shown.get("content"))}
        else:
            told.append(shown)
        ends_with_result = is_result
    return _with_instruction(told, instruction(tools), in_system) if tools else told


def with_instructions_first(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Joins the messages of the system and of the developer at the beginning. Later ones join the user's next message,
    else the user's message before, else become a message of the user."""
    told: list[Mapping[str, Any]] = []
    held: Any = None
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role in _SYSTEM_ROLES and all(each.get("role") in _SYSTEM_ROLES for each in told):
            told = [{**(told or [message])[0], "content": _joined(told[0].get("content") if told else None, content)}]
        elif role in _SYSTEM_ROLES:
            held = _joined(held, content)
        elif role == "user":
            told.append({**message, "content": _joined(held, content)} if held else message)
            held = None
        else:
            told, held = _with_held(told, held), None
            told.append(message)
    return _with_held(told, held)


def _with_held(messages: list[Mapping[str, Any]], held: Any) -> list[Mapping[str, Any]]:
    if not held:
        return messages
    if messages and messages[-1].get("role") == "user":
        return [*messages[:-1], {**messages[-1], "content": _joined(messages[-1].get("content"), held)}]
    return [*messages, {"role": "user", "content": held}]


def has_calls(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether messages have calls or results."""
    return any(message.get("role") in _RESULT_ROLES or message.get("tool_calls") for message in messages)


def _with_instruction(messages: Sequence[Mapping[str, Any]], text: str, in_system: bool) -> list[Mapping[str, Any]]:
    if in_system:
        if messages and messages[0].get("role") in _SYSTEM_ROLES:
            first = messages[0]
            return [{**first, "content": _joined(first.get("content"), text)}, *messages[1:]]
        return [{"role": "system", "content": text}, *messages]
    place = next((index for index, message in enumerate(messages) if message.get("role") == "user"), None)
    if place is None:
        return [{"role": "user", "content": text}, *messages]
    asked = messages[place]
    return [*messages[:place], {**asked, "content": _joined(text, asked.get("content"))}, *messages[place + 1 :]]


def _plain(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message with its calls, or the result that it is, as text."""
    content = message.get("content")
    if message.get("role") in _RESULT_ROLES:
        return {"role": "user", "content": _joined(_joined(f"<{_RESULT}>", content, "\n"), f"</{_RESULT}>", "\n")}
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return message
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**kept, "content": _joined(content, "\n".join(map(_call_text, calls)), "\n")}


def _call_text(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    function = function if isinstance(function, Mapping) else {}
    written = {"name": function.get("name"), "arguments": function.get("arguments") or {}}
    return f"<{_CALL}>\n{json.dumps(written, ensure_ascii=False)}\n</{_CALL}>"


def _joined(first: Any, second: Any, between: str = "\n\n") -> Any:
    """Two contents as one: texts, or lists of parts where one has images."""
    if not first or not second:
        return first or second or ""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{between}{second}"
    return [*_parts(first), {"type": "text", "text": between}, *_parts(second)]


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
