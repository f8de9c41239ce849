"""How models write calls of tools, one reader per format: `read` takes an answer apart.

`markers` are the special tokens of a format: text to its reader, hidden from clients. Sources: the chat templates of
the named models.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import NamedTuple

from fairlead_engine.api.answers.answer_text import (
    AnswerSource,
    CallArguments,
    CallBegun,
    CallCut,
    CallEnded,
    Content,
    Part,
    Reading,
    Reasoning,
    is_begun,
    json_value,
    left_out,
    space,
    starts_with,
    text_until,
    until,
    without_begun,
)
from fairlead_engine.api.answers.calls import Found, call_object, call_objects, cut, ended, is_name
from fairlead_engine.api.answers.reasoning_formats import ReasoningFormat
from fairlead_engine.api.answers.tagged_calls import Tags, tagged_call


class CallShape(NamedTuple):
    """How calls are written where they must be: for grammars. `{name}` stands for the function's name."""

    begin: str
    """Before all calls: distinguishes calls from text; a single marker, or empty."""
    before: str
    """Before a call's arguments."""
    after: str
    """Behind a call's arguments."""
    between: str | None
    """Between two calls; None where an answer has one."""
    first: str = ""
    """Behind `begin`."""
    end: str = ""
    """Behind all calls."""
    tags: Tags | None = None
    """Tags around arguments; None = arguments are JSON."""


class ToolFormat(ABC):
    """A way to write calls."""

    markers: tuple[str, ...] = ()
    shape: CallShape
    block: tuple[str, str] | None = None
    """Tokens around all calls; None = the format has none."""
    answer: str | None = None
    """Prefix of a text, for formats of all answers, with or without tools; None = no prefix."""
    thought: ReasoningFormat | None = None
    """Format of the reasoning; None = not part of this format."""
    id_length = 24
    """Characters of a call's id behind its prefix."""
    id_prefix = "call_"

    def __init__(self, template: str | None = None) -> None:  # noqa: B027 - most formats have one variant
        """`template`: shows the model's variant of the format."""

    @abstractmethod
    def read(self, source: AnswerSource, names: Collection[str]) -> Reading[None]:
        """Reads an answer's text and calls. `names`: the available functions, as a mapping with the schemas of their
        parameters."""


class Hermes(ToolFormat):
    """Hermes 2 and 3, Qwen2.5 and Qwen3: `<tool_call>` and `</tool_call>` around each call as an object."""

    begin, end = "<tool_call>", "</tool_call>"
    block = begin, end
    markers = (begin, end)
    shape = CallShape(begin, '\n{"name": "{name}", "arguments": ', "}\n" + end, "\n" + begin)

    def read(self, source: AnswerSource, names: Collection[str]) -> Reading[None]:
        while (yield from until(source, (self.begin,), Content)) is not None:
            if (yield from call_objects(source, self.begin)) is Found.CALL:
                yield from self._end(source)

    def _end(self, source: AnswerSource) -> Reading[None]:
        yield from space(source)
        if (yield from starts_with(source, self.end)) is None:
            yield from left_out(source, self.end, self.begin)
            if (yield from until(source, (self.end, self.begin), Content)) == self.begin:  # models forget the end
                source.unread(len(self.begin))
        yield from space(source)


class Llama3(ToolFormat):
    """Llama 3.1 to 3.3: the answer is one call or several as objects, with or without `<|python_tag|>`. Between calls
    stands `;` by training; a comma, a line's end, another `<|python_tag|>` and nothing are as clear."""

    begin = "<|python_tag|>"
    markers = (begin,)
    shape = CallShape("", '{"name": "{name}", "parameters": ', "}", "; ")

    def read(self, source: AnswerSource, names: Collection[str]) -> Reading[None]:
        found = yield from self._calls(source, names)
        while found is Found.OTHER and (yield from until(source, (self.begin,), Content)) is not None:
            found = yield from self._calls(source, names)
        yield from until(source, (), Content)

    def _calls(self, source: AnswerSource, names: Collection[str]) -> Reading[Found]:
        yield from starts_with(source, self.begin)
        found = first = yield from call_object(source, names)
        while found is Found.CALL:
            if (yield from space(source)) in (";", ","):
                source.take(1)
                yield from space(source)
            if (yield from starts_with(source, self.begin)) is None:
                yield from left_out(source, self.begin)
            found = yield from call_object(source, names)
        return first


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

    def read(self, source: AnswerSource, names: Collection[str]) -> Reading[None]:
        while (yield from until(source, (self.begin,), Content)) is not None:
            first = yield from space(source)
            if first in ("[", "{"):
                yield from call_objects(source, self.begin)
            else:
                yield from self._named(source)

    def _named(self, source: AnswerSource) -> Reading[None]:
        source.mark()
        name, marker = yield from text_until(source, self.arguments, self.call_id, "{")
        if marker is None or not is_name(name.strip()):
            yield from self._no_name(source, may_be_cut=marker is None)
            return
        source.settle()
        yield CallBegun(name.strip())
        if marker == self.call_id:
            _, marker = yield from text_until(source, self.arguments, "{")
        if marker == "{":
            source.unread(1)
        yield from _arguments(source)
        yield from space(source)

    def _no_name(self, source: AnswerSource, *, may_be_cut: bool) -> Reading[None]:
        """No call follows the marker, or the answer ends in the call's name."""
        is_spent = may_be_cut and source.is_spent
        source.back()
        name = without_begun(source.rest, self.arguments, self.call_id).strip()
        if is_spent and (not name or is_name(name)):
            yield from cut(source)
        else:
            yield Content(self.begin)


