"""Progress of long work, for the log: a start of minutes must not look like a hang."""

import logging
import time

logger = logging.getLogger(__name__)

_SECONDS = 2.0
"""Between two lines."""


class Progress:
    """Progress through the parts of one thing; `done` is a sentence with places for two numbers."""

    def __init__(self, done: str, total: int) -> None:
        self._done = done
        self._total = total
        self._num = 0
        self._told = time.monotonic()

    def advance(self, more: str = "") -> None:
        """Counts a finished part. Every few seconds, and at the last, writes a line that ends with `more`."""
        self._num += 1
        if self._num == self._total or time.monotonic() - self._told > _SECONDS:
            self._told = time.monotonic()
            logger.info("%s", self._done % (self._num, self._total) + more)
