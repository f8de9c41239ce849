"""A sequence's outputs, made text by a `Detokenizer` → text, reasoning and calls."""

from collections.abc import Collection
from functools import partial

from fairlead_engine.api.answers.answer_formats import AnswerFormats
from fairlead_engine.api.answers.answer_text import (
    AnswerSource,
    CallArguments,
    CallBegun,
    CallCut,
    CallEnded,
    Content,
    Reading,
    Reasoning,
    until,
)
from fairlead_engine.api.answers.tool_format import ToolFormat
from fairlead_engine.api.detokenizer import CallDelta, Detokenizer, TextDelta
from fairlead_engine.types import FinishReason, SequenceOutput

_NOTHING = CallArguments("")


class AnswerReader:
    """Reader of one sequence with reasoning or calls beside text."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        formats: AnswerFormats,
        names: Collection[str],
        *,
        has_begun_reasoning: bool = False,
        most_calls: int | None = None,
    ) -> None:
        """`names`: the functions that may be called. `most_calls`: later calls are left out; None = no bound."""
        self._detokenizer = detokenizer
        self._formats = formats
        self._most_calls = most_calls
        self._source = AnswerSource()
        self._reading = _read(self._source, formats, names, has_begun_reasoning)
        self._num_calls = self._num_whole = 0
        self._is_cut = False
        """Whether the answer ends in an incomplete call."""
        self._held = ""
        """White space that is text only if more text comes."""

    @property
    def num_tokens(self) -> int:
        """Output tokens so far."""
        return self._detokenizer.num_tokens

    @property
    def num_calls(self) -> int:
        """Calls that have begun, so far."""
        return self._num_calls if self._most_calls is None else min(self._num_calls, self._most_calls)

    def push(self, output: SequenceOutput) -> TextDelta:
        delta = self._detokenizer.push(output)
        self._source.add(delta.text)
        self._source.is_over = delta.finish_reason is not None
        self._source.is_cut = self._source.is_over and (
            delta.finish_reason is not FinishReason.STOP or delta.stop_reason is not None
        )
        text, reasoning, calls, num_reasoning = "", "", list[CallDelta](), 0
        for part in iter(partial(next, self._reading, None), None):  # parts readable so far
            match part:
                case Content():
                    text += self._shown(part.text)
                    self._detokenizer.take_begun(self._source.num_read)
                case Reasoning():
                    reasoning += part.text
                    num_reasoning += self._num_tokens_of(part.text)
                case CallBegun() | CallArguments():
                    self._held = ""
                    self._add(calls, part)
                case CallEnded():
                    self._num_whole += self._is_told
                case CallCut():
                    self._held = ""
                    self._is_cut = self._num_calls != self._most_calls and self._is_told
        finish_reason = delta.finish_reason
        if finish_reason is not None and not self._num_calls:
            text += self._held
        are_whole = self._num_whole == self.num_calls and not self._is_cut
        if finish_reason is FinishReason.STOP and self.num_calls and are_whole:
            finish_reason = FinishReason.TOOL_CALLS
        return TextDelta(
            text, delta.token_ids, delta.logprobs, delta.prompt_logprobs, finish_reason, delta.stop_reason, reasoning,
            calls, num_reasoning,
        )  # fmt: skip

    def _num_tokens_of(self, text: str) -> int:
        """Tokens that begin in `text`, which was read last."""
        if not text:
            return 0
        place = self._source.num_read
        self._detokenizer.take_begun(place - len(text))
        return self._detokenizer.take_begun(place)

    @property
    def _is_told(self) -> bool:
        """Whether clients are told of the last call."""
        return self._most_calls is None or self._num_calls <= self._most_calls

    def _shown(self, text: str) -> str:
        if self._formats.tools is None:
            return text
        text = self._held + text
        shown = text.rstrip()
        self._held = text[len(shown) :]
        return shown

    def _add(self, calls: list[CallDelta], part: CallBegun | CallArguments) -> None:
        if isinstance(part, CallBegun):
            self._num_calls += 1
        if not self._is_told or part == _NOTHING:
            return
        index = self._num_calls - 1
        if isinstance(part, CallBegun):
            tools = self._formats.tools
            assert tools is not None
            calls.append(CallDelta(index, "", part.id or tools.new_id(), part.name))
        elif calls and calls[-1].index == index:
            calls[-1] = CallDelta(index, calls[-1].arguments + part.text, calls[-1].id, calls[-1].name)
        else:
            calls.append(CallDelta(index, part.text))


def _read(
    source: AnswerSource, formats: AnswerFormats, names: Collection[str], has_begun_reasoning: bool
) -> Reading[None]:
    tools, reasoning = formats.tools, formats.reasoning
    answer = _answer(source, tools, names)
    if reasoning is None:
        yield from answer
        return
    call = None if tools is None else tools.shape.begin
    has_reasoned = yield from reasoning.read(source, has_begun=has_begun_reasoning, call=call, names=names)
    answer = answer if has_reasoned else reasoning.without_end(answer, source)
    yield from reasoning.without_tags(answer, source) if reasoning.answer else answer


def _answer(source: AnswerSource, tools: ToolFormat | None, names: Collection[str]) -> Reading[None]:
    if tools is not None:
        yield from tools.read(source, names)
    yield from until(source, (), Content)
