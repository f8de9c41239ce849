"""How models write their reasoning: between two markers; the prompt may end with the first."""

from collections.abc import Collection
from typing import NamedTuple

from fairlead_engine.api.answers.answer_text import (
    AnswerSource,
    CallBegun,
    Content,
    Reading,
    Reasoning,
    is_begun,
    space,
    starts_with,
    until,
    without_begun,
)


class ReasoningFormat(NamedTuple):
    """Markers around reasoning."""

    begin: str
    end: str
    answer: tuple[tuple[str, str], ...] = ()
    """Tags around the answer behind, left out of the text."""
    tokens: tuple[str, ...] = ()
    """Special tokens that the markers consist of; empty = the markers."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (*(self.tokens or (self.begin, self.end)), *(tag for pair in self.answer for tag in pair))

    def read(
        self, source: AnswerSource, *, has_begun: bool, call: str | None = None, names: Collection[str] = ()
    ) -> Reading[bool]:
        """Reads the reasoning and the white space behind it; returns whether there was any. `has_begun`: the prompt
        ends with the first marker. `call`: the marker before calls. Unclosed reasoning ends with a call of one of
        `names`: models forget to close it."""
        if not has_begun:
            source.mark()
            yield from space(source)
            if (yield from starts_with(source, self.begin)) is None:
                if source.is_cut and is_begun(source, self.begin):
                    source.take(len(source.rest))
                else:
                    source.back()
                return False
            source.settle()
        yield from space(source)
        if not call:
            yield from until(source, (self.end,), Reasoning)
        elif (yield from until(source, (self.end, call), Reasoning)) == call:
            yield from self._or_call(source, call, names)
        yield from space(source)
        return True

    def _or_call(self, source: AnswerSource, call: str, names: Collection[str]) -> Reading[None]:
        """Behind the marker of a call: waits for the end of the reasoning, and the text is reasoning, or for the end of
        the answer, and the text is a call."""
        held = [call]

        def hold(text: str) -> Reasoning:
            held.append(text)
            return Reasoning("")

        end = yield from until(source, (self.end,), hold)
        text = "".join(held)
        if end is None and not source.is_cut and any(name in text for name in names):
            source.put_back(text)
        else:
            yield Reasoning(text)

    def without_end(self, reading: Reading[None], source: AnswerSource) -> Reading[None]:
        """An answer without reasoning, stripped of a stray end marker and following white space: clients saw no
        beginning of reasoning."""
        held, is_behind = "", False
        for part in reading:
            if isinstance(part, Content):
                text = held + part.text
                before, found, behind = text.partition(self.end)
                if found:
                    yield Content(before)
                    is_behind, text = True, behind
                if is_behind:
                    text = text.lstrip()
                    yield Content(text)
                    held = ""
                    if text:
                        yield from reading
                        return
                else:
                    shown = without_begun(text, self.end)
                    held = text[len(shown) :]
                    yield Content(shown)
                continue
            if isinstance(part, CallBegun) and held:
                yield Content(held)
                held = ""
            yield part
        if held and not source.is_cut:
            yield Content(held)

    def without_tags(self, reading: Reading[None], source: AnswerSource) -> Reading[None]:
        """An answer without the tags around its text, and white space within them."""
        stripper = _TagStripper(self.answer)
        for part in reading:
            if isinstance(part, Content):
                yield Content(stripper.push(part.text))
                continue
            if isinstance(part, CallBegun):
                yield Content(stripper.rest(is_cut=False).rstrip())
            yield part
        yield Content(stripper.rest(is_cut=source.is_cut))


class _TagStripper:
    """A growing text without the tags around it."""

    def __init__(self, tags: tuple[tuple[str, str], ...]) -> None:
        self._tags = tags
        self._held = ""
        self._end: str | None = None
        """Tag behind the text; None = not known, empty = none."""
        self._is_blank = False
        """Whether the next text follows a tag: its white space belongs to the tag."""

    def push(self, text: str) -> str:
        """More of the text, as far as known."""
        text, self._held = self._held + text, ""
        if self._end is None:
            text = self._without_begin(text)
            if self._end is None:
                return ""
        before, found, behind = text.partition(self._end) if self._end else (text, "", "")
        before = self._behind_tag(before)
        if found:
            self._end, self._is_blank = "", True
            return before.rstrip() + self._behind_tag(behind)
        if not self._end:
            return before
        shown = without_begun(before, self._end).rstrip()
        self._held = before[len(shown) :]
        return shown

    def rest(self, *, is_cut: bool) -> str:
        """The text that was held back, at the end."""
        text, self._held = self._held, ""
        return without_begun(text, *(tag for pair in self._tags for tag in pair)) if is_cut else text

    def _without_begin(self, text: str) -> str:
        stripped = text.lstrip()
        for begin, end in self._tags:
            if stripped.startswith(begin):
                self._end, self._is_blank = end, True
                return stripped.removeprefix(begin)
        if any(begin.startswith(stripped) for begin, _ in self._tags):
            self._held = text
        else:
            self._end = ""
        return text

    def _behind_tag(self, text: str) -> str:
        if self._is_blank:
            text = text.lstrip()
            self._is_blank = not text
        return text


_THINK = ReasoningFormat("<think>", "</think>")
REASONING_FORMATS = {
    "think": _THINK,
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
    "seed_oss": ReasoningFormat("<seed:think>", "</seed:think>"),
    "granite": _THINK._replace(answer=(("<response>", "</response>"),)),
    "hunyuan_a13b": _THINK._replace(answer=(("<answer>", "</answer>"),)),
    "hy_v3": ReasoningFormat("<think:opensource>", "</think:opensource>"),
    "cohere_command3": ReasoningFormat(
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        (("<|START_RESPONSE|>", "<|END_RESPONSE|>"), ("<|START_TEXT|>", "<|END_TEXT|>")),
    ),
    "gemma4": ReasoningFormat("<|channel>thought", "<channel|>", tokens=("<|channel>", "<channel|>")),
    "minimax_m3": ReasoningFormat("<mm:think>", "</mm:think>"),
    "solar_open": ReasoningFormat(
        "<|think|>",
        "<|end|><|begin|>assistant",
        (("<|content|>", "<|end|>"),),
        ("<|think|>", "<|end|>", "<|begin|>"),
    ),
}
"""By the name of `--reasoning-parser`."""
