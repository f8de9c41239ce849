"""The tools of a chat: allowed calls, required calls, and the grammar that enforces both.

Knows the request's fields; the models' formats of calls are `answers/answer_formats.py`'s.
"""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead_common.openai.tool_forms import as_function, as_functions, is_custom
from fairlead_engine.api.answers.answer_formats import AnswerFormats
from fairlead_engine.api.answers.constraint import Lark, NamedId
from fairlead_engine.api.json_schema.normal_form import without_annotations
from fairlead_engine.api.schemas import ChatRequest
from fairlead_engine.api.structured_output import NOT_STRICT, Wish, grammar, kept_schema, problem_of, relaxed_schema
from fairlead_engine.errors import RequestError
from fairlead_engine.types import Grammar

if TYPE_CHECKING:
    from fairlead_engine.api.token_text import Vocabulary

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_MODES = ("none", "auto", "required")
_UNKNOWN = (
    "tools is not supported by this model as it is served: how it writes calls is not known, so they could not be told "
    'from its text. Serve it with tool-call-parser set, or send tool_choice = {}"none": then tools are described to '
    "the model, and its answer is text"
)


class ToolUse(NamedTuple):
    """The calls allowed in a chat's answer."""

    functions: tuple[str, ...]
    """As JSON, each with its place among the tools."""
    names: tuple[str, ...]
    is_forced: bool
    """Whether a call is required."""
    are_many: bool
    """Whether several calls are allowed."""
    is_narrowed: bool = False
    """Whether the prompt has tools besides these."""

    @property
    def parameters(self) -> dict[str, dict[str, Any]]:
        """Schemas of all functions; empty for functions that may not be called."""
        may_be_called = map(_Tool.read, self.functions)
        return {name: {} for name in self.names} | {tool.name: tool.parameters for tool in may_be_called}

    @property
    def bare(self) -> "ToolUse":
        """The tools without schemas' annotations."""
        tools = (_Tool.read(text) for text in self.functions)
        kept = (tool._replace(parameters=without_annotations(tool.parameters)) for tool in tools)
        return self._replace(functions=tuple(json.dumps(tool) for tool in kept))

    @property
    def widest(self) -> "ToolUse":
        """The tools, with any object for arguments of tools without `strict`."""
        tools = (_Tool.read(text) for text in self.functions)
        kept = (tool if tool.is_strict else tool._replace(parameters=_ANY_OBJECT) for tool in tools)
        return self._replace(functions=tuple(json.dumps(tool) for tool in kept))

    @property
    def is_kept_to(self) -> bool:
        """Whether a grammar enforces the calls."""
        return self.is_forced or self.is_narrowed or any(_Tool.read(text).is_strict for text in self.functions)


class _Tool(NamedTuple):
    place: int
    name: str
    parameters: dict[str, Any]
    is_strict: bool

    @classmethod
    def read(cls, text: str) -> "_Tool":
        return cls(*json.loads(text))

    def enforced(self) -> dict[str, Any]:
        """The parameters' schema for a grammar. Raises RequestError for a strict schema that no grammar can enforce."""
        if self.is_strict:
            return kept_schema(f"tools[{self.place}].function.parameters", self.parameters, NOT_STRICT)
        return relaxed_schema(self.parameters, _ANY_OBJECT)


def tool_use(fields: ChatRequest, formats: AnswerFormats) -> ToolUse | None:
    """The allowed calls; None = none. Raises `RequestError`, naming the place."""
    choice, tools = _choice(fields), as_functions(fields.tools, fields.functions) or []
    if not tools and choice not in (None, *_MODES[:2]):
        raise RequestError("tool_choice", "tool_choice needs tools to choose from")
    if choice == "none":
        return None
    allowed: frozenset[str] | None = None
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        choice, allowed = _allowed(choice)
    found = [_tool(place, tool, where) for place, (tool, where) in enumerate(zip(tools, _places(fields), strict=True))]
    names = [tool.name for tool in found]
    if len(set(names)) < len(names):
        place = next(place for place, name in enumerate(names) if name in names[:place])
        raise RequestError(f"{_places(fields)[place]}.name", f"there are two tools named {names[place]!r}")
    named = _named(choice, names)
    if unknown := sorted((allowed or frozenset()).difference(names)):
        raise RequestError("tool_choice", f"tool_choice allows {unknown[0]!r}, which is none of the tools")
    if not tools:
        return None
    is_forced = named is not None or choice == "required"
    if formats.tools is None or (formats.tools.is_forced and not is_forced):
        instead = "" if formats.tools is None else '"required" or a function, which a grammar holds, or '
        field = "tools" if fields.functions is None else "functions"
        raise RequestError(field, _UNKNOWN.format(instead), "unsupported_value")
    return ToolUse(
        tuple(
            json.dumps(tool)
            for tool in found
            if named in (None, tool.name) and (allowed is None or tool.name in allowed)
        ),
        tuple(names),
        is_forced=is_forced,
        are_many=named is None and fields.parallel_tool_calls is not False and fields.functions is None,
        is_narrowed=allowed is not None and len(allowed) < len(found),
    )


def _choice(fields: ChatRequest) -> Any:
    """`tool_choice`, also where the older form was sent. Raises `RequestError` for both forms."""
    if fields.functions is None and fields.function_call in (None, "none"):
        return as_function(fields.tool_choice)
    if fields.tools is not None or fields.tool_choice is not None:
        problem = "functions and function_call are the older form of tools and tool_choice; send one of the two forms"
        raise RequestError("functions", problem)
    choice = fields.function_call
    if isinstance(choice, dict):
        return {"type": "function", "function": choice}
    if choice not in (None, *_MODES[:2]):
        raise RequestError("function_call", 'function_call must be "none", "auto" or {"name": …}')
    return choice


