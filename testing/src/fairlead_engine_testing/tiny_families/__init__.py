"""A tiny model of each family, with odd shapes of it: what all tests of families go through.

Modules declare theirs as `FAMILIES`; one for a family that is like another needs no other line of code for its tests.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

from fairlead_engine_testing.tiny_families.family import TinyFamily

_MODULES = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
FAMILIES: dict[str, TinyFamily] = {
    each.name: each
    for each in sorted(
        (each for module in _MODULES for each in getattr(module, "FAMILIES", ())), key=lambda each: each.name
    )
}
"""By their names in tests and in `docs/families_tried.json`."""


def a_third(cases: list[Any], first: int) -> list[Any]:
    """Each third case from one on; the others have the marker `compute`. Files begin with different ones."""
    given = [case if isinstance(case, tuple) else (case,) for case in cases]
    marks = [() if place % 3 == first else pytest.mark.compute for place in range(len(given))]
    return [pytest.param(*case, marks=mark) for case, mark in zip(given, marks, strict=True)]
