import itertools
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from fairlead_testing.fronts import write_tokenizer

_serial = itertools.count()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder, with the fakes' tokenizer."""
    return write_tokenizer(tmp_path)


@pytest.fixture
def addresses() -> Callable[[], dict[str, str]]:
    """Where a fake vLLM publishes its events and tells them again; others each time."""

    def take() -> dict[str, str]:
        name = f"ipc://@fairlead-test-{os.getpid()}-{next(_serial)}"
        return {"events": name, "replay": f"{name}-replay"}

    return take


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session
