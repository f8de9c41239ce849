"""One engine's adapters, brought to the list: unloaded at once, loaded one after another by a task.

Called by the adapter loader at each look. Loading may take minutes, so nobody waits for the task; the list may change
meanwhile, and is read again before each step.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import msgspec

from fairlead.api.conditions import shortened
from fairlead.controller.applier import engine_url
from fairlead.kube.client import JsonObject
from fairlead_common.http.client import HttpClient, TimeLimits
from fairlead_common.http.client_connection import TransportError, cause_of
from fairlead_common.http.origin import parse

logger = logging.getLogger(__name__)

PATH_MODELS = "/v1/models"
PATH_LOAD = "/v1/load_lora_adapter"
PATH_UNLOAD = "/v1/unload_lora_adapter"
ASK_LIMITS = TimeLimits(connect=2.0, first_byte=5.0, silence=5.0, whole=5.0)
"""For answers without work, on which a look waits."""
LOAD_LIMITS = TimeLimits(connect=2.0, first_byte=3600.0, silence=3600.0, whole=3600.0)
"""For loading: a folder may be large, and its disk slow. A dying engine breaks the connection."""
MAX_BYTES = 4 * 2**20


class EngineRefused(Exception):
    """The engine refuses, or cannot be reached; the text says why."""


class Silent(EngineRefused):
    """The engine cannot be reached, or does not answer in time."""


class _ServedCard(msgspec.Struct):
    """A model of `/v1/models`."""

    id: str
    parent: str | None = None
    """Of an adapter: the model that it belongs to."""


class _ServedCards(msgspec.Struct):
    data: list[_ServedCard]


class HttpEngineAdapters:
    """The adapters of a pod's engine, asked for and changed over HTTP in vLLM's words. Methods raise EngineRefused."""

    def __init__(self) -> None:
        self._http: HttpClient | None = None

    async def served(self, pod: JsonObject) -> set[str]:
        """The names that requests may ask for."""
        answer = await self._ask(pod, "GET", PATH_MODELS)
        try:
            cards = msgspec.json.decode(answer, type=_ServedCards).data
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise EngineRefused(f"what its engine says of its models cannot be read: {error}") from error
        return {card.id.removeprefix(f"{card.parent}:") for card in cards if card.parent}

    async def load(self, pod: JsonObject, name: str, path: str) -> None:
        """Returns when requests may ask for the adapter, perhaps after minutes."""
        await self._ask(pod, "POST", PATH_LOAD, {"lora_name": name, "lora_path": path}, LOAD_LIMITS)

    async def unload(self, pod: JsonObject, name: str) -> None:
        """From now on nobody may ask for the adapter."""
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


RETRY_SECONDS = 5.0
"""Lifetime of a refusal; below the time until the next look at adapters in trouble."""


@dataclass(frozen=True, slots=True)
class AdapterRefusal:
    """Why a folder could not be loaded, or an adapter not be unloaded."""

    path: str
    sentence: str
    at: float


class PodAdapters:
    """One engine's adapters, the orders given to it, and the loading task."""

    def __init__(self, engines: HttpEngineAdapters, on_change: Callable[[bool], None]) -> None:
        """`on_change`: called when an adapter was loaded or refused; True = that was the last of them."""
        self._engines = engines
        self._on_change = on_change
        self._pod: JsonObject = {}
        self._listed: Mapping[str, str] = {}
        self._told: dict[str, str] = {}
        """Name → folder that the engine was told to load; empty = told by another operator, folder unknown."""
        self._task: asyncio.Task[None] | None = None
        self._served: set[str] = set()
        self._silence: AdapterRefusal | None = None
        self.refused: dict[str, AdapterRefusal] = {}

    @property
    def is_loading(self) -> bool:
        """Whether the task is at work."""
        return self._task is not None and not self._task.done()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of listed adapters."""
        return not (self._told or self.refused or self.is_loading)

    def serves(self, name: str) -> bool:
        """Whether requests may ask for the listed adapter."""
        return name in self._served and name in self._listed and self._told.get(name) == self._listed[name]

    def trouble(self, name: str) -> str | None:
        """Why an adapter is not served; None = served, or being loaded."""
        if self.serves(name):
            return None
        if name in self.refused:
            return self.refused[name].sentence
        return None if self._silence is None else self._silence.sentence

    async def look(
        self,
        pod: JsonObject,
        listed: Mapping[str, str],
        ours: Collection[str],
        kept: Mapping[str, str],
        awaited: Collection[str] = (),
    ) -> None:
        """Asks the engine for its adapters, unless the loading task knows them; unloads, and starts loading.

        `listed`: folders by name. `ours`: names ever listed; other adapters are their owner's. `kept`: folders loaded
        at the last status. `awaited`: listed names without a known folder, whose adapters stay loaded meanwhile.
        """
        self._pod, self._listed = pod, listed
        if not self.is_loading:
            try:
                self._served = await self._engines.served(pod)
            except EngineRefused as refused:
                self._silence = AdapterRefusal("", str(refused), -inf)
                self._served = set()
                return
            for name in self._told.keys() - self._served - listed.keys() - set(awaited):
                del self._told[name]
            if self._silence is not None and not self._is_fresh(self._silence):
                self._silence = None
        for name in self._served & (set(ours) | self._told.keys()) - set(awaited):
            self._told.setdefault(name, kept.get(name, ""))
        for name, refusal in list(self.refused.items()):
            if listed.get(name, "") != refusal.path:
                del self.refused[name]
        for name in sorted(self._told.keys() & self._served - listed.keys() - set(awaited)):
            await self._unload(name)
        if not self.is_loading and self._next() is not None:
            self._task = asyncio.create_task(self._load_all())

    async def stop(self) -> None:
        """Stops waiting; the engine finishes what it is loading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _load_all(self) -> None:
        while (name := self._next()) is not None:
            await self._load(name, self._listed[name])
            self._on_change(False)
        asyncio.get_running_loop().call_soon(self._on_change, True)  # when this task is done

    async def _load(self, name: str, path: str) -> None:
        try:
            if name in self._served:
                await self._engines.unload(self._pod, name)
                self._served.discard(name)
            self._told[name] = path
            await self._engines.load(self._pod, name, path)
            self._served.add(name)
            self.refused.pop(name, None)
            logger.info("%s: loaded the adapter %s", self._pod["metadata"]["name"], name)
        except Silent as silent:
            self._silence = AdapterRefusal(path, str(silent), _now())  # each of the others would be waited for as long
            self._warn("load", name, silent)
        except Exception as error:
            self.refused[name] = AdapterRefusal(path, str(error) or type(error).__name__, _now())
            self._warn("load", name, error, exc_info=not isinstance(error, EngineRefused))

    async def _unload(self, name: str) -> None:
        try:
            await self._engines.unload(self._pod, name)
            self._served.discard(name)
            del self._told[name]
            logger.info("%s: unloaded the adapter %s", self._pod["metadata"]["name"], name)
        except EngineRefused as refused:
            self.refused[name] = AdapterRefusal("", str(refused), _now())
            self._warn("unload", name, refused)

    def _next(self) -> str | None:
        """The next adapter to load; None = none for now."""
        if self._silence is not None and self._is_fresh(self._silence):
            return None
        missing = (name for name in self._listed if not self.serves(name))
        return next((name for name in missing if not self._is_refused(name)), None)

    def _is_refused(self, name: str) -> bool:
        refusal = self.refused.get(name)
        return refusal is not None and refusal.path == self._listed[name] and self._is_fresh(refusal)

    def _is_fresh(self, refusal: AdapterRefusal) -> bool:
        return _now() < refusal.at + RETRY_SECONDS

    def _warn(self, verb: str, name: str, why: Exception, *, exc_info: bool = False) -> None:
        pod = self._pod["metadata"]["name"]
        logger.warning("%s does not %s the adapter %s: %s", pod, verb, name, why, exc_info=exc_info)


def _now() -> float:
    return asyncio.get_running_loop().time()
