"""Formats with a call's name before arguments in JSON. Sources: the chat templates of the named models."""

import re
from collections.abc import Callable, Collection

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
    json_value,
    left_out,
    space,
    starts_with,
    text_until,
    until,
    without_begun,
)
from fairlead_engine.api.answers.calls import Found, call_objects, cut, ended, is_name
from fairlead_engine.api.answers.reasoning_formats import ReasoningFormat
from fairlead_engine.api.answers.tool_format import CallShape, ToolFormat


def _arguments(source: AnswerSource) -> Reading[None]:
    """Reads the last call's arguments, without a required end marker."""
    if (yield from json_value(source, CallArguments)) is not None:
        yield CallEnded()


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


class Named(ToolFormat):
    """Formats with calls as a name and arguments in JSON, and markers between."""

    begin: str
    end: str
    """Around all calls; empty = none."""
    call_begin: str
    arguments: str
    """Before a call's arguments."""
    call_end: str
    around: tuple[str, ...] = ()
    """Brackets and separators around calls."""
    fence: tuple[str, ...] = ()
    """Before arguments, where a model writes it."""

    @property
    def begins(self) -> tuple[str, ...]:
        """Any begins calls: models forget the first."""
        return (self.begin, self.call_begin) if self.begin else (self.call_begin,)

    def read(self, source: AnswerSource, names: Collection[str]) -> Reading[None]:
        while (marker := (yield from until(source, self.begins, Content))) is not None:
            if marker != self.begin:
                source.unread(len(marker))
            while (yield from self._is_next(source)):
                yield from self._call(source, names)
            if self.end:
                yield from starts_with(source, self.end)
            yield from space(source)
            yield from left_out(source, self.call_begin, self.end)

    def _is_next(self, source: AnswerSource) -> Reading[bool]:
        """Reads the beginning of the next call, if there is one."""
        while (yield from space(source)) in self.around:
            source.take(1)
        return (yield from starts_with(source, self.call_begin)) is not None

    def _call(self, source: AnswerSource, names: Collection[str]) -> Reading[None]:
        source.mark()
        called = yield from self._called(source, names)
        if isinstance(called, Found):
            source.back()
            if called is Found.CUT:
                yield from cut(source)
            else:
                yield Content(self.call_begin)
            return
        source.settle()
        yield called
        yield from self._arguments(source)

    def _called(self, source: AnswerSource, names: Collection[str]) -> Reading[CallBegun | Found]:
        """The call's name, up to the arguments."""
        header, marker = yield from text_until(source, self.arguments, self.call_end)
        if marker is None:
            return Found.CUT if source.is_spent else Found.OTHER
        if marker != self.arguments:
            source.unread(len(marker))
        called = self._begun(header.strip())
        return called if is_name(called.name) else Found.OTHER

    def _begun(self, header: str) -> CallBegun:
        """The call of a header."""
        return CallBegun(header)

    def _arguments(self, source: AnswerSource) -> Reading[None]:
        yield from space(source)
        for text in self.fence:
            yield from starts_with(source, text)
        yield from space(source)
        if (yield from starts_with(source, self.call_end)) is not None:
            yield from ended("", is_over=True)
        elif (yield from space(source)) == "{":
            yield from _arguments(source)
            yield from text_until(source, self.call_end)
        else:
            yield from left_out(source, *self.fence, self.call_end)


class KimiK2(Named):
    """Kimi-K2: `functions.NAME:NUMBER`, which is the call's id, before the arguments."""

    begin, end = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    block = begin, end
    call_begin, arguments, call_end = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
    markers = (begin, end, call_begin, arguments, call_end)
    shape = CallShape(begin, f"{call_begin}functions.{{name}}:{{index}}{arguments}", call_end, "", "", end)

    def _begun(self, header: str) -> CallBegun:
        name, _, number = header.rpartition(":")
        if not number.isdecimal():
            return CallBegun(header.removeprefix("functions."))
        return CallBegun(name.removeprefix("functions."), header)


class Solar(Named):
    """Solar Open: an id, a name and arguments behind a marker each."""

    begin, end = "<|tool_calls|>", "<|calls|>"
    name = "<|tool_call:name|>"
    call_begin, arguments, call_end = "<|tool_call:begin|>", "<|tool_call:args|>", "<|tool_call:end|>"
    markers = (begin, end, call_begin, name, arguments, call_end)
    shape = CallShape(begin, f"{call_begin}{{id}}{name}{{name}}{arguments}", call_end, "", "", end)

    def _begun(self, header: str) -> CallBegun:
        call_id, _, name = header.rpartition(self.name)
        return CallBegun(name.strip(), call_id.strip() or None)


class Apertus(Named):
    """Apertus: a list of objects with the name as key and the arguments as value."""

    begin, end = "<|tools_prefix|>", "<|tools_suffix|>"
    begins = (begin,)
    call_begin, arguments, call_end = '{"', '":', "}"
    around = ("[", ",", "]")
    block = begin, end
    markers = (begin, end)
    shape = CallShape(begin, '{"{name}": ', "}", ", ", "[", "]" + end)


class Functionary(Named):
    """Functionary 3.1: `<function=NAME>` and `</function>` around arguments."""

    begin, end = "", ""
    call_begin, arguments, call_end = "<function=", ">", "</function>"
    shape = CallShape(call_begin, "{name}>", call_end, call_begin)


class DeepSeek(Named):
    """DeepSeek-V3 and R1, with arguments fenced as JSON behind the name, and V3.1, with bare arguments."""

    begin, end = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    block = begin, end
    call_begin, arguments, call_end = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    markers = (begin, end, call_begin, call_end, arguments)
    fence = ("```", "json")

    def __init__(self, template: str | None = None) -> None:
        if template is not None and "```json" in template:
            before, after = f"{self.call_begin}function{self.arguments}{{name}}\n```json\n", "\n```" + self.call_end
            self.shape = CallShape(self.begin, before, after, "\n", "", self.end)
        else:
            before = f"{self.call_begin}{{name}}{self.arguments}"
            self.shape = CallShape(self.begin, before, self.call_end, "", "", self.end)

    def _called(self, source: AnswerSource, names: Collection[str]) -> Reading[CallBegun | Found]:
        """The name, up to the arguments or their fence. The name stands before the separator, or behind it after the
        kind of tool."""
        before, marker = yield from text_until(source, self.arguments, self.call_end)
        if marker != self.arguments:
            return Found.CUT if marker is None and source.is_spent else Found.OTHER
        name = before.strip()
        if (yield from space(source)) not in _BEHIND_NAME or (name == _KIND and name not in names):
            name, marker = yield from text_until(source, *_BEHIND_NAME, "\n")
            if marker is None:
                return Found.CUT if source.is_spent else Found.OTHER
            source.unread(len(marker))
        name = name.strip()
        return CallBegun(name) if is_name(name) else Found.OTHER


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
