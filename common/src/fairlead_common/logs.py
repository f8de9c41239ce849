"""Logs of all our programs: a line per fact on stderr, as logfmt or as JSON, with the same keys; and how many lines
strangers may cause.

Programs call `configure_logging` once; a record has its facts in `extra`, under the names of the field.
"""

import json
import logging
import time
from enum import StrEnum
from typing import Any

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_QUOTED = frozenset(' ="\\')


class LogFormat(StrEnum):
    """How a log's lines are written."""

    TEXT = "text"
    """logfmt: `ts=… level=… logger=… msg=… name=value`."""
    JSON = "json"
    """A JSON object a line, with the same keys."""


def configure_logging(level: str, format: str = LogFormat.TEXT) -> None:
    """Our own records from `level` on, and what the libraries find worth a warning."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if format == LogFormat.JSON else LogfmtFormatter())
    logging.root.handlers = [handler]
    logging.root.setLevel(logging.WARNING)
    for name in ("fairlead", "fairlead_engine"):
        logging.getLogger(name).setLevel(level.upper())


def configured_logging() -> tuple[str, LogFormat]:
    """The configured level and format, for a child process with equal logs."""
    level = logging.getLevelName(logging.getLogger("fairlead_engine").getEffectiveLevel()).lower()
    is_json = any(isinstance(handler.formatter, JsonFormatter) for handler in logging.root.handlers)
    return level, LogFormat.JSON if is_json else LogFormat.TEXT


class _FactsFormatter(logging.Formatter):
    """The fields of a record: `ts`, `level`, `logger`, `msg`, the given `extra`, `exception`."""

    converter = staticmethod(time.gmtime)

    def facts(self, record: logging.LogRecord) -> dict[str, Any]:
        """By key; None is left out."""
        facts: dict[str, Any] = {
            "ts": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        facts |= {name: value for name, value in vars(record).items() if name not in _STANDARD and value is not None}
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return facts


class LogfmtFormatter(_FactsFormatter):
    """`ts=… level=… logger=… msg=… name=value`, quoted values where needed."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={_quoted(str(value))}" for name, value in self.facts(record).items())


class JsonFormatter(_FactsFormatter):
    """The same as a JSON object. What JSON has no type for is written as text."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.facts(record), default=str)


def _quoted(text: str) -> str:
    """Users and clients write parts of our lines: nothing of theirs can start a line or reach a terminal."""
    if text and text.isprintable() and not _QUOTED.intersection(text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


class LineBudget:
    """The number of lines that strangers may cause: `burst` at once, then `per_second`. Further lines are counted, and
    the next line can tell their number."""

    def __init__(self, *, burst: int, per_second: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._left = float(burst)
        self._as_of: float | None = None
        self._num_left_out = 0

    def take(self, now: float) -> int | None:
        """Number of lines left out since the last written line; None = the present line is left out, too. `now`:
        seconds of a monotonic clock."""
        if self._as_of is not None:
            self._left = min(self._burst, self._left + (now - self._as_of) * self._per_second)
        self._as_of = now
        if self._left < 1:
            self._num_left_out += 1
            return None
        self._left -= 1
        num_left_out, self._num_left_out = self._num_left_out, 0
        return num_left_out
