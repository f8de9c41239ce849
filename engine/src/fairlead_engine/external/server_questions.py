"""Small HTTP questions to a foreign server, with short timeouts, and the few relevant figures of `/metrics`: single
lines are parsed, as the text has a thousand lines and is read several times a second."""

import math
import re
from functools import lru_cache
from typing import TypeVar

import msgspec

from fairlead_common.http.client import HttpClient, TimeLimits
from fairlead_common.http.client_connection import TransportError, cause_of
from fairlead_common.http.origin import Origin
from fairlead_engine.external.foreign_engine import NotServing

_SECONDS = 5.0
_LIMITS = TimeLimits(connect=_SECONDS, first_byte=_SECONDS, silence=_SECONDS, whole=_SECONDS)
_MAX_BYTES = 16 * 2**20
Document = TypeVar("Document", bound=msgspec.Struct)


class Busy(NotServing):
    """The server takes connections, and did not answer in time."""


class ServerQuestions:
    def __init__(self, origin: Origin, name: str) -> None:
        """`name`: of the kind of server, for people."""
        self._origin = origin
        self._name = name
        self._http = HttpClient(max_idle=1)

    async def document(self, path: str, kind: type[Document]) -> Document:
        """Raises NotServing."""
        try:
            return msgspec.json.decode(await self._get(path), type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise NotServing(f"it answers other than {self._name} does: {error}") from error

    async def metrics(self) -> str:
        """Raises NotServing."""
        return (await self._get("/metrics")).decode(errors="replace")

    async def health(self) -> None:
        """Raises NotServing unless `/health` succeeds."""
        await self._get("/health")

    async def is_well(self) -> bool:
        try:
            await self.health()
        except NotServing:
            return False
        return True

    async def _get(self, path: str) -> bytes:
        try:
            async with self._http.request(self._origin, "GET", path, _LIMITS) as response:
                if response.status != 200:
                    raise NotServing(f"{path} answers HTTP {response.status}")
                return await response.read(_MAX_BYTES)
        except TimeoutError as error:
            raise Busy(f"{path}: {cause_of(error)}") from error
        except TransportError as error:
            raise NotServing(f"{path}: {cause_of(error)}") from error


_LABEL = re.compile(r'(\w+)="([^"]*)"')


@lru_cache(maxsize=64)
def _line(name: str) -> re.Pattern[str]:
    return re.compile(rf"^{re.escape(name)}(?:\{{(?P<labels>[^\n]*)\}})? (?P<value>\S+)", re.MULTILINE)


def values(text: str, name: str) -> list[float]:
    """Finite values of all series of this name."""
    found_values = []
    for found in _line(name).finditer(text):
        try:
            value = float(found["value"])
        except ValueError:
            continue
        if math.isfinite(value):
            found_values.append(value)
    return found_values


def total(text: str, *names: str) -> float:
    """Sum of all series of these names; a missing series counts as 0."""
    return sum(sum(values(text, name)) for name in names)


def labels(text: str, name: str) -> dict[str, str]:
    """Labels of the first series of this name; empty without a series."""
    found = _line(name).search(text)
    return dict(_LABEL.findall(found["labels"] or "")) if found else {}
