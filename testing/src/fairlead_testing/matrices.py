"""A pytest plugin: a test with several parameters runs cases in which each value of each parameter occurs.

Of a function marked with ``@pytest.mark.matrix`` few cases are kept: together they have each value at least once, or
with ``@pytest.mark.matrix(2)`` each pair of values of two parameters. ``--whole-matrices`` keeps all.
"""

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Hashable, Mapping
from typing import Any

import pytest

TIERS = ("slow", "compute", "long", "gpu")
"""Markers by which runs differ: the cases of each have all values."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole-matrices",
        action="store_true",
        help="all combinations of parameters, not only enough to have each value",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "matrix(strength=1): of its cases, enough to have each value (2: pair of values)"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--whole-matrices"):
        return
    matrices: dict[Hashable, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.get_closest_marker("matrix"):
            tiers = tuple(item.get_closest_marker(name) is not None for name in TIERS)
            matrices[item.path, item.cls, item.originalname, tiers].append(item)
    dropped: set[pytest.Item] = set()
    for cases in matrices.values():
        mark = cases[0].get_closest_marker("matrix")
        strength = mark.args[0] if mark is not None and mark.args else 1
        kept = cover({case.nodeid: _values(case.callspec) for case in cases}, strength)
        dropped.update(case for case in cases if case.nodeid not in kept)
    if dropped:
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = [item for item in items if item not in dropped]


def _values(callspec: Any) -> dict[str, Hashable]:
    """By parameter, or its place in a tuple: the value where that is plain, else which object it is."""
    found = dict[str, Hashable]()
    for name, value in callspec.params.items():
        for place, each in enumerate(value if isinstance(value, tuple) else [value]):
            found[f"{name}[{place}]"] = each if isinstance(each, str | int | float | None) else ("object", id(each))
    return found


def cover(cases: Mapping[str, Mapping[str, Hashable]], strength: int = 1) -> set[str]:
    """Names of few cases that have whatever combinations of `strength` values all cases have.

    `cases`: by name, the value of each parameter. The same cases give the same choice.
    """
    have = {
        name: set(itertools.combinations(sorted(values.items(), key=lambda each: each[0]), min(strength, len(values))))
        for name, values in cases.items()
    }
    order = sorted(cases, key=lambda name: hashlib.sha256(name.encode()).digest())  # values meet others by chance
    kept: set[str] = set()
    missing = set().union(*have.values())
    while missing:
        best = max(order, key=lambda name: len(have[name] & missing))
        kept.add(best)
        missing -= have[best]
    return kept
