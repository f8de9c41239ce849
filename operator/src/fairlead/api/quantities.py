"""Kubernetes quantities (`500m`, `2Gi`, `1e3`) of resources and memory, and durations (`500ms`, `10m`, `1h30m`), parsed
to seconds as float."""

import re
from decimal import Decimal

QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]*)?([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$"
"""For the CRD. Narrower than Kubernetes' own: no sign, a digit comes first, and powers of ten have two digits at most,
since 1e999999 takes minutes to write out."""

_QUANTITY = re.compile(r"^([0-9]+(?:\.[0-9]*)?)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse_quantity(quantity: str | int) -> Decimal:
    """The exact number (bytes, cores, pieces). Raises ValueError with a sentence for anything but a quantity."""
    match = _QUANTITY.fullmatch(str(quantity)) if not isinstance(quantity, bool) else None
    if match is None:
        raise ValueError(f"{quantity!r} is not a quantity: write a number such as 2, 500m, 512Mi or 4Gi")
    number, suffix = Decimal(match[1].rstrip(".")), match[2]
    if suffix is None:
        return number
    if suffix in _BINARY:
        return number * (1 << _BINARY[suffix])
    exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    return number.scaleb(exponent)


def parse_bytes(quantity: str | int) -> int:
    """Whole bytes, rounded up. Raises ValueError for what is not a quantity."""
    exact = parse_quantity(quantity)
    whole = int(exact)
    return whole if whole == exact else whole + 1


DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"
"""For the CRD; matches exactly the texts taken by `parse_duration`."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WHOLE = re.compile(DURATION_PATTERN)
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")


def parse_duration(text: str) -> float:
    """Seconds. Raises ValueError with a sentence for anything but numbers with units (`90s`, `1h30m`)."""
    if not isinstance(text, str) or not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration: write a number and a unit, such as 500ms, 30s, 10m or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def format_duration(seconds: float) -> str:
    """The shortest notation, to the millisecond: 90 → `1m30s`; the inverse of `parse_duration`."""
    milliseconds = round(seconds * 1000)
    if milliseconds < 0:
        raise ValueError(f"a duration cannot be negative: {seconds}")
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, milliseconds = divmod(milliseconds, round(_UNITS[unit] * 1000))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
