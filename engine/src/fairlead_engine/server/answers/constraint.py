"""The grammar of a whole answer: reasoning first, then text with calls, calls alone, or what the request wants kept to.

In Lark as llguidance has it. A marker that is a special token of the model is named by its id, as no text matches it.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from fairlead_engine.server.answers.reasoning_formats import ReasoningFormat
from fairlead_engine.server.answers.tool_formats import CallShape

NamedId = Callable[[str], int | None]
"""The id of a text that grammars name by it (`Vocabulary.named_id`)."""
_TEXT = r"TEXT: /(.|\n)*/"


class Function(NamedTuple):
    """A tool that may be called."""

    name: str
    parameters: dict[str, Any]
    """A JSON schema, with llguidance's options in it."""


class Lark:
    """Rules of a grammar, some of which stand in others of the same request."""

    def __init__(self, named_id: NamedId, markers: Iterable[str]) -> None:
        self._ids = {marker: token_id for marker in markers if (token_id := named_id(marker)) is not None}
        self._rules = [_TEXT]
        self._more: list[dict[str, Any]] = []

    def text(self, start: str) -> str:
        """The whole grammar, which begins with the expression `start`."""
        lark = "\n".join(["%llguidance {}", f"start: {start}", *self._rules])
        return json.dumps({"grammars": [{"name": "answer", "lark_grammar": lark}, *self._more]})

    def rule(self, name: str, expression: str) -> str:
        self._rules.append(f"{name}: {expression}")
        return name.partition("[")[0]

    def literal(self, text: str) -> str:
        """An expression of exactly this text."""
        pattern = "|".join(map(re.escape, self._ids))
        pieces = re.split(f"({pattern})", text) if pattern else [text]
        found = [f"<[{self._ids[piece]}]>" if piece in self._ids else json.dumps(piece) for piece in pieces if piece]
        return " ".join(found)

    def through(self, name: str, marker: str) -> str:
        """A rule of any text up to the marker, and of that."""
        literal = self.literal(marker)  # no text goes on over a special token
        return self.rule(name if literal.startswith("<[") else f"{name}[lazy]", f"TEXT {literal}")

    def nested(self, grammar: str) -> str:
        """Another grammar as it is."""
        if grammar.lstrip().startswith("{"):
            parts = json.loads(grammar)["grammars"]
        else:
            parts = [{"lark_grammar": grammar}]
        self._more += [{**parts[0], "name": "wanted"}, *parts[1:]]
        return "@wanted"

    def calls(self, shape: CallShape, functions: Sequence[Function], *, are_many: bool) -> str:
        """A rule of one call or more, behind what they begin with."""
        each = []
        for number, function in enumerate(functions):
            before = self.literal(shape.before.replace("{name}", function.name))
            arguments = self.rule(f"arguments_{number}", "%json " + json.dumps(function.parameters))
            each.append(self.rule(f"call_{number}", f"{before} {arguments} {self.literal(shape.after)}"))
        one = self.rule("call", " | ".join(each))
        more = f"({self.literal(shape.between)} {one})*" if are_many and shape.between is not None else ""
        return self.rule("calls", f"{self.literal(shape.first)} {one} {more} {self.literal(shape.end)}")

    def calls_or_text(self, shape: CallShape, calls: str) -> str:
        """A rule of a text, behind which there may be calls."""
        if not shape.begin:
            other = self.rule("OTHER", r"/([^{ \t\r\n](.|\n)*)?/")
            return self.rule("body", f"{calls} | {other}")
        return self.rule("body", f"{self.through('before_calls', shape.begin)} {calls} | TEXT")

    def after_reasoning(self, reasoning: ReasoningFormat, body: str, *, has_begun: bool) -> str:
        """An expression of reasoning and then the rule `body`; without reasoning if the model wants none."""
        space = self.rule("SPACE", r"/[ \t\r\n]{0,8}/")
        thought = f"{self.through('reasoning', reasoning.end)} {space}"
        return f"{thought} {body}" if has_begun else f"({self.literal(reasoning.begin)} {thought})? {body}"
