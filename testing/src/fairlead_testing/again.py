"""A pytest plugin: `--again FILE` runs only the tests that the file names, one of pytest's `lastfailed`.

pytest's own `--last-failed` misses tests of groups, to whose names pytest-xdist appends `@GROUP`.
"""

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--again", type=Path, metavar="FILE", help="only tests of this JSON object's keys")


def _names(config: pytest.Config) -> list[str] | None:
    file: Path | None = config.getoption("--again")
    return None if file is None else list(json.loads(file.read_text()))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    names = _names(config) if collection_path.is_file() else None
    if names is None:
        return None
    files = {(config.rootpath / name.partition("::")[0]).resolve() for name in names}
    return True if collection_path.resolve() not in files else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (names := _names(config)) is None:
        return
    kept = [item for item in items if any(f"{name}@".startswith(f"{item.nodeid}@") for name in names)]
    if len(kept) < len(names):
        raise pytest.UsageError(f"--again: of {len(names)} tests {len(kept)} are there: {', '.join(names)}")
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
