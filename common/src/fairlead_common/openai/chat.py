"""Chat templates: messages → the prompt text a model was trained on.

Templates come with a model and are not trusted. The immutable sandbox of jinja2 keeps templates from Python, not from
looping for ever, so gateways and engines run templates in processes that can be ended (`workers`). The helpers are
those of transformers: `raise_exception`, `tojson`, `strftime_now`, `dict` and the `generation` block.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fairlead_common.openai.budget import MAX_INDENTED_NESTING, MAX_RENDERED_CHARACTERS, MAX_RENDERED_PIECES, nesting
from fairlead_common.openai.instructed import as_instructed, has_calls, with_instructions_first

Message = Mapping[str, Any]

_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
"""Fields in which clients send the reasoning of an earlier answer; templates read the first, gpt-oss the second."""
_TEXT_PARTS = {None: "text", "text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Type of a part → the field with the text."""
_THOUGHT_PARTS = ("thinking", "reasoning", "redacted_thinking")
"""Types of parts with the reasoning of an earlier answer, as LangChain, LiteLLM and Mistral's clients send it."""
_THOUGHT_BLOCKS = "thinking_blocks"
"""Field beside the content with parts of reasoning, as LiteLLM sends an earlier answer."""
_UNSEEN_IMAGE = "(an image, which this model cannot see)"
"""What a model without eyes is told in place of an image that a tool gave. Agents keep results in every later request:
a refusal would end the conversation for good."""
_CUT_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
"""Appended to the last message during rendering, to find the end of the message; the space shows whether the template
trims. Source: `render_jinja_template` of transformers."""

_MARK = "MESSAGE_TAG_"
"""Beginning of each content of a chat for a trial."""

_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    TypeError,
    LookupError,
    ValueError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    RecursionError,
)
"""Exceptions of a template that gets unexpected messages or variables."""


class ChatTemplateError(ValueError):
    """The template could not render these messages; the text is fit to show the person who sent them."""

    def __init__(self, problem: str, place: str | None = None) -> None:
        """`place`: None = nowhere in particular."""
        super().__init__(problem)
        self.place = place


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks assistant text for training; when serving it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: str) -> None:
    raise ChatTemplateError(message)


