"""Servers' `/metrics` → the few figures that count here. Pure; finds lines instead of parsing all of Prometheus' text,
which has a thousand of them and is read several times a second."""

import math
import re
from functools import lru_cache

_LABEL = re.compile(r'(\w+)="([^"]*)"')


@lru_cache(maxsize=64)
def _line(name: str) -> re.Pattern[str]:
    return re.compile(rf"^{re.escape(name)}(?:\{{(?P<labels>[^\n]*)\}})? (?P<value>\S+)", re.MULTILINE)


def values(text: str, name: str) -> list[float]:
    """Of every series of this name that has a finite value."""
    found_values = []
    for found in _line(name).finditer(text):
        try:
            value = float(found["value"])
        except ValueError:
            continue
        if math.isfinite(value):
            found_values.append(value)
    return found_values


def total(text: str, *names: str) -> float:
    """Of all series of these names; 0 of those that are not there."""
    return sum(sum(values(text, name)) for name in names)


def labels(text: str, name: str) -> dict[str, str]:
    """Of the first series of this name; none where there is none."""
    found = _line(name).search(text)
    return dict(_LABEL.findall(found["labels"] or "")) if found else {}
