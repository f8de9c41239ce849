"""Settings of a program as flags and as a file: every field of its settings classes by its name in kebab-case.

Settings are frozen dataclasses with a docstring per field (`docstrings` reads them for `--help`, the CRD and
`docs/reference/`); units are part of the type (`Annotated[float, SECONDS]`). A wrong value is a `SettingError` with the
name of the setting and, for a likely typo, the probable name. Knows the settings of no program, and imports nothing of
ours.
"""

import argparse
import ast
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any


@cache
def docstrings(cls: type) -> dict[str, str]:
    """Field or member → the string below it, on one line. Empty where Python was installed without sources."""
    try:
        source = inspect.getsource(cls)
    except OSError:
        return {}
    (definition,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for statement, following in pairwise(definition.body):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = " ".join(text.split())
    return texts


@dataclass(frozen=True)
class Units:
    """Suffixes of a number, and the factor of each."""

    factors: tuple[tuple[str, float], ...]


BYTES = Units((("k", 1e3), ("M", 1e6), ("G", 1e9), ("Ki", 2**10), ("Mi", 2**20), ("Gi", 2**30), ("Ti", 2**40)))
SECONDS = Units((("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86400.0)))
_PART = re.compile(r"([0-9.]+)([A-Za-z]+)")
"""Parts of a sum, as in the duration 1h30m."""
_ARTICLES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_INT64 = 2**63
"""Bound of numbers: larger and infinite numbers cannot be sent to other processes."""
_METAVARS = {int: "N", float: "NUMBER", str: "TEXT"}


class SettingError(ValueError):
    """A setting is unknown or its value cannot be read. `field`: its name as Python knows it."""

    def __init__(self, field: str, message: str, hint: str | None = None) -> None:
        self.field = field
        self.message = message
        self.hint = hint
        super().__init__(f"{flag(field)} {message}" + (f"; {hint}" if hint else ""))


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a settings class."""

    name: str
    type: type
    is_optional: bool
    """Whether there may be no value: `null`."""
    units: Units | None
    default: Any
    text: str


def settings_of(cls: type) -> Iterator[Setting]:
    """The fields of a settings class."""
    hints, texts = typing.get_type_hints(cls, include_extras=True), docstrings(cls)
    for field in fields(cls):
        hint, units = hints[field.name], None
        if typing.get_origin(hint) is typing.Annotated:
            hint, units = typing.get_args(hint)
        is_optional = isinstance(hint, types.UnionType)
        wanted = next(part for part in typing.get_args(hint) if part is not type(None)) if is_optional else hint
        yield Setting(field.name, wanted, is_optional, units, field.default, texts.get(field.name, ""))


def flag(name: str) -> str:
    """How a setting is written on a command line."""
    return "--" + name.replace("_", "-")


def add_flags(parser: argparse._ActionsContainer, cls: type) -> None:
    """Adds one flag per setting. Absent flags leave no attribute in the arguments."""
    for setting in settings_of(cls):
        has_default = isinstance(setting.default, int | float | str)
        text = setting.text + (f" (default: {setting.default})" if has_default else "")
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
        if setting.type is bool:
            parser.add_argument(flag(setting.name), action=argparse.BooleanOptionalAction, **options)
        else:
            parser.add_argument(flag(setting.name), metavar=_METAVARS[setting.type], **options)


def given(arguments: argparse.Namespace, classes: Sequence[type]) -> dict[str, Any]:
    """Settings on the command line by name."""
    names = (field.name for cls in classes for field in fields(cls))
    return {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}


def values_of(cls: type, written: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `cls`: the settings in `written`, texts parsed as the type of the field. Raises SettingError."""
    return {
        setting.name: _value(setting, written[setting.name]) for setting in settings_of(cls) if setting.name in written
    }


def read_file(path: Path, classes: Sequence[type]) -> dict[str, Any]:
    """The settings in a YAML or JSON file, by field name. Raises SettingError, naming the key."""
    import yaml  # only where a file is given: the command line alone starts without it

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SettingError("config", f"{path} cannot be read: {error}") from error
    try:
        content, node = yaml.safe_load(text), yaml.compose(text, yaml.SafeLoader)
    except Exception as error:  # besides YAMLError, whatever `2024-99-99` or `!!int x` make its constructors raise
        raise SettingError("config", f"{path} is neither YAML nor JSON: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingError("config", f"{path} must hold a mapping of settings, not a {type(content).__name__}")
    known = {field.name.replace("_", "-"): field.name for cls in classes for field in fields(cls)}
    keys = [key.value for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
    for key in content:
        if keys.count(str(key)) > 1:  # which of them counts is for nobody to guess
            raise SettingError(str(key), f"is written more than once in {path}")
        if key not in known:
            import difflib  # most files are right

            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known settings: {', '.join(known)}"
            raise SettingError(str(key), f"unknown setting in {path}", hint)
    return {known[key]: value for key, value in content.items()}


def _value(setting: Setting, written: Any) -> Any:
    """A parsed value; flags and files filled from the environment give texts. For a text setting, `null` is a text."""
    if written is None or (written == "null" and setting.type is not str):
        if setting.is_optional:
            return None
        raise SettingError(setting.name, "must have a value")
    value = _from_text(setting, written) if isinstance(written, str) else written
    if isinstance(value, int | float) and not -_INT64 <= value < _INT64:  # nor NaN
        raise SettingError(setting.name, f"must be {_ARTICLES[setting.type]} from -2^63 to 2^63 - 1")
    if setting.type is float and type(value) is int:
        return float(value)
    if type(value) is not setting.type:
        raise SettingError(setting.name, f"must be {_ARTICLES[setting.type]}, not {written!r}")
    return value


def _from_text(setting: Setting, text: str) -> Any:
    units = dict(setting.units.factors) if setting.units is not None else {}
    try:
        if setting.type is bool:
            return {"true": True, "false": False}[text.lower()]
        if len(parts := _PART.findall(text)) > 1 and "".join(map("".join, parts)) == text:
            return setting.type(sum(float(number) * units[unit] for number, unit in parts))
        if units:
            number = text.rstrip("".join(units))
            unit = text[len(number) :].strip()
            return setting.type(float(number) * (units[unit] if unit else 1.0))
        text.encode()  # a name or a number with bytes that are no UTF-8 could be told to nobody
        return setting.type(text)
    except (ValueError, KeyError, OverflowError):
        hint = f"a number may be followed by one of {', '.join(units)}" if units else None
        raise SettingError(setting.name, f"must be {_ARTICLES[setting.type]}, not {text!r}", hint) from None
