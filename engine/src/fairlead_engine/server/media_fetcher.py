"""Images that clients name by URL, fetched from the hosts that an operator has listed, and from nowhere else.

A URL is a client's word: it must not lead this process to addresses that the client itself could not reach. So nothing
is fetched by default, redirects are not followed, and what a listed host resolves to is its owner's business.
"""

import ssl
from collections.abc import Collection

from fairlead_engine.images.decoded_image import ImageError
from fairlead_protocol.http.client import HttpClient, TimeLimits
from fairlead_protocol.http.client_connection import AnswerTooLarge, TransportError, cause_of
from fairlead_protocol.http.origin import PORTS, Origin, parse

MAX_BYTES = 16 * 2**20
"""Of one image."""
LIMITS = TimeLimits(connect=5.0, first_byte=10.0, silence=5.0, whole=10.0)
_MAX_REQUESTS = 16
_LONGEST_SHOWN = 80
_LONGEST_URL = 8192
"""Python remembers the last URLs that it has taken apart."""


class MediaFetcher:
    """Not shared between event loops. Close it when done."""

    def __init__(self, hosts: Collection[str], limits: TimeLimits = LIMITS) -> None:
        """`hosts`: as HOST, for the usual ports, or HOST:PORT."""
        self._hosts = frozenset(hosts)
        self._limits = limits
        self._tls: ssl.SSLContext | None = None
        self._client = HttpClient(max_idle=0, max_requests=_MAX_REQUESTS)

    async def fetch(self, url: str, most_bytes: int = MAX_BYTES) -> bytes:
        """Raises ImageError, whose text goes on where it is told which image that is."""
        origin, target = self._allowed(url)
        try:
            async with self._client.request(origin, "GET", target or "/", self._limits) as response:
                if response.status != 200:
                    followed = ", and redirects are not followed" if 300 <= response.status < 400 else ""
                    raise ImageError(f"cannot be fetched: its host answers {response.status}{followed}")
                return await response.read(most_bytes)
        except AnswerTooLarge as error:
            told = f"has more than the {most_bytes:,} bytes that are fetched"
            told += "" if most_bytes == MAX_BYTES else " besides the other images of a chat"
            raise ImageError(f"{told}; send a smaller one") from error
        except (TransportError, TimeoutError) as error:
            raise ImageError(f"cannot be fetched: {cause_of(error)}") from error

    def _allowed(self, url: str) -> tuple[Origin, str]:
        if len(url) > _LONGEST_URL:
            raise ImageError(f"is a URL of {len(url):,} characters, and at most {_LONGEST_URL:,} are followed")
        try:
            if url[:6].lower() == "https:" and self._tls is None:
                self._tls = ssl.create_default_context()
            origin, target = parse(url, self._tls)
        except ValueError as error:
            raise ImageError("is neither a data: URL nor one of http or https") from error
        host = origin.host.lower()
        host = f"[{host}]" if ":" in host else host
        is_usual = origin.port == PORTS["https" if origin.tls else "http"]
        if f"{host}:{origin.port}" not in self._hosts and not (is_usual and host in self._hosts):
            shown = host if len(host) <= _LONGEST_SHOWN else host[: _LONGEST_SHOWN - 1] + "…"
            shown += "" if is_usual else f":{origin.port}"
            raise ImageError(
                f"is at {shown}, from where this engine fetches nothing: send the image itself as a data: URL, or have "
                "the host listed in allowed-media-domains"
            )
        return origin, target

    def close(self) -> None:
        """Ends what is kept."""
        self._client.close()
