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

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.begin, self.end)

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


REASONING_FORMATS = {
    "think": ReasoningFormat("<think>", "</think>"),
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
}
"""By the name of `--reasoning-parser`."""
