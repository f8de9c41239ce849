"""Adapters on engines that run: each ready engine is asked what it has, and to load and unload what differs.

Who calls it: the reconciler, after children are applied and before the status is written. It waits for no loading: each
engine's is done by a task of its own (`pod_adapters.py`), at whose end the LLMDeployment is looked at again. It is
level-triggered: what a restarted operator has to know, `status.adapters` says, and a pod that has become ready, whose
engine has none, is brought to the same by the next look. Only what was listed once is unloaded: others are their
owner's.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fairlead.api.conditions import MAX_REASON_LENGTH, Reason, shortened
from fairlead.controller.desired import Desired
from fairlead.controller.downloads import LOOK_SECONDS, AdapterDownloads, Missing, PodDownloads
from fairlead.controller.observe import Observed
from fairlead.controller.pod_adapters import HttpEngineAdapters, PodAdapters
from fairlead.controller.pod_diagnosis import Stage
from fairlead.controller.worker import Key
from fairlead.kube.client import JsonObject
from fairlead.manifests.source import PlacedAdapter

PROGRESS_SECONDS = 1.0
"""So often the status follows what is loaded, while more is to be loaded."""
LookAgain = Callable[[Key, float], None]
"""Has an LLMDeployment looked at again, in so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterState:
    """One listed adapter, as people are told."""

    name: str
    served_name: str
    source: str
    """Where it was loaded from, as it was listed then; empty = from nowhere yet."""
    num_loaded: int
    """Ready replicas that have loaded it."""
    reason: str
    message: str

    @property
    def is_trouble(self) -> bool:
        """Whether somebody has to act."""
        return self.reason not in (Reason.ADAPTER_LOADED, Reason.ADAPTER_LOADING, Reason.DOWNLOADING)

    @property
    def as_status(self) -> dict[str, Any]:
        """Its item of `status.adapters`."""
        own = {"servedName": self.served_name} if self.served_name else {}
        own |= {"source": self.source} if self.source else {}
        counts = {
            "readyReplicas": self.num_loaded,
            "reason": str(self.reason)[:MAX_REASON_LENGTH],
            "message": shortened(self.message),
        }
        return {"name": self.name, **own, **counts}


@dataclass(frozen=True, slots=True)
class AdapterStates:
    """What became of the adapters."""

    adapters: tuple[AdapterState, ...] | None = ()
    """None = they were not looked at: what the status says of them stays."""
    is_unfinished: bool = False
    """Whether to look again though no event may come."""


@dataclass(frozen=True, slots=True)
class OnPod:
    """One ready pod's adapters: what its engine has, and what is downloaded beside it."""

    adapters: PodAdapters
    downloads: PodDownloads

    def path(self, adapter: PlacedAdapter) -> str:
        """The adapter's folder as this engine sees it; empty = there is none, or none yet."""
        return self.downloads.folders.get(adapter.source, "") if adapter.is_downloaded else adapter.path

    async def look(
        self, pod: JsonObject, placed: Collection[PlacedAdapter], ours: Collection[str], kept: Collection[str]
    ) -> None:
        """As `PodAdapters.look`. `kept`: names of those that engines had when the status was last written."""
        paths = {each.name: self.path(each) for each in placed}
        listed = {name: path for name, path in paths.items() if path}
        awaited = {each.name for each in placed if each.is_downloaded and not paths[each.name]}
        await self.adapters.look(pod, listed, ours, {name: paths[name] for name in kept}, awaited)

    def missing(self, adapter: PlacedAdapter) -> Missing | None:
        """Why it is not downloaded here."""
        return self.downloads.missing.get(adapter.source) if adapter.is_downloaded else None


