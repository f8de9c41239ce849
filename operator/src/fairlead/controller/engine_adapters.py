"""The adapters of one engine, asked for and changed over HTTP in vLLM's words.

Who calls it: the adapter loader. It knows no spec and remembers nothing.
"""

import json
from typing import Any, Protocol

import msgspec

from fairlead.api.conditions import shortened
from fairlead.controller.applier import engine_url
from fairlead.kube.client import JsonObject
from fairlead_protocol.http.client import HttpClient, TimeLimits
from fairlead_protocol.http.client_connection import TransportError, cause_of
from fairlead_protocol.http.origin import parse

PATH_MODELS = "/v1/models"
PATH_LOAD = "/v1/load_lora_adapter"
PATH_UNLOAD = "/v1/unload_lora_adapter"
ASK_LIMITS = TimeLimits(connect=2.0, first_byte=5.0, silence=5.0, whole=5.0)
"""For an answer that takes an engine no work: who asks waits for it."""
LOAD_LIMITS = TimeLimits(connect=2.0, first_byte=3600.0, silence=3600.0, whole=3600.0)
"""For loading: a folder may be large, and its disk slow. An engine that ends breaks the connection."""
MAX_BYTES = 4 * 2**20


class EngineRefused(Exception):
    """The engine does not do it, or cannot be reached; the text says why."""


class Silent(EngineRefused):
    """It cannot be reached, or does not answer in time."""


class EngineAdapters(Protocol):
    """Of whichever pod is given. Methods raise EngineRefused."""

    async def served(self, pod: JsonObject) -> set[str]:
        """The names that requests may ask for."""

    async def load(self, pod: JsonObject, name: str, path: str) -> None:
        """Until requests may ask for it, which may take long."""

    async def unload(self, pod: JsonObject, name: str) -> None:
        """From now on nobody may ask for it."""


class _ServedCard(msgspec.Struct):
    """A model of `/v1/models`."""

    id: str
    parent: str | None = None
    """Of an adapter: the model that it belongs to."""


class _ServedCards(msgspec.Struct):
    data: list[_ServedCard]


class HttpEngineAdapters:
    """By the engine's HTTP API."""

    def __init__(self) -> None:
        self._http: HttpClient | None = None

    async def served(self, pod: JsonObject) -> set[str]:
        answer = await self._ask(pod, "GET", PATH_MODELS)
        try:
            cards = msgspec.json.decode(answer, type=_ServedCards).data
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise EngineRefused(f"what its engine says of its models cannot be read: {error}") from error
        return {card.id.removeprefix(f"{card.parent}:") for card in cards if card.parent}

    async def load(self, pod: JsonObject, name: str, path: str) -> None:
        await self._ask(pod, "POST", PATH_LOAD, {"lora_name": name, "lora_path": path}, LOAD_LIMITS)

    async def unload(self, pod: JsonObject, name: str) -> None:
        await self._ask(pod, "POST", PATH_UNLOAD, {"lora_name": name})

    async def _ask(
        self, pod: JsonObject, method: str, path: str, body: Any = None, limits: TimeLimits | None = None
    ) -> bytes:
        """What it answers. Raises EngineRefused."""
        self._http = self._http or HttpClient(max_idle=0)
        origin, target = parse(engine_url(pod) + path)
        content = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"} if body is not None else {}
        try:
            async with self._http.request(
                origin, method, target, limits or ASK_LIMITS, headers=headers, body=content
            ) as response:
                answer = await response.read(MAX_BYTES)
                if response.status >= 400:
                    raise EngineRefused(_sentence(answer) or f"its engine answers HTTP {response.status}")
        except (TransportError, TimeoutError) as error:
            raise Silent(f"its engine cannot be asked: {cause_of(error)}") from error
        return answer


def _sentence(answer: bytes) -> str:
    """What an error in OpenAI's shape says."""
    try:
        return shortened(str(msgspec.json.decode(answer)["error"]["message"]))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return ""
