"""Adapters on engines that run: each ready engine is asked what it has, and to load and unload what differs.

Who calls it: the reconciler, after children are applied and before the status is written. It is level-triggered: it
remembers nothing that matters but which folder it had an engine load, and a pod that has become ready, whose engine has
none, is brought to the same by the next look. Only what was listed once is unloaded: others are their owner's.
"""

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from fairlead.api.conditions import Reason
from fairlead.controller.applier import engine_url
from fairlead.controller.desired import Desired
from fairlead.controller.observe import Observed
from fairlead.controller.pod_diagnosis import Stage
from fairlead.controller.worker import Key
from fairlead.kube.client import JsonObject
from fairlead.manifests.adapter_folders import PlacedAdapter
from fairlead_protocol.http.client import HttpClient, TimeLimits
from fairlead_protocol.http.client_connection import TransportError, cause_of
from fairlead_protocol.http.origin import parse

logger = logging.getLogger(__name__)

PATH_MODELS = "/v1/models"
PATH_LOAD = "/v1/load_lora_adapter"
PATH_UNLOAD = "/v1/unload_lora_adapter"
LOAD_LIMITS = TimeLimits(connect=2.0, first_byte=20.0, silence=20.0, whole=20.0)
"""For one answer of an engine: a folder is read from a disk that may be slow."""
MAX_BYTES = 4 * 2**20


class Refused(Exception):
    """The engine does not do it, or cannot be reached; the text says why."""


class Silent(Refused):
    """It cannot be reached, or does not answer in time."""


class EngineAdapters(Protocol):
    """The adapters of one engine. Methods raise Refused."""

    async def served(self, pod: JsonObject) -> set[str]:
        """The names that requests may ask for."""

    async def load(self, pod: JsonObject, name: str, path: str) -> None:
        """Until requests may ask for it."""

    async def unload(self, pod: JsonObject, name: str) -> None:
        """From now on nobody may ask for it."""


class HttpEngineAdapters:
    """By the engine's HTTP API, in vLLM's words."""

    def __init__(self) -> None:
        self._http: HttpClient | None = None

    async def served(self, pod: JsonObject) -> set[str]:
        cards = (await self._ask(pod, "GET", PATH_MODELS)).get("data") or ()
        return {card["id"].removeprefix(f"{card['parent']}:") for card in cards if card.get("parent")}

    async def load(self, pod: JsonObject, name: str, path: str) -> None:
        await self._ask(pod, "POST", PATH_LOAD, {"lora_name": name, "lora_path": path})

    async def unload(self, pod: JsonObject, name: str) -> None:
        await self._ask(pod, "POST", PATH_UNLOAD, {"lora_name": name})

    async def _ask(self, pod: JsonObject, method: str, path: str, body: Any = None) -> dict[str, Any]:
        self._http = self._http or HttpClient(max_idle=0)
        origin, target = parse(engine_url(pod) + path)
        content = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"} if body is not None else {}
        try:
            async with self._http.request(
                origin, method, target, LOAD_LIMITS, headers=headers, body=content
            ) as response:
                answer = await response.read(MAX_BYTES)
                if response.status >= 400:
                    raise Refused(_sentence(answer) or f"its engine answers HTTP {response.status}")
        except (TransportError, TimeoutError) as error:
            raise Silent(f"its engine cannot be asked: {cause_of(error)}") from error
        try:
            return dict(msgspec.json.decode(answer))
        except (msgspec.DecodeError, TypeError, ValueError):
            return {}  # where something is to be read, there is nothing


def _sentence(answer: bytes) -> str:
    """What an error in OpenAI's shape says."""
    try:
        return str(msgspec.json.decode(answer)["error"]["message"])
    except (msgspec.DecodeError, LookupError, TypeError):
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterState:
    """One listed adapter, as people are told."""

    name: str
    served_name: str
    num_loaded: int
    """Ready replicas that have loaded it."""
    reason: str
    message: str

    @property
    def is_trouble(self) -> bool:
        """Whether somebody has to act."""
        return self.reason not in (Reason.ADAPTER_LOADED, Reason.ADAPTER_LOADING)

    @property
    def as_status(self) -> dict[str, Any]:
        """Its item of `status.adapters`."""
        own = {"servedName": self.served_name} if self.served_name else {}
        counts = {"readyReplicas": self.num_loaded, "reason": str(self.reason), "message": self.message}
        return {"name": self.name, **own, **counts}


@dataclass(frozen=True, slots=True)
class Loaded:
    """What became of the adapters."""

    adapters: tuple[AdapterState, ...] | None = ()
    """None = they were not looked at: what the status says of them stays."""
    is_unfinished: bool = False
    """Whether to look again though no event may come."""


@dataclass(slots=True)
class _OnPod:
    """What one engine has, and what it has refused."""

    served: set[str]
    refused: dict[str, str] = field(default_factory=dict)
    """By name, in the engine's words."""
    is_silent: bool = False
    """It did not answer when it was asked last."""


