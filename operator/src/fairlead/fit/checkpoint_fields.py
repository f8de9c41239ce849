"""What `config.json` says, field by field, as the engine reads it: null counts as absent, what is wrong is named."""

from collections.abc import Mapping
from typing import Any

MOST = 2**40
"""Of any number: none of a model is larger, and products of several can still be told."""
_MOST_TOLD = 80
"""Characters of a value that is wrong."""


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

    def positive(self, name: str, default: int | None = None, *, most: int = MOST) -> int:
        """A whole number above 0. Raises ConfigUnreadable where it is none, or is missing without a default."""
        number = self.whole(name, default)
        if not 0 < number <= most:
            raise self.wrong(name, f"must be a whole number from 1 to {most}, not {number}")
        return number

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number from 0 on."""
        value = self._raw.get(name)
        if value is None:
            if default is None:
                raise self.wrong(name, "is missing, and without it nothing can be reckoned")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
            raise self.wrong(name, f"must be a whole number, not {_told(value)}")
        return value

    def number(self, name: str, default: float) -> float:
        """Any number that is finite."""
        value = self._raw.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= MOST:
            raise self.wrong(name, f"must be a number, not {_told(value)}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._raw.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.wrong(name, f"must be true or false, not {_told(value)}")
        return value

    def says_no(self, name: str) -> bool:
        """Whether it is false; anything else is as good as true."""
        return self._raw.get(name) is False

    def text(self, name: str) -> str:
        """Empty where it is missing."""
        value = self._raw.get(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, f"must be a text, not {_told(value)}")
        return value or ""

    def texts(self, name: str) -> list[str]:
        """Those of a list; none where it is missing."""
        value = self._raw.get(name) or []
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.wrong(name, f"must be a list of texts, not {_told(value)}")
        return value

    def wholes(self, name: str) -> list[int]:
        """Those of a list, from 0 on; none where it is missing."""
        value = self._raw.get(name) or []
        if not isinstance(value, list) or not all(type(each) is int and 0 <= each <= MOST for each in value):
            raise self.wrong(name, f"must be a list of whole numbers, not {_told(value)}")
        return value

    def section(self, name: str) -> "CheckpointFields | None":
        """An object within; None where there is none."""
        value = self._raw.get(name) or None
        return None if value is None else CheckpointFields(value, self._join(name))

    def sections(self, name: str) -> "list[CheckpointFields]":
        """The objects within an object."""
        section = self.section(name)
        return (
            [] if section is None else [CheckpointFields(section._raw[key], section._join(key)) for key in section._raw]
        )

    def with_section(self, name: str) -> "CheckpointFields":
        """These, and over them those of an object within that are not null, if it is there."""
        if (section := self.section(name)) is None:
            return self
        return CheckpointFields({**self._raw, **{key: each for key, each in section._raw.items() if each is not None}})

    def wrong(self, name: str, message: str) -> ConfigUnreadable:
        """The error for a field; raise it."""
        return ConfigUnreadable(self._join(name), message)

    def _join(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def _told(value: Any) -> str:
    """A value, or how it begins; integers of many thousand digits cannot even be written."""
    if isinstance(value, int) and abs(value) > MOST:
        return f"a number beyond {MOST}"
    return repr(value)[:_MOST_TOLD]
