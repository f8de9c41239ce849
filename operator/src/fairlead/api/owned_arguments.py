"""Arguments and environment variables of engines that are the operator's to say, for the table of `rules.py`: with
another port, name, key or model than it counts on, an engine would seem to load for ever, or answer as somebody else.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.api.cel import matches
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
    variables: tuple[str, ...] = ()
    """Environment variables that say the same, or close the engine to the operator."""
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


EVERY_ENGINES = ("FAIRLEAD_*", "POD_IP")
"""Environment variables that are the operator's whatever the engine is; `*` = anything."""
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
        variables=("VLLM_API_KEY",),
        abbreviates=True,
    ),
    _Owned(
        "llama.cpp",
        ("alias", "api-key", "api-key-file", "api-prefix", "host", "model", "port", "ssl-cert-file", "ssl-key-file"),
        _NAMES,
        short=("a", "m"),
        variables=(
            "LLAMA_API_KEY", "LLAMA_ARG_ALIAS", "LLAMA_ARG_API_PREFIX", "LLAMA_ARG_HOST", "LLAMA_ARG_MODEL",
            "LLAMA_ARG_PORT", "LLAMA_ARG_SSL_CERT_FILE", "LLAMA_ARG_SSL_KEY_FILE",
        ),
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
    pattern, other = owned.pattern, _is_other(owned)
    written = ", ".join((*(f"--{each}" for each in owned.flags), *(f"-{each}" for each in owned.short)))
    return Rule(
        f"{other} || !has(self.extraArgs) || !self.extraArgs.exists(each, each.matches('{pattern}'))",
        f"engine.extraArgs of type {owned.type} must have none of {written}, which the operator says: {owned.instead}",
    )


def _is_other(owned: _Owned) -> str:
    """CEL: this engine is of another type."""
    if owned.is_default:
        return f"(has(self.type) && self.type != '{owned.type}')"
    return f"!has(self.type) || self.type != '{owned.type}'"


def _variables_rule(owned: _Owned) -> Rule:
    pattern = _any_of(owned.variables)
    return Rule(
        f"{_is_other(owned)} || !has(self.env) || !self.env.exists(each, each.name.matches('{pattern}'))",
        f"engine.env of type {owned.type} must have none of {', '.join(owned.variables)}: gateway and operator would "
        "not reach the engine, or not find the model: leave it out",
    )


def _any_of(variables: tuple[str, ...]) -> str:
    """The pattern of their names."""
    return f"^({'|'.join(each.replace('*', '.*') for each in variables)})$"


def owned_variables(engine_type: str, pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Those of a template's pod that has the shape of one: where, and the name. The CRD has no rule for them."""
    own = next((each.variables for each in _OWNED if each.type == engine_type), ())
    pattern = _any_of(EVERY_ENGINES + own)
    for kind in ("containers", "initContainers"):
        for index, container in enumerate(pod.get(kind) or ()):
            for variable in container.get("env") or ():
                if matches(pattern, variable["name"]):
                    yield f"{kind}[{index}].env", variable["name"]


ENGINE = (*map(_rule, _OWNED), *(_variables_rule(each) for each in _OWNED if each.variables))
"""On `spec.engine`."""
_EVERY_PATTERN = _any_of(EVERY_ENGINES)
ENVIRONMENT_VARIABLE = (
    Rule(
        f"!self.name.matches('{_EVERY_PATTERN}')",
        f"engine.env must have none of {', '.join(EVERY_ENGINES)}, which the operator says: leave it out",
    ),
)
"""On each item of `spec.engine.env`."""
