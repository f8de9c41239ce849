"""What a process tells of its log to one that it starts."""

import logging
from collections.abc import Iterator

import pytest

from fairlead_common.logs import LogFormat, configure_logging, configured_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    handlers = logging.root.handlers
    yield
    logging.root.handlers = handlers


@pytest.mark.parametrize(("level", "format"), [("debug", LogFormat.JSON), ("error", LogFormat.TEXT)])
def test_it_is_what_was_configured(level: str, format: LogFormat) -> None:
    configure_logging(level, format)
    assert configured_logging() == (level, format)
