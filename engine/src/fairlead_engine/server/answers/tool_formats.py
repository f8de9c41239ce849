"""How models write calls of tools, one reader for each way: `read` takes an answer apart.

Which special tokens a format is made of is said by `markers`: these are text to its reader, though clients see none.
Sources: the chat templates of the models that are named.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import NamedTuple

from fairlead_engine.server.answers.answer_text import Source, json_value, space, starts_with, text_until, until
from fairlead_engine.server.answers.calls import call_object
from fairlead_engine.server.answers.parts import CallArguments, CallBegun, Content, Reading, Reasoning
from fairlead_engine.server.answers.reasoning_formats import ReasoningFormat


class CallShape(NamedTuple):
    """How calls are written where they must be: for grammars. `{name}` stands for the function's name."""

    begin: str
    """Before all of them: what tells them from text, and is one marker where there is any."""
    before: str
    """Before a call's arguments,"""
    after: str
    """and behind them."""
    between: str | None
    """Between two calls; None where an answer has one."""
    first: str = ""
    """Behind `begin`."""
    end: str = ""
    """Behind all of them."""


class ToolFormat(ABC):
    """A way to write calls."""

    markers: tuple[str, ...] = ()
    shape: CallShape
    block: tuple[str, str] | None = None
    """Tokens before and behind everything that is a call, where there are such."""
    answer: str | None = None
    """What stands before a text, where every answer is written in this format, in requests without tools, too."""
    thought: ReasoningFormat | None = None
    """What reasoning stands in, where it is a part of the format."""
    id_length = 24
    """Characters of a call's id behind its prefix."""
    id_prefix = "call_"

    def __init__(self, template: str | None = None) -> None:  # noqa: B027 - most formats have one variant
        """`template`: shows which of its variants a model knows."""

    @abstractmethod
    def read(self, source: Source, names: Collection[str]) -> Reading[None]:
        """Reads the text of an answer, and its calls; `names`: the functions there are."""


class Hermes(ToolFormat):
    """Hermes 2 and 3, Qwen2.5 and Qwen3: `<tool_call>` and `</tool_call>` around each call as an object."""

    begin, end = "<tool_call>", "</tool_call>"
    block = begin, end
    markers = (begin, end)
    shape = CallShape(begin, '\n{"name": "{name}", "arguments": ', "}\n" + end, "\n" + begin)

    def read(self, source: Source, names: Collection[str]) -> Reading[None]:
        while (yield from until(source, (self.begin,), Content)) is not None:
            if not (yield from call_object(source)):
                yield Content(self.begin)
                continue
            yield from space(source)
            yield from until(source, (self.end,), Content)
            yield from space(source)


class Llama3(ToolFormat):
    """Llama 3.1 to 3.3: the answer is the call as an object, or several behind `;`, with `<|python_tag|>` or not."""

    begin = "<|python_tag|>"
    markers = (begin,)
    shape = CallShape("", '{"name": "{name}", "parameters": ', "}", "; ")

    def read(self, source: Source, names: Collection[str]) -> Reading[None]:
        is_call = yield from self._calls(source, names)
        while not is_call and (yield from until(source, (self.begin,), Content)) is not None:
            is_call = yield from self._calls(source, names)
        yield from until(source, (), Content)

    def _calls(self, source: Source, names: Collection[str]) -> Reading[bool]:
        yield from starts_with(source, self.begin)
        if not (yield from call_object(source, names)):
            return False
        while (yield from space(source)) == ";":
            source.take(1)
            if not (yield from call_object(source, names)):
                break
        return True


