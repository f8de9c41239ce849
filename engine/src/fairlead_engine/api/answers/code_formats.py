"""Formats with calls as code. Sources: the chat templates of the named models."""

from collections.abc import Collection

from fairlead_engine.api.answers.answer_text import (
    AnswerSource,
    Content,
    Reading,
    left_out,
    space,
    starts_with,
    until,
)
from fairlead_engine.api.answers.calls import Found, first_call
from fairlead_engine.api.answers.code_calls import PYTHON, Code, code_call
from fairlead_engine.api.answers.object_formats import Llama3
from fairlead_engine.api.answers.tool_format import CallShape, ToolFormat


class Coded(ToolFormat):
    """Formats with calls as code, one or several, between two markers."""

    begin: str
    end: str
    code: Code = PYTHON

    def read(self, source: AnswerSource, names: Collection[str]) -> Reading[None]:
        while (yield from until(source, (self.begin,), Content)) is not None:
            if (yield from code_calls(source, self.code, self.begin)) is Found.CALL:
                yield from self._end(source)

    def _end(self, source: AnswerSource) -> Reading[None]:
        if (yield from starts_with(source, self.end)) is None:
            yield from left_out(source, self.end, self.begin)
            if (yield from until(source, (self.end, self.begin), Content)) == self.begin:  # models forget the end
                source.unread(len(self.begin))
        yield from space(source)


def code_calls(source: AnswerSource, code: Code, begin: str, names: Collection[str] | None = None) -> Reading[Found]:
    """Reads calls behind the marker `begin`, as a list or a sequence. Without a call the marker is text."""
    found = first = yield from first_call(source, begin, code_call(source, code, names))
    while found is Found.CALL:
        while (yield from space(source)) in _BETWEEN:
            source.take(1)
        if not source.rest[:1].isalpha():
            break
        found = yield from code_call(source, code, names)
    return first


_BETWEEN = (",", ";", "]")


class Lfm2(Coded):
    """LFM2: a list between `<|tool_call_start|>` and `<|tool_call_end|>`."""

    begin, end = "<|tool_call_start|>", "<|tool_call_end|>"
    block = begin, end
    markers = (begin, end)
    shape = CallShape(begin, "{name}(", ")", ", ", "[", "]" + end, tags=PYTHON)


class Olmo3(Coded):
    """Olmo 3: a call a line between `<function_calls>` and `</function_calls>`."""

    begin, end = "<function_calls>", "</function_calls>"
    block = begin, end
    markers = (begin, end)
    shape = CallShape(begin, "{name}(", ")", "\n", "", end, tags=PYTHON)


class Gemma4(Coded):
    """Gemma 4, and FunctionGemma with other markers: `call:NAME{…}` and texts in a quote of their own."""

    def __init__(self, template: str | None = None) -> None:
        is_older = template is not None and "<start_function_call>" in template
        self.begin, self.end, quote = _OLDER_GEMMA if is_older else _GEMMA
        self.block = self.begin, self.end
        self.markers = (self.begin, self.end, quote)
        self.code = Code("call:", "{", "}", ":", ",", (quote,), escapes=False)
        self.shape = CallShape(self.begin, "call:{name}{", "}" + self.end, self.begin, tags=self.code)


_GEMMA = ("<|tool_call>", "<tool_call|>", '<|"|>')
_OLDER_GEMMA = ("<start_function_call>", "<end_function_call>", "<escape>")


class Pythonic(Llama3):
    """Llama 4 and others that were told to: a list of calls as code, `[f(a=1), g()]`, or Llama 3's objects."""

    begins = ("<|python_start|>", "<|python_end|>", "<|python_tag|>")
    markers = begins

    def __init__(self, template: str | None = None) -> None:
        if template is None or '"parameters": ' not in template:
            self.shape = CallShape("", "{name}(", ")", ", ", "[", "]", tags=PYTHON)

    def read(self, source: AnswerSource, names: Collection[str]) -> Reading[None]:
        lists = tuple(f"[{name}(" for name in names)
        marker: str | None = ""
        while marker is not None:
            if marker in lists:
                source.unread(len(marker))
                yield from code_calls(source, PYTHON, "", names)
            else:
                yield from self._calls(source, names)
            marker = yield from until(source, (*lists, *self.begins), Content)
