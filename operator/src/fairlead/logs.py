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


def _quoted(text: str) -> str:
    """Users and clients write parts of our lines: nothing of theirs can start a line or reach a terminal."""
    if text and text.isprintable() and not _QUOTED.intersection(text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())
