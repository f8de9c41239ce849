"""What all tests rely on: Ctrl-C works, also for the processes they start; logs are as loud as at the start; no example
of hypothesis fails for what else the machine does."""

import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Each run draws others: what few examples miss, many runs find.
settings.register_profile("any machine", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("any machine"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "any machine"))

_LONGEST_ID = 60


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Files are named by their argument: some have the time in them, and all workers must see the same names."""
    return argname if isinstance(val, bytes) and len(val) > _LONGEST_ID else None


# A shell without job control starts its background jobs with SIGINT ignored, and processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """Programs that a test runs in its own process set the levels of their logs, which later tests would not expect."""
    loggers = (logging.root, logging.getLogger("fairlead"), logging.getLogger("fairlead_engine"))
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
