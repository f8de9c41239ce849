"""How the server writes its log: one logfmt line per fact, on stderr."""

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

_QUOTED = frozenset(' ="\\')


def configure(level: str) -> None:
    """Sends our own records to stderr, from `level` on, and the HTTP server's warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter())
    for name, lowest in (("fairlead_engine", level), ("uvicorn", "warning")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(lowest.upper())


def logfmt(fields: Mapping[str, Any]) -> str:
    """`name=value` pairs, quoted where needed; None is left out."""
    return " ".join(f"{name}={_quoted(str(value))}" for name, value in fields.items() if value is not None)


def _quoted(text: str) -> str:
    """Clients write parts of our lines (paths, model names): nothing of theirs can start a line or reach a terminal."""
    if text and text.isprintable() and not _QUOTED.intersection(text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


class _Formatter(logging.Formatter):
    converter = staticmethod(time.gmtime)  # UTC, as log collectors expect

    def __init__(self) -> None:
        super().__init__("ts=%(asctime)s.%(msecs)03dZ level=%(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
