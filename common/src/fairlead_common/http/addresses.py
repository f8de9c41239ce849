"""Hosts and ports as URLs have them."""

from urllib.parse import urlsplit


def authority(host: str, port: int | str) -> str:
    """`host:port`, with an IPv6 address in the brackets that tell its colons from the port's."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def without_credentials(url: str) -> str:
    """The URL as it may be shown: without a user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def is_http_address(text: str) -> bool:
    """Whether it is the URL of an HTTP server."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, for instance
        return False
