"""Formats with calls as JSON objects: `{"name": …, "arguments": {…}}`.

Sources: the chat templates of the named models.
"""

from collections.abc import Collection

from fairlead_engine.api.answers.answer_text import AnswerSource, Content, Reading, left_out, space, starts_with, until
from fairlead_engine.api.answers.calls import Found, call_object, call_objects
from fairlead_engine.api.answers.tool_format import CallShape, ToolFormat


class Objects(ToolFormat):
    """Formats with calls as objects, one or a list or a sequence, between two markers."""

    begins: tuple[str, ...]
    """Any begins calls."""
    end: str
    """Empty = the end of the objects."""

    def read(self, source: AnswerSource, names: Collection[str]) -> Reading[None]:
        while (begin := (yield from until(source, self.begins, Content))) is not None:
            if (yield from call_objects(source, begin)) is Found.CALL:
                yield from self._end(source)

    def _end(self, source: AnswerSource) -> Reading[None]:
        yield from space(source)
        if self.end and (yield from starts_with(source, self.end)) is None:
            yield from left_out(source, self.end, *self.begins)
            if (marker := (yield from until(source, (self.end, *self.begins), Content))) in self.begins:
                source.unread(len(marker or ""))  # models forget the end
        yield from space(source)


class Hermes(Objects):
    """Hermes 2 and 3, Qwen2.5 and Qwen3, Granite 4 and ERNIE 4.5: `<tool_call>` and `</tool_call>` around each call as
    an object."""

    begin, end = "<tool_call>", "</tool_call>"
    begins = (begin,)
    block = begin, end
    markers = (begin, end)
    shape = CallShape(begin, '\n{"name": "{name}", "arguments": ', "}\n" + end, "\n" + begin)


class Instructed(Hermes):
    """The same by models whose chat template has no place for tools, and which are told of tools in a message."""


class ListedObjects(Objects):
    """Formats with calls as one list of objects."""

    def __init__(self, template: str | None = None) -> None:
        begin = next((each for each in self.begins if template is not None and each in template), self.begins[0])
        end = self.end if begin == self.begins[0] else ""
        first = "" if begin.endswith("[") else "["
        self.shape = CallShape(begin, '{"name": "{name}", "arguments": ', "}", ", ", first, "]" + end)


class Hunyuan(ListedObjects):
    """Hunyuan A13B, Jamba, Apriel and MiniMax-M1: `<tool_calls>` and `</tool_calls>` around all calls."""

    begins, end = ("<tool_calls>",), "</tool_calls>"
    block = begins[0], end
    markers = (*begins, end)


class Nemotron(ListedObjects):
    """Nemotron Nano 2 and Llama Nemotron: `<TOOLCALL>` and `</TOOLCALL>` around all calls."""

    begins, end = ("<TOOLCALL>",), "</TOOLCALL>"
    block = begins[0], end
    markers = (*begins, end)


class Phi4(ListedObjects):
    """Phi-4-mini: `<|tool_call|>` and `<|/tool_call|>` around all calls, or `functools[` and `]`."""

    begins, end = ("<|tool_call|>", "functools["), "<|/tool_call|>"
    signs = ("functools[", "<|/tool_call|>")
    markers = (begins[0], end)


class Granite(ListedObjects):
    """Granite 3: `<|tool_call|>`, or `<tool_call>`, before all calls."""

    begins, end = ("<|tool_call|>", "<tool_call>"), ""
    signs = ("respond only with <|tool_call|>",)
    markers = begins


class GigaChat(Objects):
    """GigaChat 3 and 3.1: a marker, or a message's header, before a call."""

    begins, end = ("<|function_call|>", "function call<|role_sep|>"), ""
    markers = (begins[0], "<|role_sep|>")

    def __init__(self, template: str | None = None) -> None:
        begin = self.begins[template is not None and self.begins[0] not in template]
        self.shape = CallShape(begin, '{"name": "{name}", "arguments": ', "}", None)


class CohereCommand(Objects):
    """Command A and R7B: `<|START_ACTION|>` and `<|END_ACTION|>` around all calls."""

    begins, end = ("<|START_ACTION|>",), "<|END_ACTION|>"
    block = begins[0], end
    markers = (*begins, end)
    shape = CallShape(
        begins[0],
        '    {"tool_call_id": "{index}", "tool_name": "{name}", "parameters": ',
        "}",
        ",\n",
        "[\n",
        "\n]" + end,
    )


class Forced(ToolFormat):
    """A list of objects, by models whose own format is not known."""

    shape = CallShape("", '{"name": "{name}", "arguments": ', "}", ", ", "[", "]")
    is_forced = True

    def read(self, source: AnswerSource, names: Collection[str]) -> Reading[None]:
        yield from call_objects(source, "")


class Llama3(ToolFormat):
    """Llama 3.1 to 3.3: the answer is one call or several as objects, with or without `<|python_tag|>`. Between calls
    stands `;` by training; a comma, a line's end, another `<|python_tag|>` and nothing are as clear."""

    begins: tuple[str, ...] = ("<|python_tag|>",)
    markers = begins
    shape = CallShape("", '{"name": "{name}", "parameters": ', "}", "; ")

    def read(self, source: AnswerSource, names: Collection[str]) -> Reading[None]:
        found = yield from self._calls(source, names)
        while found is Found.OTHER and (yield from until(source, self.begins, Content)) is not None:
            found = yield from self._calls(source, names)
        yield from until(source, (), Content)

    def _calls(self, source: AnswerSource, names: Collection[str]) -> Reading[Found]:
        while (yield from starts_with(source, *self.begins)) is not None:
            pass
        found = first = yield from call_object(source, names)
        while found is Found.CALL:
            if (yield from space(source)) in (";", ","):
                source.take(1)
                yield from space(source)
            if (yield from starts_with(source, *self.begins)) is None:
                yield from left_out(source, *self.begins)
            found = yield from call_object(source, names)
        return first
