"""A pytest plugin: HTTP clients of a process share the certificates they trust.

Reading them takes 20 to 40 ms of CPU, and each client of httpx, and so of openai and anthropic, reads them anew: those
of certifi, or what the environment names in their place.
"""

import functools
import os
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
    return (_shared if trusted in _defaults() else _read)(purpose, **trusted)


def _defaults() -> list[dict[str, str | None]]:
    named = [{"cafile": os.environ.get("SSL_CERT_FILE")}, {"capath": os.environ.get("SSL_CERT_DIR")}]
    return [{"cafile": certifi.where()}, *(each for each in named if all(each.values()))]