class AdapterLoader:
    """Brings every ready engine to what the spec lists."""

    def __init__(self, engines: EngineAdapters | None = None) -> None:
        """`engines`: None = over HTTP."""
        self._engines = engines or HttpEngineAdapters()
        self._paths: dict[Key, dict[str, dict[str, str]]] = {}
        """By LLMDeployment, pod's uid and name: the folder that an engine was told to load."""

    def forget(self, key: Key) -> None:
        """The LLMDeployment is gone."""
        self._paths.pop(key, None)

    async def bring(self, observed: Observed, wanted: Desired) -> Loaded:
        """Asks ready engines, all at once; where nothing is listed and nothing was, nobody is asked. Never raises for
        what engines answer."""
        if wanted.obstacle is not None or wanted.deployment is None:
            return Loaded(None)
        before = {str(each.get("name")) for each in (observed.body.get("status") or {}).get("adapters") or ()}
        if not wanted.adapters and not before:
            return Loaded()
        key = (observed.body["metadata"]["namespace"], observed.body["metadata"]["name"])
        ready = [
            pod
            for pod, diagnosis in zip(observed.pods, observed.diagnoses, strict=True)
            if diagnosis.stage is Stage.READY and (pod.get("status") or {}).get("podIP")
        ]
        known = self._paths.setdefault(key, {})
        paths = self._paths[key] = {
            pod["metadata"]["uid"]: known.get(pod["metadata"]["uid"], {}) for pod in observed.pods
        }
        listed = {each.name: each.path for each in wanted.adapters if each.path}
        ours = before | {each.name for each in wanted.adapters} | {name for each in paths.values() for name in each}
        found = await asyncio.gather(*(self._bring(pod, listed, ours, paths[pod["metadata"]["uid"]]) for pod in ready))
        on_pods = {pod["metadata"]["name"]: each for pod, each in zip(ready, found, strict=True)}
        states = tuple(_state(each, on_pods) for each in wanted.adapters)
        is_left = any(each.refused.keys() - listed.keys() for each in found)
        return Loaded(states, is_unfinished=is_left or any(each.is_trouble for each in states))

    async def _bring(
        self, pod: JsonObject, listed: Mapping[str, str], ours: Iterable[str], paths: dict[str, str]
    ) -> _OnPod:
        try:
            on_pod = _OnPod(await self._engines.served(pod))
        except Refused as refused:
            return _OnPod(set(), dict.fromkeys(listed, str(refused)))
        for name in sorted(on_pod.served & set(ours)):
            if name not in listed or paths.get(name, listed[name]) != listed[name]:
                await self._change(pod, "unload", name, "", on_pod)
        for name, path in listed.items():
            if name not in on_pod.served and name not in on_pod.refused:
                await self._change(pod, "load", name, path, on_pod)
                if on_pod.is_silent:  # each of the others would be waited for as long
                    rest = {each for each in listed if each not in on_pod.served}
                    on_pod.refused |= dict.fromkeys(rest - on_pod.refused.keys(), on_pod.refused[name])
                    break
            if name in on_pod.served:
                paths[name] = path
        for name in paths.keys() - listed.keys() - on_pod.served:
            del paths[name]
        return on_pod

    async def _change(self, pod: JsonObject, verb: str, name: str, path: str, on_pod: _OnPod) -> None:
        try:
            if verb == "load":
                await self._engines.load(pod, name, path)
                on_pod.served.add(name)
            else:
                await self._engines.unload(pod, name)
                on_pod.served.discard(name)
            logger.info("%s: %sed the adapter %s", pod["metadata"]["name"], verb, name)
        except Refused as refused:
            on_pod.refused[name] = str(refused)
            on_pod.is_silent = isinstance(refused, Silent)
            logger.warning("%s does not %s the adapter %s: %s", pod["metadata"]["name"], verb, name, refused)


def _state(adapter: PlacedAdapter, on_pods: Mapping[str, _OnPod]) -> AdapterState:
    """What is said of one, by what the ready engines have."""
    num_loaded = sum(adapter.name in each.served for each in on_pods.values())
    refusals = {pod: each.refused[adapter.name] for pod, each in on_pods.items() if adapter.name in each.refused}
    count = f"loaded on {num_loaded}/{len(on_pods)} ready replicas"
    if adapter.reason:
        reason, message = adapter.reason, adapter.message
    elif refusals:
        pod, sentence = next(iter(refusals.items()))
        reason, message = Reason.ADAPTER_NOT_LOADED, f"{count}; {pod}: {sentence}"
    elif on_pods and num_loaded == len(on_pods):
        reason, message = Reason.ADAPTER_LOADED, count
    else:
        reason, message = Reason.ADAPTER_LOADING, f"{count}: it is loaded as they become ready"
    return AdapterState(
        name=adapter.name,
        served_name=adapter.served_name,
        num_loaded=num_loaded,
        reason=str(reason),
        message=message,
    )