class Mistral(ToolFormat):
    """Mistral: `[TOOL_CALLS]` before a list of calls as objects, or before each call as `NAME[ARGS]{…}`."""

    begin, arguments, call_id = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
    markers = (begin, arguments, call_id)
    id_length, id_prefix = 9, ""

    def __init__(self, template: str | None = None) -> None:
        if template is not None and self.arguments in template:
            self.shape = CallShape(self.begin, "{name}" + self.arguments, "", self.begin)
        else:
            self.shape = CallShape(self.begin, '{"name": "{name}", "arguments": ', "}", ", ", "[", "]")

    def read(self, source: Source, names: Collection[str]) -> Reading[None]:
        while (yield from until(source, (self.begin,), Content)) is not None:
            first = yield from space(source)
            if first == "[":
                source.take(1)
                yield from self._list(source)
            else:
                yield from self._named(source)

    def _list(self, source: Source) -> Reading[None]:
        while (yield from call_object(source)):
            first = yield from space(source)
            if first not in (",", "]"):
                break
            source.take(1)
            if first == "]":
                yield from space(source)
                break

    def _named(self, source: Source) -> Reading[None]:
        name, marker = yield from text_until(source, self.arguments, self.call_id, "{")
        if marker == self.call_id:
            _, marker = yield from text_until(source, self.arguments, "{")
        if marker is None:
            yield Content(self.begin + name)
            return
        yield CallBegun(name.strip())
        if marker == "{":
            source.unread(1)
        yield from json_value(source, CallArguments)
        yield from space(source)


class DeepSeek(ToolFormat):
    """DeepSeek-V3 and R1, whose arguments are fenced as JSON behind the name, and V3.1, where they are bare."""

    begin, end = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    block = begin, end
    call_begin, call_end, separator = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
    markers = (begin, end, call_begin, call_end, separator)

    def __init__(self, template: str | None = None) -> None:
        if template is not None and "```json" in template:
            before, after = f"{self.call_begin}function{self.separator}{{name}}\n```json\n", "\n```" + self.call_end
            self.shape = CallShape(self.begin, before, after, "\n", "", self.end)
        else:
            before = f"{self.call_begin}{{name}}{self.separator}"
            self.shape = CallShape(self.begin, before, self.call_end, "", "", self.end)

    def read(self, source: Source, names: Collection[str]) -> Reading[None]:
        while (yield from until(source, (self.begin,), Content)) is not None:
            while True:
                yield from space(source)
                if (yield from starts_with(source, self.call_begin)) is None:
                    break
                yield from self._call(source)
            yield from starts_with(source, self.end)
            yield from space(source)

    def _call(self, source: Source) -> Reading[None]:
        name, marker = yield from text_until(source, self.separator, self.call_end)
        if marker != self.separator:
            yield Content(self.call_begin + name)
            return
        if (yield from space(source)) != "{":  # what came was the kind of tool
            name, marker = yield from text_until(source, "```json", self.call_end)
            if marker is None:
                yield Content(self.call_begin + name)
                return
        yield CallBegun(name.strip())
        if marker != self.call_end:
            yield from json_value(source, CallArguments)
            yield from text_until(source, self.call_end)


class Harmony(ToolFormat):
    """gpt-oss: messages of channels, of which one is a call, one the answer, and one the reasoning."""

    message, channel, ends = "<|message|>", "<|channel|>", ("<|end|>", "<|call|>", "<|return|>")
    markers = (message, channel, *ends, "<|start|>", "<|constrain|>")
    answer = f"{channel}final{message}"
    thought = ReasoningFormat(f"{channel}analysis{message}", "<|end|><|start|>assistant")
    shape = CallShape(channel, f"commentary to=functions.{{name}} <|constrain|>json{message}", "", None)
    _recipient = re.compile(r"to=functions\.([^\s<]+)")

    def read(self, source: Source, names: Collection[str]) -> Reading[None]:
        while True:
            header, marker = yield from text_until(source, self.message)
            if marker is None:
                if header and self.channel not in header:
                    yield Content(header)
                return
            if called := self._recipient.search(header):
                yield CallBegun(called[1])
                yield from until(source, self.ends, CallArguments)
            elif "analysis" in header:
                yield from until(source, self.ends, Reasoning)
            else:
                yield from until(source, self.ends, Content)


TOOL_FORMATS: dict[str, type[ToolFormat]] = {
    "hermes": Hermes,
    "llama3_json": Llama3,
    "mistral": Mistral,
    "deepseek_v3": DeepSeek,
    "harmony": Harmony,
}
"""By the name of `--tool-call-parser`."""