class AdapterLoader:
    """Brings every ready engine to what the spec lists."""

    def __init__(
        self,
        look_again: LookAgain = lambda key, seconds: None,
        engines: HttpEngineAdapters | None = None,
    ) -> None:
        """`look_again`: called when there is something new about an engine's adapters."""
        self._look_again = look_again
        self._engines = engines or HttpEngineAdapters()
        self._downloads: dict[Key, AdapterDownloads] = {}
        self._pods: dict[Key, dict[str, PodAdapters]] = {}
        """By LLMDeployment and pod's uid."""

    async def forget(self, key: Key) -> None:
        """The LLMDeployment is gone."""
        self._downloads.pop(key, None)
        await _stop(self._pods.pop(key, {}))

    async def close(self) -> None:
        """Nothing is loaded any more; engines go on with what they have begun."""
        for key in list(self._pods):
            await self.forget(key)

    async def bring(self, observed: Observed, wanted: Desired) -> AdapterStates:
        """Asks ready engines, all at once; where nothing is listed and nothing was, nobody is asked. Waits for no
        loading, and never raises for what engines answer."""
        if wanted.obstacle is not None or wanted.deployment is None:
            return AdapterStates(None)
        before = {each["name"]: each for each in (observed.body.get("status") or {}).get("adapters") or ()}
        key = (observed.body["metadata"]["namespace"], observed.body["metadata"]["name"])
        if not wanted.adapters and not before and key not in self._pods:
            return AdapterStates()
        ready = [
            pod
            for pod, diagnosis in zip(observed.pods, observed.diagnoses, strict=True)
            if diagnosis.stage is Stage.READY and (pod.get("status") or {}).get("podIP")
        ]
        pods = await self._keep(key, {pod["metadata"]["uid"] for pod in observed.pods})
        downloads = await self._look_at_downloads(key, wanted, ready, {pod["metadata"]["uid"] for pod in observed.pods})
        on_pods = {
            pod["metadata"]["name"]: OnPod(self._of(key, pod["metadata"]["uid"]), downloads.of(pod)) for pod in ready
        }
        ours = before.keys() | {each.name for each in wanted.adapters}
        kept = {each.name for each in wanted.adapters if _is_kept(each, before.get(each.name))}
        looks = (on_pods[pod["metadata"]["name"]].look(pod, wanted.adapters, ours, kept) for pod in ready)
        await asyncio.gather(*looks)
        states = tuple(_state(each, on_pods, before.get(each.name, {})) for each in wanted.adapters)
        if any(each.reason == Reason.DOWNLOADING for each in states):
            self._look_again(key, LOOK_SECONDS)
        listed = {each.name for each in wanted.adapters if each.path or each.is_downloaded}
        is_left = any(each.adapters.refused.keys() - listed for each in on_pods.values())
        if not wanted.adapters and all(each.is_empty for each in pods.values()):
            self._pods.pop(key, None)
            self._downloads.pop(key, None)
        return AdapterStates(states, is_unfinished=is_left or any(each.is_trouble for each in states))

    async def _look_at_downloads(
        self, key: Key, wanted: Desired, ready: Collection[JsonObject], uids: Collection[str]
    ) -> AdapterDownloads:
        downloads = self._downloads.setdefault(key, AdapterDownloads())
        downloads.keep(uids)
        sources = {each.source for each in wanted.adapters if each.is_downloaded}
        await downloads.look(ready, sources)
        return downloads

    async def _keep(self, key: Key, uids: set[str]) -> dict[str, PodAdapters]:
        """Forgets pods that are gone; the others."""
        pods = self._pods.setdefault(key, {})
        await _stop({uid: pods.pop(uid) for uid in pods.keys() - uids})
        return pods

    def _of(self, key: Key, uid: str) -> PodAdapters:
        pods = self._pods[key]
        if uid not in pods:
            pods[uid] = PodAdapters(self._engines, partial(self._changed, key))
        return pods[uid]

    def _changed(self, key: Key, is_last: bool) -> None:
        if key in self._pods:
            self._look_again(key, 0.0 if is_last else PROGRESS_SECONDS)


async def _stop(pods: Mapping[str, PodAdapters]) -> None:
    await asyncio.gather(*(each.stop() for each in pods.values()))


def _is_kept(adapter: PlacedAdapter, before: Mapping[str, Any] | None) -> bool:
    """Whether engines that have it, and of which this operator does not know who told them what, have the one that is
    listed: its source is the one that the status told of. A status that tells of none was written before it did."""
    said = (before or {}).get("source")
    return said == adapter.source or (said is None and (before or {}).get("reason") == Reason.ADAPTER_LOADED)


def _state(adapter: PlacedAdapter, on_pods: Mapping[str, OnPod], before: Mapping[str, Any]) -> AdapterState:
    """What is said of one, by what the ready engines have."""
    num_loaded = sum(each.adapters.serves(adapter.name) for each in on_pods.values())
    troubles = ((pod, each.adapters.trouble(adapter.name)) for pod, each in on_pods.items())
    refusals = [(pod, sentence) for pod, sentence in troubles if sentence is not None]
    absent = [(pod, missing) for pod, each in on_pods.items() if (missing := each.missing(adapter)) is not None]
    absent.sort(key=lambda each: each[1].reason == Reason.DOWNLOADING)  # what failed is told first
    count = f"loaded on {num_loaded}/{len(on_pods)} ready replicas"
    is_everywhere = bool(on_pods) and num_loaded == len(on_pods)
    if adapter.reason:
        reason, message = adapter.reason, adapter.message
    elif refusals:
        pod, sentence = refusals[0]
        reason, message = Reason.ADAPTER_NOT_LOADED, f"{count}; {pod}: {sentence}"
    elif absent:
        pod, missing = absent[0]
        reason, message = missing.reason, f"{count}; {pod}: {missing.sentence}"
    elif is_everywhere:
        reason, message = Reason.ADAPTER_LOADED, count
    elif on_pods:
        reason, message = Reason.ADAPTER_LOADING, f"{count}; it is being loaded"
    else:
        reason, message = Reason.ADAPTER_LOADING, f"{count}: it is loaded as they become ready"
    return AdapterState(
        name=adapter.name,
        served_name=adapter.served_name,
        source=adapter.source if is_everywhere else str(before.get("source") or ""),
        num_loaded=num_loaded,
        reason=str(reason),
        message=message,
    )
