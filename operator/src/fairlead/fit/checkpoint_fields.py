"""What `config.json` says, field by field, as the engine reads it: null counts as absent, what is wrong is named."""

from collections.abc import Mapping
from typing import Any


class ConfigUnreadable(ValueError):
    """A `config.json` from which nothing can be reckoned. `field`: which of its fields; empty = the file as a whole."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"config.json: {field}: {message}" if field else f"config.json: {message}")
        self.field = field


class CheckpointFields:
    """A JSON object and where it lies in the file."""

    def __init__(self, raw: Any, path: str = "") -> None:
        """Raises ConfigUnreadable for what is no object."""
        if not isinstance(raw, Mapping):
            raise ConfigUnreadable(path, "must be an object")
        self._raw = raw
        self._path = path

    def has(self, name: str) -> bool:
        """Whether it is there and not null."""
        return self._raw.get(name) is not None

    def names(self, name: str) -> bool:
        """Whether it is there, if only as null."""
        return name in self._raw

    def positive(self, name: str, default: int | None = None) -> int:
        """A whole number above 0. Raises ConfigUnreadable where it is none, or is missing without a default."""
        number = self.whole(name, default)
        if number < 1:
            raise self.wrong(name, f"must be a whole number above 0, not {number}")
        return number

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number from 0 on."""
        value = self._raw.get(name)
        if value is None:
            if default is None:
                raise self.wrong(name, "is missing, and without it nothing can be reckoned")
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or value < 0:
            raise self.wrong(name, f"must be a whole number, not {value!r}")
        return int(value)

    def number(self, name: str, default: float) -> float:
        """Any number."""
        value = self._raw.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(name, f"must be a number, not {value!r}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._raw.get(name)
        return default if value is None else bool(value)

    def text(self, name: str) -> str:
        """Empty where it is missing."""
        value = self._raw.get(name)
        return value if isinstance(value, str) else ""

    def texts(self, name: str) -> list[str]:
        """Those of a list; none where it is missing."""
        value = self._raw.get(name)
        return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []

    def wholes(self, name: str) -> list[int]:
        """Those of a list; none where it is missing."""
        value = self._raw.get(name)
        return [each for each in value if isinstance(each, int)] if isinstance(value, list) else []

    def section(self, name: str) -> "CheckpointFields | None":
        """An object within; None where there is none."""
        value = self._raw.get(name)
        return CheckpointFields(value, self._join(name)) if isinstance(value, Mapping) else None

    def sections(self, name: str) -> "list[CheckpointFields]":
        """The objects within an object."""
        value = self._raw.get(name)
        if not isinstance(value, Mapping):
            return []
        return [CheckpointFields(each, self._join(f"{name}.{key}")) for key, each in value.items()]

    def with_section(self, name: str) -> "CheckpointFields":
        """These, and over them those of an object within, if it is there."""
        value = self._raw.get(name)
        return CheckpointFields({**self._raw, **value}, self._path) if isinstance(value, Mapping) else self

    def wrong(self, name: str, message: str) -> ConfigUnreadable:
        """The error for a field; raise it."""
        return ConfigUnreadable(self._join(name), message)

    def _join(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name