class DeepSeek(ToolFormat):
    """DeepSeek-V3 and R1, with arguments fenced as JSON behind the name, and V3.1, with bare arguments."""

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

    def read(self, source: AnswerSource, names: Collection[str]) -> Reading[None]:
        while (marker := (yield from until(source, (self.begin, self.call_begin), Content))) is not None:
            if marker == self.call_begin:  # models forget the first
                source.unread(len(marker))
            while True:
                yield from space(source)
                if (yield from starts_with(source, self.call_begin)) is None:
                    break
                yield from self._call(source, names)
            yield from starts_with(source, self.end)
            yield from space(source)
            yield from left_out(source, self.call_begin, self.end)

    def _call(self, source: AnswerSource, names: Collection[str]) -> Reading[None]:
        source.mark()
        name = yield from self._name(source, names)
        if isinstance(name, Found):
            source.back()
            if name is Found.CUT:
                yield from cut(source)
            else:
                yield Content(self.call_begin)
            return
        source.settle()
        yield CallBegun(name)
        if (yield from space(source)) == "`":
            yield from starts_with(source, "```")
            yield from starts_with(source, "json")
        yield from space(source)
        if (yield from starts_with(source, self.call_end)) is not None:
            yield from ended("", is_over=True)
        elif (yield from space(source)) == "{":
            yield from _arguments(source)
            yield from text_until(source, self.call_end)
        else:
            yield from left_out(source, "```", "json", self.call_end)

    def _name(self, source: AnswerSource, names: Collection[str]) -> Reading[str | Found]:
        """The name, up to the arguments or their fence. The name stands before the separator, or behind it after the
        kind of tool."""
        before, marker = yield from text_until(source, self.separator, self.call_end)
        if marker != self.separator:
            return Found.CUT if marker is None and source.is_spent else Found.OTHER
        name = before.strip()
        if (yield from space(source)) not in _BEHIND_NAME or (name == _KIND and name not in names):
            name, marker = yield from text_until(source, *_BEHIND_NAME, "\n")
            if marker is None:
                return Found.CUT if source.is_spent else Found.OTHER
            source.unread(len(marker))
        name = name.strip()
        return name if is_name(name) else Found.OTHER


_KIND, _BEHIND_NAME = "function", ("{", "`", "<")
"""DeepSeek-V3's kind of tool; and the first characters behind a name."""


class Harmony(ToolFormat):
    """gpt-oss: messages of channels for calls, answers and reasoning."""

    message, channel, ends = "<|message|>", "<|channel|>", ("<|end|>", "<|call|>", "<|return|>")
    begins = ("<|start|>", channel)
    markers = (message, *begins, *ends, "<|constrain|>")
    to = " to="
    """Before the recipient, in a message's header."""
    answer = f"{channel}final{message}"
    thought = ReasoningFormat(f"{channel}analysis{message}", "<|end|><|start|>assistant")
    shape = CallShape(channel, f"commentary to=functions.{{name}} <|constrain|>json{message}", "", None)
    _recipient = re.compile(r"to=(functions\.)?([^\s<]+)")

    def read(self, source: AnswerSource, names: Collection[str]) -> Reading[None]:
        while True:
            header, marker = yield from text_until(source, self.message)
            if marker is None:
                yield from self._without_message(source, header)
                return
            if (name := self._called(header, names)) is not None:
                yield from self._call(source, name)
            elif "analysis" in header:
                yield from self._until_end(source, Reasoning)
            else:
                yield from self._until_end(source, Content)

    def _called(self, header: str, names: Collection[str]) -> str | None:
        """The function that a message goes to; None = no function, as for `browser.search`."""
        found = self._recipient.search(header)
        return found[2] if found and is_name(found[2]) and (found[1] or found[2] in names) else None

    def _until_end(self, source: AnswerSource, make: Callable[[str], Part]) -> Reading[str | None]:
        """Yields a message up to the end, or to the beginning of the next message."""
        end = yield from until(source, (*self.ends, *self.begins), make)
        if end in self.begins:
            source.unread(len(end))
        return end

    def _call(self, source: AnswerSource, name: str) -> Reading[None]:
        yield CallBegun(name)
        written: list[str] = []

        def more(text: str) -> CallArguments:
            written.append(text)
            return CallArguments(text)

        end = yield from self._until_end(source, more)
        # <|call|> ends the sequence, so it need not be seen
        yield from ended("".join(written), is_over=end is not None or not source.is_cut)

    def _without_message(self, source: AnswerSource, header: str) -> Reading[None]:
        """An answer without a header, or with a header at the end, which is hidden and may begin a recipient."""
        if source.is_spent:
            header = without_begun(header, *self.markers)
        is_begun = source.is_cut and self.to.startswith(header)
        if not (is_begun or header.startswith(self.to) or any(marker in header for marker in self.markers)):
            yield Content(header)
        elif self.to.strip() in header:
            yield CallCut()


