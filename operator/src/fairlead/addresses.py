"""Hosts and ports as URLs have them, and why one of them could not be reached."""

import os
import ssl
from urllib.parse import urlsplit

import aiohttp


def authority(host: str, port: int | str) -> str:
    """`host:port`, with an IPv6 address in the brackets that tell its colons from the port's."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_http_address(text: str) -> bool:
    """Whether it is the URL of an HTTP server."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, for instance
        return False


def cause_of(error: BaseException) -> str:
    """What went wrong with a connection, in words for people and without a library's own."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        reason = cause.strerror or str(cause)
        if cause.errno is not None and cause.errno > 0 and not isinstance(cause, ssl.SSLError):
            reason = os.strerror(cause.errno)  # asyncio's own text of a refused connection repeats the address
        return f"cannot connect to {authority(error.host, error.port or 0)}: {reason}"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return (
            f"{authority(error.host, error.port or 0)} has a certificate that is not trusted: {error.certificate_error}"
        )
    return str(error) or type(error).__name__