class _Dict:
    """`dict` and `dict.fromkeys`, without the other attributes of `dict`."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(jinja2.utils.Namespace):
    """A namespace without names that begin with an underscore."""

    def __init__(*args: Any, **values: Any) -> None:
        self, given = args[0], dict(*args[1:], **values)
        for name in given:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise ChatTemplateError(f"the chat template gives a namespace the attribute {name!r}, which no template may")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    options: dict[str, Any] = {"separators": separators, "sort_keys": sort_keys}
    if indent is None:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)
    if indent > MAX_INDENTED_NESTING or nesting(value) > MAX_INDENTED_NESTING:
        raise ChatTemplateError(
            f"the chat template indents JSON, and at most {MAX_INDENTED_NESTING} lists and objects in one another; "
            "send tools and chat_template_kwargs that are less deep"
        )
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, **options)
    return "".join(_within_budget(encoder.iterencode(value)))  # its indentation can be many times the value's own size


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


@lru_cache(maxsize=64)
def _compiled(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    del environment.globals["lipsum"]
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    return environment.from_string(source)


class ChatTemplate:
    """One model's chat template.

    Raises `ChatTemplateError` at construction when the source does not compile.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        sees_images: bool = False,
        instructs_tools: bool = False,
        renders: bool = True,
    ) -> None:
        """`sees_images`: whether the model sees images, so that the template writes image tokens. `instructs_tools`:
        whether tools are told in a message (`instructed`), because the template has no place for tools. `renders`:
        whether to compile the template, which runs parts of the source."""
        self.source = source
        self.instructs_tools = instructs_tools
        self.sees_images = sees_images
        self.special_tokens = dict(special_tokens or {})
        self._shown: dict[tuple[str, ...], bool] = {}
        """Roles of a chat → whether a trial showed the texts of all its messages."""
        self._thought_place: tuple[_MakesPart | None] | None = None
        """The template's place for reasoning, of `_THOUGHT_PLACES`; None = not tried yet."""
        if not renders:
            return
        try:
            self._template = _compiled(source)
        except (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError) as error:  # the latter of deep nesting
            raise ChatTemplateError(f"the chat template does not compile: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt text for `messages`; with `add_generation_prompt` the text ends where the answer begins.

        With `continue_final_message` the text ends with the last message, without the end mark of a message.
        Raises `ChatTemplateError`, also for a text above the size limit.
        """
        if not self.sees_images:
            messages = [_with_images_told(message) for message in messages]
        for index, message in enumerate(messages):
            _check_parts(message, f"messages[{index}].content", self.sees_images)
        shown = [_as_templates_expect(message, self.sees_images) for message in messages]
        shown = self._with_instructions(shown)
        tools = [_without_nulls(tool) for tool in tools or ()]
        if self.instructs_tools and (tools or has_calls(shown)):
            shown, tools = self._instructed(shown, tools), []
        if not continue_final_message:
            return self._render(self._with_thoughts_within(shown), tools, add_generation_prompt, variables)
        final = shown[-1].get("content") if shown else None
        if not isinstance(final, str):
            raise ChatTemplateError("continue_final_message needs a last message with text, which is to be continued")
        shown[-1] = {**shown[-1], "content": final + _CUT_MARK}
        return _until_mark(self._render(self._with_thoughts_within(shown), tools, False, variables), final)

    def _with_thoughts_within(self, messages: list[Message]) -> list[Message]:
        """Reasoning as a part of the content as well, for templates that read only parts, as Mistral's do."""
        if not any(map(_has_reasoning, messages)):
            return messages
        if self._thought_place is None:
            self._thought_place = (next(filter(self._shows_thoughts_by, _THOUGHT_PLACES), None),)
        [make] = self._thought_place
        return messages if make is None else [_with_part(each, make) for each in messages]

    def _shows_thoughts_by(self, make: "_MakesPart | None") -> bool:
        """Whether the prompt shows the reasoning of a last answer, but not the rest of the part, as a printed list
        would. None = from the fields for reasoning."""
        thought, unseen = f"{_MARK}THOUGHT", f"{_MARK}UNSEEN"
        asked, answer = {"role": "user", "content": f"{_MARK}0"}, {"role": "assistant", "content": f"{_MARK}1"}
        told: Message = {"thinking": thought, **answer, "reasoning_content": thought}
        if make is not None:
            parts = [{**make(thought), "trial": unseen}, {"type": "text", "text": answer["content"]}]
            told = {**answer, "content": parts}
        prompt = self._tried([asked, told], add_generation_prompt=False)
        return thought in prompt and unseen not in prompt

    def _instructed(self, messages: list[Message], tools: list[Mapping[str, Any]]) -> list[Message]:
        try:
            return as_instructed(messages, tools, in_system=self.shows_system)
        except RecursionError as error:
            raise ChatTemplateError(
                "tools and calls are too deep; send lists and objects that are less deep"
            ) from error

    @property
    def shows_system(self) -> bool:
        """Whether the text of a system message appears in the prompt."""
        return self._shows("system", "user")

    def _with_instructions(self, messages: list[Message]) -> list[Message]:
        """Moves messages of the system and of the developer to places where the template shows them. Agents send such
        messages anywhere; many templates refuse or lose all but a first message of the system."""
        roles = {message.get("role") for message in messages} & {"system", "developer"}
        if not roles or not self._shows("user"):
            return messages
        if "developer" in roles and self.shows_system and not self._shows("developer", "user"):
            messages = [{**each, "role": "system"} if each.get("role") == "developer" else each for each in messages]
        later = {str(each.get("role")) for each in messages[1:]} & {"system", "developer"}
        shown_later = all(self._shows(role, role, "user", "assistant", role, "user") for role in sorted(later))
        return messages if shown_later else with_instructions_first(messages)

    def _shows(self, *roles: str) -> bool:
        """Whether the prompt of a chat with these roles has the texts of all messages."""
        if roles not in self._shown:
            marks = [f"{_MARK}{number}" for number in range(len(roles))]
            asked = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
            prompt = self._tried(asked, add_generation_prompt=True)
            self._shown[roles] = all(mark in prompt for mark in marks)
        return self._shown[roles]

    def _tried(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The prompt of a chat for a trial; empty where the template refuses it."""
        try:
            return self._render(list(messages), [], add_generation_prompt, {})
        except ChatTemplateError:
            return ""

    def _render(
        self,
        messages: list[Message],
        tools: list[Mapping[str, Any]],
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """Renders with optional fields absent, for which templates may test; after a failure, with empty fields."""
        given: dict[str, Any] = {"documents": None, "add_generation_prompt": add_generation_prompt}
        given |= {**self.special_tokens, **variables}
        try:
            return self._filled(messages, tools or None, given)
        except _TEMPLATE_FAULTS as error:
            if isinstance(error, ChatTemplateError):
                raise
        try:
            return self._filled([_with_all(each) for each in messages], [_described(tool) for tool in tools], given)
        except ChatTemplateError:
            raise
        except _TEMPLATE_FAULTS as error:
            raise ChatTemplateError(f"the chat template could not render these messages: {_problem(error)}") from error

    def _filled(
        self, messages: list[Message], tools: list[Mapping[str, Any]] | None, variables: Mapping[str, Any]
    ) -> str:
        pieces = self._template.generate(messages=messages, tools=tools, **variables)
        return "".join(_within_budget(pieces))


_UNDEFINED = re.compile(r"'(?P<variable>\w+)' is undefined$|has no (attribute|element) '?(?P<field>\w+)'?$")


def _problem(error: Exception) -> str:
    """Why a template failed, as far as the exception says, without terms of Python."""
    match error:
        case jinja2.UndefinedError():
            found = _UNDEFINED.search(str(error))
            if found and found["variable"]:
                return f"it needs the variable {found['variable']!r}, which chat_template_kwargs can set"
            if found:
                return f"it needs the field {found['field']!r}, which something in them lacks"
        case jinja2.TemplateError() | OverflowError():  # the latter is the sandbox's
            return str(error)
        case RecursionError() | MemoryError():
            return "its recursion is too deep, or it needs too much memory"
    return "something in them is of another kind than it expects"


def _until_mark(text: str, final: str) -> str:
    """The text before the mark that follows the last message, whose text is `final`."""
    place = text.rfind(_CUT_MARK.strip())
    if place < 0 or final.strip() not in text:
        raise ChatTemplateError(
            "continue_final_message cannot be used with this last message: the chat template leaves out part of it"
        )
    before = text[:place]
    return before if text.startswith(_CUT_MARK, place) else before.rstrip()


def _with_images_told(message: Message) -> Message:
    """A result of a tool with a text in place of each image; any other message as it is."""
    content = message.get("content")
    if message.get("role") != "tool" or not isinstance(content, list):
        return message
    return {**message, "content": [_UNSEEN_IMAGE if is_image(part) else part for part in content]}


def _check_parts(message: Message, place: str, sees_images: bool) -> None:
    """Raises `ChatTemplateError` for a part that this model cannot read."""
    content = message.get("content")
    for index, part in enumerate(content if isinstance(content, list) else ()):
        is_thought = message.get("role") == "assistant" and _is_thought(part)
        if isinstance(part, str) or is_thought or (sees_images and is_image(part)):
            continue
        where = f"{place}[{index}]"
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        name = _TEXT_PARTS.get(kind) if isinstance(part, Mapping) and isinstance(kind, str | None) else None
        if name is None:
            wanted = "parts of type text and image_url" if sees_images else "text parts"
            problem = f"{where}: content of type {kind!r} is not supported by this model; send {wanted}"
            raise ChatTemplateError(problem, where)
        if not isinstance(part.get(name), str):
            raise ChatTemplateError(f"{where}.{name} must be a text", f"{where}.{name}")


def _as_templates_expect(message: Message, sees_images: bool) -> Message:
    """A message as `apply_chat_template` of transformers passes it to a template.

    Null fields are removed, because many templates test for a missing key and would print "None". Reasoning gets the
    name that templates read, also from parts of the content, an empty list of calls is removed, and a refusal becomes
    the content."""
    message = {
        name: value
        for name, value in message.items()
        if value is not None
        and not (name == "tool_calls" and value == [])
        and not (name in _REASONING_NAMES and not isinstance(value, str))
    }
    if isinstance(refusal := message.get("refusal"), str):
        message = {"content": refusal, **message}
    message = _with_thoughts_apart(message)
    reasoning = next((message[name] for name in _REASONING_NAMES if name in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return _with_parsed_arguments(_with_plain_content(message, sees_images))


def _with_thoughts_apart(message: Message) -> Message:
    """An answer without parts of reasoning in its content: their text is in the field for reasoning, unless that has
    some, and so is the text of LiteLLM's blocks. Reasoning without a text, such as what was redacted, is left out."""
    if message.get("role") != "assistant":
        return message
    content, blocks = message.get("content"), message.get(_THOUGHT_BLOCKS)
    thoughts = [part for part in content if _is_thought(part)] if isinstance(content, list) else []
    if thoughts:
        message = {**message, "content": [part for part in content or () if not _is_thought(part)] or ""}
    found = (thoughts, [part for part in blocks if _is_thought(part)] if isinstance(blocks, list) else [])
    text = next(filter(None, ("".join(map(_thought_text, parts)) for parts in found)), "")
    is_told = not text or any(name in message for name in _REASONING_NAMES)
    return message if is_told else {**message, "reasoning_content": text}


def _is_thought(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in _THOUGHT_PARTS


def _thought_text(part: Mapping[str, Any]) -> str:
    """The text of a part of reasoning, which may stand in parts of its own."""
    given = next((part[name] for name in ("thinking", "reasoning", "text", "summary") if part.get(name)), "")
    texts = (_mapping(each).get("text", each) for each in (given if isinstance(given, list) else [given]))
    return "".join(text for text in texts if isinstance(text, str))


_MakesPart = Callable[[str], Mapping[str, Any]]
"""A reasoning's text → a part of the content."""
_THOUGHT_PLACES: tuple[_MakesPart | None, ...] = (
    None,
    lambda text: {"type": "thinking", "thinking": text},
    lambda text: {"type": "thinking", "thinking": [{"type": "text", "text": text}]},
)
"""Where templates read reasoning, tried in this order; None = in the fields."""


def _has_reasoning(message: Message) -> bool:
    return message.get("role") == "assistant" and bool(message.get("reasoning_content"))


def _with_part(message: Message, make: _MakesPart) -> Message:
    """An answer with its reasoning as the first part of its content."""
    if not _has_reasoning(message):
        return message
    content = message.get("content") or []
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return {**message, "content": [make(message["reasoning_content"]), *parts]}


def _with_all(message: Message) -> Message:
    """A message with the fields that templates may take for granted."""
    message = {"content": "", **message}
    if message.get("role") == "tool":
        return {"tool_call_id": "", **message}
    if not isinstance(calls := message.get("tool_calls"), list):
        return message
    return {**message, "tool_calls": [{"type": "function", "id": "", **_mapping(call)} for call in calls]}


def _without_nulls(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool, or a call of a tool, without null fields, also in the function."""
    found = {name: value for name, value in tool.items() if value is not None}
    if isinstance(function := found.get("function"), Mapping):
        found["function"] = {name: value for name, value in function.items() if value is not None}
    return found


def _described(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool with the fields that templates may take for granted."""
    if not isinstance(function := tool.get("function"), Mapping):
        return tool
    parameters = {"type": "object", "properties": {}, **_mapping(function.get("parameters"))}
    return {"type": "function", **tool, "function": {"description": "", **function, "parameters": parameters}}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _within_budget(pieces: Iterable[str]) -> Iterator[str]:
    num_characters = 0
    for num_pieces, piece in enumerate(pieces):
        num_characters += len(piece)
        if num_characters > MAX_RENDERED_CHARACTERS or num_pieces >= MAX_RENDERED_PIECES:
            raise ChatTemplateError(
                f"the chat template makes more than {MAX_RENDERED_CHARACTERS:,} characters or {MAX_RENDERED_PIECES:,} "
                "pieces of text of these messages; send fewer messages, shorter tools or chat_template_kwargs"
            )
        yield piece


def _with_plain_content(message: Message, sees_images: bool) -> Message:
    """Content that is a list of parts, as plain text for text templates; with images, for models that see images, as
    the list that vision templates expect. No template gets the data of an image."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    if sees_images and any(is_image(part) for part in content):
        return {**message, "content": [_shown_part(part) for part in content]}
    return {**message, "content": "".join(map(_part_text, content))}


def is_image(part: Any) -> bool:
    """Whether a part of a content is an image, by the name of chats or of Responses."""
    return isinstance(part, Mapping) and part.get("type") in ("image_url", "input_image")


def _shown_part(part: Any) -> dict[str, str]:
    return {"type": "image"} if is_image(part) else {"type": "text", "text": _part_text(part)}


def _with_parsed_arguments(message: Message) -> Message:
    """Tool calls with parsed arguments: OpenAI sends JSON in a string, and templates expect the object."""
    calls = message.get("tool_calls")
    if message.get("role") != "assistant" or not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_parsed_call(call) for call in calls]}


def _parsed_call(call: Any) -> Any:
    if not isinstance(call, Mapping):
        return call
    call = _without_nulls(call)
    function = call.get("function")
    if not isinstance(function, Mapping) or isinstance(function.get("arguments"), Mapping):
        return call
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(written: Any) -> dict[str, Any]:
    """Arguments of a call as an object; empty for anything but an object, since most templates iterate over the fields
    and a model may have written anything or have been cut off. Reads JSON in JSON, too."""
    for _ in range(2):
        if isinstance(written, str):
            try:
                written = json.loads(written)
            except (ValueError, RecursionError):
                return {}
    return written if isinstance(written, dict) else {}


def _part_text(part: Any) -> str:
    return part if isinstance(part, str) else str(part[_TEXT_PARTS[part.get("type")]])
