"""Typed reading of JSON files of a checkpoint: errors name file, field, value and the expected type."""

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairlead_common.models.load_errors import ModelLoadError, ModelLoadReason

MOST = 2**40
"""Largest integer: no integer of a model is larger, and arithmetic with many digits fails elsewhere."""
_MOST_LAYERS = 10_000
"""Most layers: lists of equal length are made before the weights are read."""
_MOST_SHOWN = 1000
"""Characters of a wrong value in a message."""


class JsonFields:
    """A JSON object and the path of the file. Every reader raises ModelLoadError with reason ModelConfigInvalid.

    Absent and null fields take the default; without a default the field is required.
    """

    def __init__(self, path: Path, values: dict[str, Any], prefix: str = "") -> None:
        self.path = path
        self._values = values
        self._prefix = prefix

    @classmethod
    def read(cls, path: Path) -> "JsonFields":
        """Raises ModelLoadError with reason ModelNotFound for a missing file."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ModelLoadError(
                ModelLoadReason.MODEL_NOT_FOUND,
                f"{path.parent} has no {path.name}; give the folder of a Hugging Face style model",
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise ModelLoadError(
                ModelLoadReason.MODEL_CONFIG_INVALID, f"{path} cannot be read as JSON ({error}); fetch it again"
            ) from error
        if not isinstance(values, dict):
            raise ModelLoadError(
                ModelLoadReason.MODEL_CONFIG_INVALID, f"{path} must hold a JSON object; fetch it again"
            )
        return cls(path, values)

    @classmethod
    def empty(cls, path: Path) -> "JsonFields":
        """No fields: every reader gives its default."""
        return cls(path, {})

    def invalid(self, name: str, problem: str) -> ModelLoadError:
        """The error for a wrong field, to be raised by the caller."""
        value = self._values.get(name)
        given = "is missing and" if value is None else f"is {_shown(value)} but"
        return ModelLoadError(
            ModelLoadReason.MODEL_CONFIG_INVALID,
            f"{self.path}: {self._prefix}{name} {given} {problem}; correct the file or fetch it again",
        )

    def unsupported(self, name: str, remedy: str) -> ModelLoadError:
        """The error for a field with an unsupported value, to be raised by the caller."""
        value = _shown(self._values.get(name))
        return ModelLoadError(
            ModelLoadReason.UNSUPPORTED_ARCHITECTURE,
            f"{self.path.name}: {self._prefix}{name} is {value}, which this engine lacks; {remedy}",
        )

    def is_exactly(self, name: str, value: bool | int | str) -> bool:
        """Whether the field has this value and type; -1 stands for the last or for all in some fields."""
        found = self._values.get(name)
        return type(found) is type(value) and found == value

    @property
    def num_fields(self) -> int:
        return len(self._values)

    def is_unbounded(self, name: str) -> bool:
        """Whether the field is absent, or bounds from 0 to infinity, which newer files write as an object."""
        value = self._values.get(name)
        return value is None or value in ([0, math.inf], [0, {"__float__": "Infinity"}])

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._values.get(name) is not None

    def names(self, name: str) -> bool:
        """Whether the field is there, be it null."""
        return name in self._values

    def positive_int(self, name: str, default: int | None = None) -> int:
        value = self._given(name, default)
        if not _is_integer(value, least=1):
            raise self.invalid(name, "must be a positive integer")
        most = _MOST_LAYERS if name == "num_hidden_layers" else MOST
        if value > most:
            raise self.invalid(name, f"must be {most} at most")
        return int(value)

    def same_positive(self, name: str, default: int) -> int:
        """A positive integer, or a list that has it for each layer."""
        value = self._given(name, default)
        each = value if isinstance(value, list) else [value]
        if not each or not all(_is_integer(item, least=1) and item == each[0] for item in each):
            raise self.invalid(name, "must be a positive integer, the same in all layers")
        return int(each[0])

    def positive_or_all(self, name: str) -> int | None:
        """A positive integer; None = absent, or -1 (all)."""
        return None if self.is_exactly(name, -1) or not self.has(name) else self.positive_int(name)

    def positive_number(self, name: str, default: float | None = None) -> float:
        value = self._given(name, default)
        if not _is_positive(value):
            raise self.invalid(name, "must be a positive number")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        value = self._given(name, default)
        if not isinstance(value, bool):
            raise self.invalid(name, "must be true or false")
        return value

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise self.invalid(name, "must be a text")
        return value

    def is_text(self, name: str) -> bool:
        return isinstance(self._values.get(name), str)

    def texts(self, name: str) -> list[str]:
        """A list of texts; empty when absent."""
        return self._list(name, lambda item: isinstance(item, str), "texts")

    def positive_ints(self, name: str) -> list[int]:
        """A list of positive integers; empty when absent."""
        return self._list(name, lambda item: _is_integer(item, least=1), "positive integers")

    def positive_numbers(self, name: str) -> tuple[float, ...]:
        """A list of positive numbers; required."""
        if not isinstance(self._values.get(name), list):
            raise self.invalid(name, "must be a list of positive numbers")
        return tuple(map(float, self._list(name, _is_positive, "positive numbers")))

    def whole_number(self, name: str) -> int:
        """An integer from 0 on; 0 when absent."""
        value = self._values.get(name) or 0
        if not _is_integer(value):
            raise self.invalid(name, "must be an integer from 0 on")
        return int(value)

    def whole_numbers(self, name: str) -> list[int]:
        """A list of integers from 0 on; empty when absent."""
        return self._list(name, _is_integer, "integers from 0 on")

    def token_ids(self, name: str) -> tuple[int, ...]:
        """One token id or a list of them; empty when absent."""
        value = self._values.get(name)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(map(_is_integer, ids)):
            raise self.invalid(name, "must be a token id or a list of them")
        return tuple(ids)

    def _given(self, name: str, default: Any) -> Any:
        value = self._values.get(name)
        return default if value is None else value

    def _list(self, name: str, fits: Callable[[Any], bool], what: str) -> list[Any]:
        value = self._values.get(name) or []
        if not isinstance(value, list) or not all(map(fits, value)):
            raise self.invalid(name, f"must be a list of {what}")
        return value

    def sections(self, name: str) -> "list[JsonFields]":
        """The objects that a nested object holds; empty when absent."""
        section = self.section(name)
        if section is None:
            return []
        return [
            section.section(key) or JsonFields(self.path, {}, f"{section._prefix}{key}.") for key in section._values
        ]

    def section(self, name: str) -> "JsonFields | None":
        """A nested object; None when absent or empty."""
        value = self._values.get(name) or {}
        if not isinstance(value, dict):
            raise self.invalid(name, "must be an object")
        return JsonFields(self.path, value, f"{self._prefix}{name}.") if value else None

    def merged(
        self, other: "JsonFields", merge: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
    ) -> "JsonFields":
        """The fields that `merge` makes of these and another file's, under this file's name."""
        return JsonFields(self.path, merge(self._values, other._values), self._prefix)

    def with_changes(self, changes: Mapping[str, Any]) -> "JsonFields":
        """These fields, overridden by `changes`."""
        return JsonFields(self.path, {**self._values, **changes}, self._prefix)

    def with_section(
        self, name: str, defaults: Mapping[str, Any] = {}, changes: Mapping[str, Any] = {}
    ) -> "JsonFields":
        """`defaults`, overridden by these fields, by the fields of a nested object, and by `changes`."""
        section = self.section(name)
        found = {} if section is None else {key: value for key, value in section._values.items() if value is not None}
        return JsonFields(self.path, {**defaults, **self._values, **found, **changes}, self._prefix)


def _is_integer(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def _shown(value: Any) -> str:
    """The beginning of a value as text; Python refuses to write integers of many thousand digits, and what is deep."""
    try:
        return repr(value)[:_MOST_SHOWN]
    except ValueError:
        return "a number of thousands of digits"
    except RecursionError:
        return "lists and objects deep within one another"
