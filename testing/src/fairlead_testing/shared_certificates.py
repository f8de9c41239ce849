"""A pytest plugin: HTTP clients of a process share the certificates they trust.

Reading them takes 40 ms of CPU, and each client of httpx, and so of openai and anthropic, reads them anew.
"""

import functools
import ssl
import sys
from typing import Any

import certifi

_read = ssl.create_default_context
_shared = functools.cache(_read)


def pytest_collection_finish() -> None:
    """Only what clients ask for by default is shared: whoever makes a context of its own may change that."""
    ssl.create_default_context = _create_default_context
    httpcore: Any = sys.modules.get("httpcore2")
    if httpcore is not None:
        httpcore.default_ssl_context = functools.cache(httpcore.default_ssl_context)


def _create_default_context(purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH, **trusted: Any) -> ssl.SSLContext:
    return (_shared if trusted == {"cafile": certifi.where()} else _read)(purpose, **trusted)