def _arguments(source: AnswerSource) -> Reading[None]:
    """Reads the last call's arguments, without a required end marker."""
    if (yield from json_value(source, CallArguments)) is not None:
        yield CallEnded()


class Tagged(ToolFormat):
    """Formats with each argument in tags of its own: one call or several between two markers."""

    begin: str
    end: str
    tags: Tags

    def read(self, source: AnswerSource, names: Collection[str]) -> Reading[None]:
        begins = (self.begin, self.tags.name) if self.tags.name else (self.begin,)
        while (marker := (yield from until(source, begins, Content))) is not None:
            if marker != self.begin:  # models forget the first
                source.unread(len(marker))
            yield from self._block(source, names, marker)

    def _block(self, source: AnswerSource, names: Collection[str], marker: str) -> Reading[None]:
        num_calls = 0
        source.mark()
        yield from space(source)
        while not self.tags.name or (yield from starts_with(source, self.tags.name)) is not None:
            found = yield from tagged_call(source, self.tags, names, self.end, is_known=marker != self.begin)
            if found is not Found.CALL:
                if found is Found.OTHER:
                    yield Content((self.begin if not num_calls and marker == self.begin else "") + self.tags.name)
                return
            num_calls += 1
            yield from space(source)
            if self.tags.end == self.end:
                return
        if num_calls:
            yield from starts_with(source, self.end)
            yield from space(source)
            yield from left_out(source, self.end, self.tags.name)
        elif is_begun(source, self.tags.name):
            yield from cut(source)
        else:
            source.back()
            yield Content(self.begin)


class Glm(Tagged):
    """GLM-4.5 to 4.7, and Ling 3 and Laguna: `NAME`, `<arg_key>` and `<arg_value>` in Hermes' markers."""

    begin, end = "<tool_call>", "</tool_call>"
    block = begin, end
    markers = (begin, end, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    tags = Tags("", "", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", end)

    def __init__(self, template: str | None = None) -> None:
        gap = "" if template is not None and "</arg_key><arg_value>" in template else "\n"
        tags = self.tags._replace(gap=gap)
        self.shape = CallShape(self.begin, f"{{name}}{gap}", self.end, gap + self.begin, tags=tags)


class Qwen3Coder(Tagged):
    """Qwen3-Coder and Qwen3.5: `<function=NAME>` and `<parameter=NAME>` in Hermes' markers."""

    begin, end = "<tool_call>", "</tool_call>"
    block = begin, end
    markers = (begin, end)
    tags = Tags("<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>", padding="\n")
    shape = CallShape(begin, "\n<function={name}>\n", "</function>\n" + end, "\n" + begin, tags=tags)


class MiniMax(Tagged):
    """MiniMax-M2: `<invoke name="NAME">` and `<parameter name="NAME">`, one call or several between two markers."""

    begin, end = "<minimax:tool_call>", "</minimax:tool_call>"
    block = begin, end
    markers = (begin, end)
    tags = Tags('<invoke name="', '">', '<parameter name="', '">', "", "</parameter>", "</invoke>")
    shape = CallShape(begin, '\n<invoke name="{name}">\n', "</invoke>", "", "", "\n" + end, tags=tags)


class SeedOss(Tagged):
    """Seed-OSS: Qwen3-Coder's tags, without lines around values, in markers of its own."""

    begin, end = "<seed:tool_call>", "</seed:tool_call>"
    block = begin, end
    markers = (begin, end)
    tags = Tags("<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>")
    shape = CallShape(begin, "\n<function={name}>\n", "</function>\n" + end, "\n" + begin, tags=tags)


TOOL_FORMATS: dict[str, type[ToolFormat]] = {
    "hermes": Hermes,
    "llama3_json": Llama3,
    "mistral": Mistral,
    "deepseek_v3": DeepSeek,
    "harmony": Harmony,
    "glm45": Glm,
    "qwen3_coder": Qwen3Coder,
    "minimax_m2": MiniMax,
    "seed_oss": SeedOss,
}
"""By the name of `--tool-call-parser`."""
