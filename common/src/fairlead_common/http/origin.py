"""Where requests go: a host and a port, by TLS or not, by a proxy or not; and how a connection to it is opened."""

import asyncio
import base64
import os
import re
import ssl
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from fairlead_common.http.addresses import authority, without_credentials
from fairlead_common.http.client_connection import (
    ConnectFailed,
    Connection,
    ProtocolViolation,
    TransportError,
    request_head,
)

PORTS = {"http": 80, "https": 443}
NEXT_ADDRESS_SECONDS = 0.25
"""Until the next address of a name is tried as well: some networks drop IPv6 without a word. uvloop cannot."""
_ADDRESS = re.compile(r"[0-9.]+|.*:.*")


class Origin(NamedTuple):
    """A connection to it serves any request to it. Two that are equal share connections."""

    host: str
    """A name or an address, IPv6 without brackets."""
    port: int
    tls: ssl.SSLContext | None = None
    """None = plain HTTP."""
    server_name: str | None = None
    """To expect in the server's certificate; None = the host."""
    proxy: str | None = None
    """URL of an HTTP proxy on the way, which tunnels TLS and is asked for whole URLs of plain HTTP; None = none."""

    @property
    def host_header(self) -> str:
        """As requests name it: without the port where that is the usual one, or the zone of an IPv6 address, which only
        this machine knows."""
        host, _, _ = (self.host if self.host.isascii() else self.host.encode("idna").decode()).partition("%")
        return authority(host, self.port).removesuffix(f":{PORTS['https' if self.tls else 'http']}")

    @property
    def proxy_headers(self) -> dict[str, str]:
        """How the proxy is told who we are, where its URL says that."""
        credentials = basic_credentials(self.proxy or "")
        return {"proxy-authorization": credentials} if credentials else {}


def basic_credentials(url: str) -> str | None:
    """The user and password of a URL as the header `authorization` has them; None = it has none."""
    parts = urlsplit(url)
    if parts.username is None:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def parse(url: str, tls: ssl.SSLContext | None = None) -> tuple[Origin, str]:
    """The origin of an http or https URL, and what to ask it for. `tls`: None = the authorities that the system trusts.

    Raises ValueError where it is no such URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError(f"{without_credentials(url)!r} is no http or https URL")
    context = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    host = parts.hostname.replace("%25", "%", 1)  # a zone, as RFC 6874 writes it
    return Origin(host, parts.port or PORTS[parts.scheme], context), target


async def connect(origin: Origin, limit: float) -> Connection:
    """A connection, in `limit` seconds at most. Raises ConnectFailed, which names who could not be reached."""
    try:
        async with asyncio.timeout(limit):
            if origin.proxy is None:
                return await _open(origin)
            connection = await _open(parse(origin.proxy)[0])
            if origin.tls is None:
                return connection
            try:
                return await _tunnel(connection, origin, origin.tls, limit)
            except BaseException:
                connection.close()
                raise
    except TimeoutError as error:
        raise _failed(origin, f"no answer within {limit:g} seconds") from error


async def _open(origin: Origin) -> Connection:
    loop = asyncio.get_running_loop()
    name = (origin.server_name or origin.host) if origin.tls else None
    by_turns: dict[str, Any] = {}
    if isinstance(loop, asyncio.BaseEventLoop) and not _ADDRESS.fullmatch(origin.host):
        by_turns = {"happy_eyeballs_delay": NEXT_ADDRESS_SECONDS}  # leaks a socket where it is cancelled: names only
    try:
        _, connection = await loop.create_connection(
            lambda: Connection(loop), origin.host, origin.port, ssl=origin.tls, server_hostname=name, **by_turns
        )
    except OSError as error:
        raise _failed(origin, error) from error
    except UnicodeError as error:
        raise _failed(origin, "that is no name of a host") from error
    return connection


async def _tunnel(proxy: Connection, origin: Origin, tls: ssl.SSLContext, limit: float) -> Connection:
    """The connection to the server itself, once its proxy has opened the way."""
    place = authority(origin.host, origin.port)
    head = request_head("CONNECT", place, {"host": place} | origin.proxy_headers)
    try:
        await proxy.send(head, b"", first_byte_timeout=limit, idle_timeout=limit)
        await proxy.head()
        if proxy.status != 200:
            raise ProtocolViolation(f"HTTP {proxy.status}", begun=True)
        return await proxy.start_tls(tls, origin.server_name or origin.host)
    except OSError as error:
        raise _failed(origin, error) from error
    except TransportError as error:
        raise _failed(origin, f"its proxy does not open the way: {error}") from error


def _failed(origin: Origin, why: OSError | str) -> ConnectFailed:
    place = authority(origin.host, origin.port)
    if isinstance(why, ssl.SSLCertVerificationError):
        return ConnectFailed(f"{place} has a certificate that is not trusted: {why}")
    if isinstance(why, OSError):
        # asyncio's own text of a refused connection repeats the address; where all of several refused, it has only that
        numbers = {why.errno} if why.errno else {int(each) for each in re.findall(r"\[Errno (\d+)\]", str(why))}
        is_kernels = len(numbers) == 1 and min(numbers) > 0 and not isinstance(why, ssl.SSLError)
        why = os.strerror(numbers.pop()) if is_kernels else why.strerror or str(why) or type(why).__name__
    return ConnectFailed(f"cannot connect to {place}: {why}")
