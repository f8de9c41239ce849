"""How far something long has got, for the log: a start that takes minutes must not look like one that hangs."""

import logging
import time

logger = logging.getLogger(__name__)

_SECONDS = 2.0
"""Between two lines."""


class Progress:
    """Of so many parts of one thing; `done` says it as a person would, with places for two numbers."""

    def __init__(self, done: str, total: int) -> None:
        self._done = done
        self._total = total
        self._num = 0
        self._told = time.monotonic()

    def advance(self, more: str = "") -> None:
        """One more part is done. Every few seconds, and at the last, writes a line that ends with `more`."""
        self._num += 1
        if self._num == self._total or time.monotonic() - self._told > _SECONDS:
            self._told = time.monotonic()
            logger.info("%s", self._done % (self._num, self._total) + more)
