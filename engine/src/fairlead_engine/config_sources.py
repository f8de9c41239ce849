"""Where settings come from: command-line flags over a YAML or JSON file over the defaults.

Names are the fields of `EngineConfig` and `ServerConfig` in kebab-case, the same on the command line and in the file.
An unknown key or a value of the wrong type is a `ConfigError` that names it and, for a likely typo, what was meant.
"""

import argparse
import ast
import difflib
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from fairlead_engine.config import EngineConfig, ServerConfig
from fairlead_engine.errors import ConfigError

_KINDS: tuple[type, ...] = (EngineConfig, ServerConfig)
_BYTE_UNITS = {"": 1, "k": 1000, "M": 1000**2, "G": 1000**3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_TIME_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNITS: dict[str, Mapping[str, float]] = {
    "kv_cache_memory": _BYTE_UNITS,
    "max_body_bytes": _BYTE_UNITS,
    "max_partial_body_bytes": _BYTE_UNITS,
    "body_timeout": _TIME_UNITS,
    "drain_grace": _TIME_UNITS,
    "drain_timeout": _TIME_UNITS,
    "max_queue_time": _TIME_UNITS,
    "step_timeout": _TIME_UNITS,
}
"""Fields that may be written with a unit, and the units they take."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag per setting, and `--config`. A flag that is not given leaves no trace: the file's value stands."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="YAML or JSON file with the same settings, without the dashes in front; flags override it",
    )
    for kind in _KINDS:
        group = parser.add_argument_group(f"{kind.__name__.removesuffix('Config').lower()} settings")
        defaults = {field.name: field.default for field in fields(kind)}
        for name, annotation in typing.get_type_hints(kind).items():
            flag, default = f"--{_kebab(name)}", defaults[name]
            shown = f" (default: {default})" if isinstance(default, int | float | str) else ""
            text = (docstrings(kind)[name] + shown).replace("%", "%%")  # as argparse wants it
            if annotation is bool:
                group.add_argument(flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text)
            else:
                value = (typing.get_args(annotation) or (annotation,))[0]
                metavar = {int: "N", float: "NUMBER", str: "TEXT"}[value]
                group.add_argument(flag, default=argparse.SUPPRESS, metavar=metavar, help=text)


def from_arguments(arguments: argparse.Namespace) -> tuple[EngineConfig, ServerConfig]:
    """The settings of parsed flags and of the file they name. Raises `ConfigError`."""
    settings = read_file(arguments.config) if arguments.config else {}
    given = {name: getattr(arguments, name) for kind in _KINDS for name in _names(kind) if hasattr(arguments, name)}
    return from_settings({**settings, **given})


def from_settings(settings: Mapping[str, Any]) -> tuple[EngineConfig, ServerConfig]:
    """The settings of a mapping by snake_case field name; text is read as the field's type. Raises `ConfigError`."""
    if "model" not in settings:
        raise ConfigError("model", "is not given", "pass --model FOLDER, --model demo://dinghy or a --config with it")
    kinds = {name: hint for kind in _KINDS for name, hint in typing.get_type_hints(kind).items()}
    values = {name: _converted(name, value, kinds[name]) for name, value in settings.items()}
    engine, server = ({name: values[name] for name in _names(kind) if name in values} for kind in _KINDS)
    return EngineConfig(**engine), ServerConfig(**server)


def read_file(path: Path) -> dict[str, Any]:
    """The settings in a YAML or JSON file, by snake_case field name. Raises `ConfigError`, naming the key."""
    import yaml  # only where a file is given: the command line alone starts without it

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("config", f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError("config", f"{path} is neither YAML nor JSON: {error}") from error
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError("config", f"{path} must hold a mapping of settings, not a {type(content).__name__}")
    known = {_kebab(name): name for kind in _KINDS for name in _names(kind)}
    for key in content:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known settings: {', '.join(known)}"
            raise ConfigError(str(key), f"unknown setting in {path}", hint)
    return {known[key]: value for key, value in content.items()}


def _converted(name: str, value: Any, annotation: Any) -> Any:
    """`value` as its field's type. Text stands for any type, as flags and environment-filled files give it."""
    optional = isinstance(annotation, types.UnionType)
    if value is None or value == "null":
        if optional:
            return None
        raise ConfigError(name, "must have a value")
    wanted = next(part for part in typing.get_args(annotation) if part is not type(None)) if optional else annotation
    if isinstance(value, str) and wanted is not str:
        return _from_text(name, value, wanted)
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise ConfigError(name, f"must be {_article(wanted)}, not {value!r}")
    return value


def _from_text(name: str, text: str, wanted: type) -> Any:
    try:
        if wanted is bool:
            return {"true": True, "false": False}[text.lower()]
        if name in _UNITS:
            units = _UNITS[name]
            number = text.rstrip("".join({letter for unit in units for letter in unit}))
            return wanted(float(number) * units[text[len(number) :].strip()])
        return wanted(text)
    except (ValueError, KeyError, OverflowError):
        known = ", ".join(unit for unit in _UNITS.get(name, ()) if unit)
        hint = f"a number may be followed by one of {known}" if known else None
        raise ConfigError(name, f"must be {_article(wanted)}, not {text!r}", hint) from None


def _article(wanted: type) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[wanted]


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


@cache
def docstrings(kind: type) -> dict[str, str]:
    """The docstring below each field of a settings class: the one text that `--help` and the documentation show."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    body = typing.cast(ast.ClassDef, tree.body[0]).body
    found = {}
    for statement, after in itertools.pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = after.value if isinstance(after, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                found[statement.target.id] = " ".join(text.value.split())
    return found
