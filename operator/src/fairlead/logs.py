"""How operator and gateway write their logs: one logfmt line per fact, on stderr, as engines do.

Imports nothing of ours.
"""

import json
import logging
import time
from typing import Any

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_QUOTED = frozenset(' ="\\')


def configure_logging(level: str) -> None:
    """Our own records from `level` on, and what the libraries find worth a warning."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogfmtFormatter())
    logging.root.handlers = [handler]
    logging.root.setLevel(logging.WARNING)
    logging.getLogger("fairlead").setLevel(level.upper())


class LogfmtFormatter(logging.Formatter):
    """`ts=… level=… logger=… msg=… name=value`: the names are what the record was given as `extra`; None is left
    out."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "ts": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return " ".join(f"{name}={_quoted(str(value))}" for name, value in fields.items() if value is not None)


class LineBudget:
    """How many lines strangers may cause: `burst` at once, and then `per_second`. Those beyond are counted, and the
    next line can tell how many there were."""

    def __init__(self, *, burst: int, per_second: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._left = float(burst)
        self._as_of: float | None = None
        self._num_left_out = 0

    def take(self, now: float) -> int | None:
        """How many lines were left out since the last one that was not; None = this one is left out, too. `now`:
        seconds of any clock that does not go back."""
        if self._as_of is not None:
            self._left = min(self._burst, self._left + (now - self._as_of) * self._per_second)
        self._as_of = now
        if self._left < 1:
            self._num_left_out += 1
            return None
        self._left -= 1
        num_left_out, self._num_left_out = self._num_left_out, 0
        return num_left_out


def _quoted(text: str) -> str:
    """Users and clients write parts of our lines: nothing of theirs can start a line or reach a terminal."""
    if text and text.isprintable() and not _QUOTED.intersection(text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())
