"""How models write what they think before they answer: between two markers; the prompt may end with the first."""

from typing import NamedTuple

from fairlead_engine.server.answers.answer_text import Source, is_begun, space, starts_with, until
from fairlead_engine.server.answers.parts import Reading, Reasoning


class ReasoningFormat(NamedTuple):
    """The two markers."""

    begin: str
    end: str

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.begin, self.end)

    def read(self, source: Source, *, has_begun: bool) -> Reading[None]:
        """Reads the reasoning, if there is any, and the white space behind it. `has_begun`: the prompt ends with its
        first marker."""
        if not has_begun:
            source.mark()
            yield from space(source)
            if (yield from starts_with(source, self.begin)) is None:
                if source.is_cut and is_begun(source, self.begin):
                    source.take(len(source.rest))
                else:
                    source.back()
                return
            source.settle()
        yield from space(source)
        yield from until(source, (self.end,), Reasoning)
        yield from space(source)


REASONING_FORMATS = {
    "think": ReasoningFormat("<think>", "</think>"),
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
}
"""By the name of `--reasoning-parser`."""