def _places(fields: ChatRequest) -> list[str]:
    """Of each function, where the request describes it."""
    tools = fields.tools or ()
    kinds = ("custom" if is_custom(tool) else "function" for tool in tools)
    older = (f"functions[{place}]" for place in range(len(fields.functions or ())))
    return [*(f"tools[{place}].{kind}" for place, kind in enumerate(kinds)), *older]


def _allowed(choice: dict[str, Any]) -> tuple[str, frozenset[str]]:
    """Mode and function names of OpenAI's `allowed_tools`. Raises `RequestError`."""
    allowed = choice.get("allowed_tools")
    mode, tools = (allowed.get("mode"), allowed.get("tools")) if isinstance(allowed, dict) else (None, None)
    tools = [as_function(tool) for tool in (tools if isinstance(tools, list) else ())]
    functions = [tool.get("function") if isinstance(tool, dict) else None for tool in tools]
    names = [function.get("name") if isinstance(function, dict) else None for function in functions]
    if mode not in _MODES[1:] or not names or not all(isinstance(name, str) for name in names):
        shape = '{"mode": "auto" or "required", "tools": [{"type": "function", "function": {"name": …}}, …]}'
        raise RequestError("tool_choice", f"tool_choice.allowed_tools must be {shape}")
    return mode, frozenset(map(str, names))


def _named(choice: str | dict[str, Any] | None, names: Sequence[str]) -> str | None:
    """The one function that must be called."""
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if choice.get("type") == "function" and isinstance(function, dict) else None
        if name is None:
            shape = '{"type": "function", "function": {"name": …}}'
            raise RequestError("tool_choice", f"tool_choice must be one of {', '.join(_MODES)}, or {shape}")
        if name not in names:
            raise RequestError("tool_choice", f"tool_choice names {name!r}, which is none of the tools")
        return str(name)
    if choice is not None and choice not in _MODES:
        raise RequestError("tool_choice", f"tool_choice must be one of {', '.join(_MODES)}, not {choice!r}")
    return None


def _tool(place: int, tool: dict[str, Any], where: str) -> _Tool:
    """`where`: its place in the request."""
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, dict):
        field = where.rpartition(".")[0]
        raise RequestError(field, f'{field} must be {{"type": "function", "function": {{"name": …}}}}')
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise RequestError(f"{where}.name", f"{where}.name must be 1 to 128 of A-Z a-z 0-9 _ . : / -")
    if not isinstance(parameters, dict | None):
        raise RequestError(f"{where}.parameters", f"{where}.parameters must be a JSON schema")
    return _Tool(place, name, {"type": "object", **(parameters or {})}, function.get("strict") is True)


class AnswerGrammars(NamedTuple):
    """Grammars for the answers of one model, in the model's formats."""

    formats: AnswerFormats
    named_id: NamedId

    def grammar(self, wish: Wish | None, use: ToolUse | None, has_begun_reasoning: bool) -> Grammar | None:
        """For a wish, for tools, or for both. `has_begun_reasoning`: the prompt ends with the beginning of reasoning.
        Raises RequestError, naming the field and its problem. May take long, or forever."""
        wanted = None if wish is None else grammar(wish)
        is_used = use is not None and (use.is_kept_to or wanted is not None)
        formats = self.formats
        if not is_used and (wanted is None or (formats.thought is None and formats.answer is None)):
            return wanted
        field = "tools" if wanted is None else wanted.field
        text = self._text(wanted, use if is_used else None, has_begun_reasoning)
        if use is not None and is_used and problem_of(text) is not None:  # the schemas can be enforced one by one
            text = self._text(wanted, use.widest, has_begun_reasoning)
        return Grammar(text, field)

    def _text(self, wanted: Grammar | None, use: ToolUse | None, has_begun_reasoning: bool) -> str:
        formats = self.formats
        lark = Lark(self.named_id, formats.markers)
        body = None if wanted is None else lark.nested(wanted.text)
        if formats.answer is not None:
            body = f"{lark.literal(formats.answer)} {body or 'TEXT'}"
        if use is not None:
            body = self._with_calls(lark, use, body)
        assert body is not None
        if formats.thought is not None:
            body = lark.after_reasoning(formats.thought, body, has_begun=has_begun_reasoning)
        return lark.text(body)

    def _with_calls(self, lark: Lark, use: ToolUse, body: str | None) -> str:
        tools = self.formats.tools
        assert tools is not None
        functions = [(tool.name, tool.enforced()) for tool in map(_Tool.read, use.functions)]
        calls = lark.calls(tools.shape, functions, are_many=use.are_many)
        begun = f"{lark.literal(tools.shape.begin)} {calls}"
        if use.is_forced:
            return begun
        return lark.calls_or_text(tools.shape, calls) if body is None else f"({begun} | {body})"


def reasoning_has_begun(prompt: Sequence[int], formats: AnswerFormats, vocabulary: "Vocabulary") -> bool:
    """Whether the prompt ends with the marker before the reasoning."""
    if formats.reasoning is None:
        return False
    text = vocabulary.tokenizer.decode(prompt[-16:], skip_special_tokens=False)
    return text.rstrip().endswith(formats.reasoning.begin)
