"""The grammar of a whole answer: reasoning first, then text with calls, calls alone, or a structured output.

In llguidance's Lark. A marker that is a special token is named by id, as no text matches a special token.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fairlead_engine.api.answers.code_calls import Code
from fairlead_engine.api.answers.code_grammar import CodeGrammar
from fairlead_engine.api.answers.reasoning_formats import ReasoningFormat
from fairlead_engine.api.answers.tagged_calls import Tags, kinds_of
from fairlead_engine.api.answers.tool_format import CallShape

NamedId = Callable[[str], int | None]
"""Id of a text that grammars name by id (`Vocabulary.named_id`)."""
_MOST_COUNTED = 4096
"""Largest `maxLength` of a text that is enforced, in characters."""
_SHARED = ("$defs", "definitions", "x-guidance")
"""Keywords that apply to a schema's parts, too."""
_TEXT = r"TEXT: /(.|\n)*/"
_CHOSEN = {"{index}": "/[0-9]{1,4}/", "{id}": "/[A-Za-z0-9_-]{1,32}/"}
"""Expressions of what the model chooses before a call's arguments."""


class Lark:
    """Rules of a grammar, some shared within the request."""

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
        """A rule of any text up to and including the marker."""
        place = min((marker.index(each) for each in self._ids if each in marker), default=None)
        if place is None:
            return self.rule(f"{name}[lazy]", f"TEXT {self.literal(marker)}")
        text = "TEXT"  # no text goes on over a special token
        if place:
            text = self.rule(f"{name.upper()}_TEXT", rf"/(.|\n)*{_escaped(marker[:place])}/")
        return self.rule(name, f"{text} {self.literal(marker[place:])}")

    def nested(self, grammar: str) -> str:
        """Another grammar as it is."""
        if grammar.lstrip().startswith("{"):
            parts = json.loads(grammar)["grammars"]
        else:
            parts = [{"lark_grammar": grammar}]
        self._more += [{**parts[0], "name": "wanted"}, *parts[1:]]
        return "@wanted"

    def calls(self, shape: CallShape, functions: Sequence[tuple[str, dict[str, Any]]], *, are_many: bool) -> str:
        """A rule of one call or more, after the beginning of all calls. `functions`: names with schemas of parameters,
        which contain llguidance's options."""
        each = []
        for number, (name, parameters) in enumerate(functions):
            before = self._before(shape.before.replace("{name}", name))
            arguments = self._arguments(str(number), parameters, shape.tags)
            each.append(self.rule(f"call_{number}", f"{before} {arguments} {self.literal(shape.after)}"))
        one = self.rule("call", " | ".join(each))
        more = f"({self.literal(shape.between)} {one})*" if are_many and shape.between is not None else ""
        return self.rule("calls", f"{self.literal(shape.first)} {one} {more} {self.literal(shape.end)}")

    def _before(self, text: str) -> str:
        """An expression of a text with numbers and ids of the model's choice."""
        pieces = re.split("({index}|{id})", text)
        return " ".join(_CHOSEN.get(piece) or self.literal(piece) for piece in pieces if piece)

    def _arguments(self, number: str, schema: Mapping[str, Any], tags: Tags | Code | None) -> str:
        """A rule of a call's arguments."""
        if tags is None:
            return self.rule(f"arguments_{number}", "%json " + json.dumps(schema))
        if isinstance(tags, Code):
            return self.rule(f"arguments_{number}", CodeGrammar(self, tags, schema, number).arguments())
        properties, required = schema.get("properties") or {}, schema.get("required") or ()
        parts = []
        for place, (name, part) in enumerate(properties.items()):
            before = self.literal(tags.before(name, is_text="string" in kinds_of(part, schema)))
            each = self._tagged(f"{number}_{place}", before, part, schema, tags)
            parts.append(each if name in required else f"{each}?")
        if not properties and schema.get("additionalProperties") is not False:
            key = self.rule(f"KEY_{number}", "/[A-Za-z0-9_-]{1,64}/")
            before, _, behind = tags.before("\n\n", is_text=True).partition("\n\n")
            any_key = f"{self.literal(before)} {key} {self.literal(behind)}"
            parts = [self._tagged(number, any_key, {"type": "string"}, schema, tags) + "*"]
        return self.rule(f"arguments_{number}", " ".join(parts) or '""')

    def _tagged(self, number: str, before: str, part: Any, schema: Mapping[str, Any], tags: Tags) -> str:
        """A rule of one argument. A text is restricted by its `enum` and length alone."""
        end = self.literal(tags.padding + tags.value_end)
        if "string" not in kinds_of(part, schema):
            shared = {name: schema[name] for name in _SHARED if name in schema}
            part = {**shared, **part} if isinstance(part, dict) else part
            value = self.rule(f"value_{number}", "%json " + json.dumps(part)) + f" {end}"
        else:
            value = self.text_of(number, part, tags.padding + tags.value_end)
        return self.rule(f"argument_{number}", f"{before} {value} {self.literal(tags.gap)}")

    def text_of(self, number: str, part: Any, end: str) -> str:
        """An expression of a text that the schema `part` allows, and its end. `number`: unique in the grammar."""
        if isinstance(part, dict) and part.get("enum"):
            return "(" + " | ".join(self.literal(str(each)) for each in part["enum"]) + f") {self.literal(end)}"
        most = part.get("maxLength") if isinstance(part, dict) else None
        if not isinstance(most, int) or most > _MOST_COUNTED:
            return self.through(f"value_{number}", end)
        least = part.get("minLength")
        least = least if isinstance(least, int) and least <= most else 0
        return self.rule(f"VALUE_{number}", f"/(.|\\n){{{least},{most}}}/") + f" {self.literal(end)}"

    def calls_or_text(self, shape: CallShape, calls: str) -> str:
        """A rule of a text with optional calls behind it."""
        if not shape.begin:
            begin = re.escape(shape.first[:1] or "{")
            other = self.rule("OTHER", rf"/([^{begin} \t\r\n](.|\n)*)?/")
            return self.rule("body", f"{calls} | {other}")
        return self.rule("body", f"{self.through('before_calls', shape.begin)} {calls} | TEXT")

    def after_reasoning(self, reasoning: ReasoningFormat, body: str, *, has_begun: bool) -> str:
        """An expression of reasoning and then the rule `body`; without reasoning if the model wants none."""
        space = self.rule("SPACE", r"/[ \t\r\n]{0,8}/")
        thought = f"{self.through('reasoning', reasoning.end)} {space}"
        return f"{thought} {body}" if has_begun else f"({self.literal(reasoning.begin)} {thought})? {body}"


def _escaped(text: str) -> str:
    """A text as part of a regular expression in Lark."""
    return re.escape(text).replace("/", r"\/")
