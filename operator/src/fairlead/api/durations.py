"""Durations as users write them (`500ms`, `30s`, `10m`, `1h30m`) and as we count them: seconds, as float."""

import re

DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"
"""For the CRD, and exactly what `parse_duration` takes."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WHOLE = re.compile(DURATION_PATTERN)
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")


def parse_duration(text: str) -> float:
    """Seconds. Raises ValueError with a sentence for anything but numbers with units (`90s`, `1h30m`)."""
    if not isinstance(text, str) or not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration: write a number and a unit, such as 500ms, 30s, 10m or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def format_duration(seconds: float) -> str:
    """The shortest way to write it, to the millisecond: 90 → `1m30s`. `parse_duration` takes it back."""
    milliseconds = round(seconds * 1000)
    if milliseconds < 0:
        raise ValueError(f"a duration cannot be negative: {seconds}")
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, milliseconds = divmod(milliseconds, round(_UNITS[unit] * 1000))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
