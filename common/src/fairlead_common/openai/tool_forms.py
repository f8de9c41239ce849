"""Other forms of tools in OpenAI's chats → functions and calls of functions, the only form that models know. Pure.

`functions` and `function_call` are the form before `tools`; a custom tool takes a text instead of JSON, and becomes a
function with one text, `input`. `CustomInput` reads that text out of the arguments.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

INPUT_OF_CUSTOM = "input"
"""Name of the text that stands for the input of a custom tool."""

_BEGIN = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_WHOLE = re.compile(
    r'(?:[^"\\]|\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|[^u]))*'
)
"""Characters of a JSON string up to its end, or to an escape that is not whole."""


def is_custom(tool: Any) -> bool:
    """Whether a tool, a call or a choice is of a custom tool."""
    return isinstance(tool, Mapping) and tool.get("type") == "custom"


def nested(tool: Any) -> Any:
    """A tool, or the choice of one, in the form of chats; others as they are. Cursor sends chats with tools in the form
    of Responses, whose names stand beside the type."""
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if kind not in ("function", "custom") or kind in tool or not isinstance(tool.get("name"), str):
        return tool
    return {"type": kind, kind: {name: value for name, value in tool.items() if name != "type"}}


def as_functions(tools: Sequence[Any] | None, functions: Sequence[Any] | None) -> list[Any] | None:
    """Tools as functions; None = neither was sent. What is no tool stays as it is."""
    if tools is None and functions is None:
        return None
    older = [{"type": "function", "function": each} for each in functions or ()]
    return [as_function(tool) for tool in tools or ()] + older


def as_function(tool: Any) -> Any:
    """A custom tool as a function that is called as it should be; others in the form of chats. A grammar is told to the
    model, which is not held to it."""
    tool = nested(tool)
    custom = tool.get("custom") if is_custom(tool) else None
    if not isinstance(custom, Mapping):
        return tool
    return {"type": "function", "function": {"name": custom.get("name"), **function_of(custom), "strict": True}}


def function_of(custom: Mapping[str, Any]) -> dict[str, Any]:
    """Description and parameters of the function that stands for a custom tool."""
    described, form = custom.get("description"), custom.get("format")
    if isinstance(form, Mapping) and form.get("type") == "grammar":
        form = form.get("grammar", form)  # nested in chats
        grammar = f"Its {INPUT_OF_CUSTOM} keeps to this {form.get('syntax')} grammar:\n{form.get('definition')}"
        described = f"{described}\n\n{grammar}" if isinstance(described, str) and described else grammar
    parameters = {
        "type": "object",
        "properties": {INPUT_OF_CUSTOM: {"type": "string"}},
        "required": [INPUT_OF_CUSTOM],
        "additionalProperties": False,
    }
    return {"parameters": parameters} | ({} if described is None else {"description": described})


def with_function_calls(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """A history with calls of functions and results of tools alone. A `function_call` gets an id of nine characters,
    the form that some templates insist on."""
    found: list[Mapping[str, Any]] = []
    call_id = ""
    for place, message in enumerate(messages):
        role, legacy, calls = message.get("role"), message.get("function_call"), message.get("tool_calls")
        if role == "assistant" and legacy is not None and not calls:
            call_id = f"call{place:05}"
            rest = {name: value for name, value in message.items() if name != "function_call"}
            message = {**rest, "tool_calls": [{"id": call_id, "type": "function", "function": legacy}]}
        elif role == "function" and call_id:
            message = {**message, "role": "tool", "tool_call_id": call_id}
        elif isinstance(calls, list) and any(map(is_custom, calls)):
            message = {**message, "tool_calls": [_as_call(call) for call in calls]}
        found.append(message)
    return found


def _as_call(call: Any) -> Any:
    custom = call.get("custom") if is_custom(call) else None
    if not isinstance(custom, Mapping):
        return call
    arguments = json.dumps({INPUT_OF_CUSTOM: custom.get("input")}, ensure_ascii=False)
    rest = {name: value for name, value in call.items() if name != "custom"}
    return {**rest, "type": "function", "function": {"name": custom.get("name"), "arguments": arguments}}


def custom_names(tools: Sequence[Any] | None) -> Iterator[str]:
    """Names of the custom tools."""
    for tool in map(nested, tools or ()):
        if is_custom(tool) and isinstance(tool.get("custom"), Mapping):
            yield str(tool["custom"].get("name"))


def input_of(arguments: str) -> str:
    """The text that the arguments of a custom tool's call hold. Arguments of another form are the text: not every
    engine holds models to the form."""
    text = CustomInput()
    return text.push(arguments) + text.rest()


class CustomInput:
    """Arguments as they come → the text that they hold."""

    def __init__(self) -> None:
        self._held = ""
        self._has_begun = False

    def push(self, arguments: str) -> str:
        """More of the text, without a character that is not whole yet."""
        self._held += arguments
        if not self._has_begun:
            if (begin := _BEGIN.match(self._held)) is None:
                return ""
            self._has_begun, self._held = True, self._held[begin.end() :]
        whole = _WHOLE.match(self._held)
        assert whole is not None  # it matches nothing, too
        self._held = self._held[whole.end() :]
        return str(json.loads(f'"{whole[0]}"', strict=False))

    def rest(self) -> str:
        """At the end: arguments of another form."""
        return "" if self._has_begun or not self._held.strip(" {}") else self._held


class CallForms:
    """Calls of functions → calls in the forms in which a chat's tools were sent. Of one answer."""

    def __init__(self, tools: Sequence[Any] | None, functions: Sequence[Any] | None) -> None:
        self._custom = frozenset(custom_names(tools))
        self._are_older = functions is not None
        self._inputs: dict[tuple[int, int], CustomInput] = {}
        """Of calls of custom tools, by choice and call."""

    @property
    def are_plain(self) -> bool:
        """Whether calls of functions stay as they are."""
        return not self._custom and not self._are_older

    def whole(self, calls: Sequence[Any]) -> dict[str, Any]:
        """Whole calls as fields of a message."""
        return self._fields([self._whole(call) for call in calls])

    def added(self, index: int, calls: Sequence[Any]) -> dict[str, Any]:
        """Entries of calls as fields of a delta of the choice `index`."""
        return self._fields([self._added(index, call) for call in calls])

    def rest(self, index: int) -> list[dict[str, Any]]:
        """Entries of calls that end with the choice `index`."""
        rests = [(call, text.rest()) for (choice, call), text in self._inputs.items() if choice == index]
        return [{"index": call, "custom": {"input": text}} for call, text in rests if text]

    def reason(self, finish_reason: Any) -> Any:
        """The finish reason of a choice."""
        return "function_call" if self._are_older and finish_reason == "tool_calls" else finish_reason

    def _fields(self, calls: list[Any]) -> dict[str, Any]:
        if not self._are_older:
            return {"tool_calls": calls}
        first = [call for call in calls if call.get("index", 0) == 0]  # the form has one call
        return {"function_call": first[0].get("function")} if first else {}

    def _whole(self, call: Any) -> Any:
        name, arguments = _called(call)
        if name not in self._custom:
            return call
        return {"id": call.get("id"), "type": "custom", "custom": {"name": name, "input": input_of(arguments)}}

    def _added(self, index: int, call: Any) -> Any:
        (name, arguments), number = _called(call), call.get("index")
        place = index, number if isinstance(number, int) else 0
        if name in self._custom:
            self._inputs[place] = CustomInput()
        if place not in self._inputs:
            return call
        custom, text = {"index": place[1]}, self._inputs[place].push(arguments)
        if name is None:
            return {**custom, "custom": {"input": text}}
        return {**custom, "id": call.get("id"), "type": "custom", "custom": {"name": name, "input": text}}


def _called(call: Any) -> tuple[str | None, str]:
    """Name and arguments of a call of a function, or of an entry that adds to one; None = an earlier entry has it."""
    function = call.get("function")
    if not isinstance(function, Mapping):
        return None, ""
    name, arguments = function.get("name"), function.get("arguments")
    return name if isinstance(name, str) else None, arguments if isinstance(arguments, str) else ""
