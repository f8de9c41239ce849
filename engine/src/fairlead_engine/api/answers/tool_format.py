"""A way to write calls of tools: what grammars and readers of answers know of a format."""

import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import NamedTuple

from fairlead_engine.api.answers.answer_text import AnswerSource, Reading
from fairlead_engine.api.answers.code_calls import Code
from fairlead_engine.api.answers.reasoning_formats import ReasoningFormat
from fairlead_engine.api.answers.tagged_calls import Tags

_LETTERS = string.ascii_letters + string.digits


class CallShape(NamedTuple):
    """How calls are written where they must be: for grammars. `{name}` stands for the function's name, `{index}` for a
    number and `{id}` for an id of the model's choice."""

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
    tags: Tags | Code | None = None
    """Tags around arguments, or the syntax of arguments in code; None = arguments are JSON."""


class ToolFormat(ABC):
    """A way to write calls."""

    markers: tuple[str, ...] = ()
    """Special tokens of the format: text to its reader, hidden from clients."""
    shape: CallShape
    block: tuple[str, str] | None = None
    """Tokens around all calls; None = the format has none."""
    answer: str | None = None
    """Prefix of a text, for formats of all answers, with or without tools; None = no prefix."""
    thought: ReasoningFormat | None = None
    """Format of the reasoning; None = not part of this format."""
    signs: tuple[str, ...] = ()
    """Texts of templates whose models write this format, whatever the templates make of earlier calls."""
    is_forced = False
    """Whether only a grammar makes a model write this format, so that calls must be required."""
    id_length = 24
    """Characters of a call's id behind its prefix."""
    id_prefix = "call_"

    def __init__(self, template: str | None = None) -> None:  # noqa: B027 - most formats have one variant
        """`template`: shows the model's variant of the format."""

    @abstractmethod
    def read(self, source: AnswerSource, names: Collection[str]) -> Reading[None]:
        """Reads an answer's text and calls. `names`: the available functions, as a mapping with the schemas of their
        parameters."""

    def new_id(self) -> str:
        """An id for a call whose model wrote none."""
        return self.id_prefix + "".join(secrets.choice(_LETTERS) for _ in range(self.id_length))
