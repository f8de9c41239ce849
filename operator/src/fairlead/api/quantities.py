"""Kubernetes quantities (`500m`, `2Gi`, `1e3`), as resources and memory sizes are written."""

import re
from decimal import Decimal

QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]*)?([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$"
"""For the CRD. Narrower than Kubernetes' own: no sign, a digit comes first, and powers of ten have two digits at most,
since 1e999999 takes minutes to write out."""

_QUANTITY = re.compile(r"^([0-9]+(?:\.[0-9]*)?)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse_quantity(quantity: str | int) -> Decimal:
    """The exact number (bytes, cores, pieces). Raises ValueError with a sentence for what is not a quantity."""
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
