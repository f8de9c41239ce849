"""Arguments of engines that are the operator's to say, for the table of `rules.py`: with another port, name or model
than it counts on, an engine would seem to load for ever, or answer as somebody else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.api.decoding import matches
from fairlead.api.schema import Rule

_SHORTEST = 2
"""Letters of an abbreviation; parsers that know any take those that begin no other flag."""


@dataclass(frozen=True, slots=True)
class _Owned:
    """What a kind of engine is told by the operator alone."""

    type: str
    """As `engine.type` names it."""
    flags: tuple[str, ...]
    instead: str
    """What to write instead."""
    short: tuple[str, ...] = ()
    """With one dash."""
    abbreviates: bool = False
    """Whether its parser takes the beginning of a flag, and underscores, for it."""
    is_default: bool = False

    @property
    def pattern(self) -> str:
        """Of an argument that is one of them, with its value or without."""
        flags = [_beginnings(each) if self.abbreviates else each for each in self.flags]
        short = f"|-({'|'.join(self.short)})" if self.short else ""
        return f"(?s)^(--({'|'.join(flags)}){short})([.=].*)?$"


def _beginnings(flag: str) -> str:
    """Of a flag and what is short for it, with dashes or underscores."""
    letters = ["[-_]" if each == "-" else each for each in flag]
    rest = ""
    for letter in reversed(letters[_SHORTEST:]):
        rest = f"({letter}{rest})?"
    return "".join(letters[:_SHORTEST]) + rest


_NAMES = "write model.source and model.servedName"
_OWNED = (
    _Owned(
        "Fairlead",
        ("adapter-folder", "config", "drain-timeout", "host", "model", "port", "served-name"),
        f"{_NAMES}, adapters and drain.timeout",
        is_default=True,
    ),
    _Owned(
        "vLLM",
        ("api-key", "config", "host", "kv-events-config", "model", "port", "root-path", "served-model-name",
         "ssl-certfile", "ssl-keyfile", "uds"),
        _NAMES,
        abbreviates=True,
    ),
    _Owned(
        "llama.cpp",
        ("alias", "api-key", "api-key-file", "api-prefix", "host", "model", "port", "ssl-cert-file", "ssl-key-file"),
        _NAMES,
        short=("a", "m"),
    ),
    _Owned(
        "SGLang",
        ("api-key", "config", "host", "kv-events-config", "model", "model-path", "port", "served-model-name",
         "ssl-certfile", "ssl-keyfile"),
        _NAMES,
        abbreviates=True,
    ),
)  # fmt: skip


def _rule(owned: _Owned) -> Rule:
    pattern = owned.pattern
    other = f"(has(self.type) && self.type != '{owned.type}')"
    if not owned.is_default:
        other = f"!has(self.type) || self.type != '{owned.type}'"

    def holds(engine: Mapping[str, Any]) -> bool:
        is_other = (engine.get("type") or "Fairlead") != owned.type
        return is_other or not any(matches(pattern, each) for each in engine.get("extraArgs") or ())

    written = ", ".join((*(f"--{each}" for each in owned.flags), *(f"-{each}" for each in owned.short)))
    return Rule(
        f"{other} || !has(self.extraArgs) || !self.extraArgs.exists(each, each.matches('{pattern}'))",
        holds,
        f"engine.extraArgs of type {owned.type} must have none of {written}, which the operator says: {owned.instead}",
    )


ENGINE = tuple(map(_rule, _OWNED))
"""On `spec.engine`."""
