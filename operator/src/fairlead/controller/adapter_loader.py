"""Adapters on running engines: asks each ready engine for its adapters, and has it load and unload the difference.

Called by the reconciler, after children are applied and before the status is written. Does not wait for loading: a task
per engine (`pod_adapters.py`) loads, and then has the LLMDeployment looked at again. Level-triggered: after a restart
`status.adapters` is the memory, and a newly ready pod is brought up to date by the next look. Adapters that were never
listed are their owner's and stay.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fairlead.api.conditions import MAX_REASON_LENGTH, Reason, shortened
from fairlead.controller.desired import Desired
from fairlead.controller.downloads import LOOK_SECONDS, Missing, PodDownloads, adapter_reports
from fairlead.controller.observe import Observed
from fairlead.controller.pod_adapters import HttpEngineAdapters, PodAdapters
from fairlead.controller.pod_diagnosis import Stage
from fairlead.controller.worker import Key
from fairlead.kube.client import JsonObject
from fairlead.kube.watch import key_of
from fairlead.manifests.source import PlacedAdapter

PROGRESS_SECONDS = 1.0
"""Least seconds between two statuses while adapters are being loaded."""
LookAgain = Callable[[Key, float], None]
"""Has an LLMDeployment looked at again in so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterState:
    """One listed adapter, as people are told."""

    name: str
    served_name: str
    source: str
    """The loaded adapter's source; empty = not loaded yet."""
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
    """One pod's adapters: on the engine, and downloaded beside it."""

    adapters: PodAdapters
    downloads: PodDownloads

    async def look(
        self, pod: JsonObject, placed: Collection[PlacedAdapter], ours: Collection[str], kept: Collection[str]
    ) -> None:
        """As `PodAdapters.look`. `kept`: adapters that engines had at the last status."""
        await self.downloads.look(pod, {each.source for each in placed if each.is_downloaded})
        folders = self.downloads.folders
        paths = {each.name: folders.get(each.source, "") if each.is_downloaded else each.path for each in placed}
        listed = {name: path for name, path in paths.items() if path}
        awaited = {each.name for each in placed if each.is_downloaded and not paths[each.name]}
        await self.adapters.look(pod, listed, ours, {name: paths[name] for name in kept}, awaited)

    def missing(self, adapter: PlacedAdapter) -> Missing | None:
        """Why it is not downloaded here."""
        return self.downloads.missing.get(adapter.source) if adapter.is_downloaded else None


class AdapterLoader:
    """Brings every ready engine to the adapters of the spec."""

    def __init__(
        self,
        look_again: LookAgain = lambda key, seconds: None,
        engines: HttpEngineAdapters | None = None,
    ) -> None:
        """`look_again`: called when an engine's adapters have changed."""
        self._look_again = look_again
        self._engines = engines or HttpEngineAdapters()
        self._reports = adapter_reports()
        self._pods: dict[Key, dict[str, OnPod]] = {}
        """By LLMDeployment and pod's uid."""

    async def forget(self, key: Key) -> None:
        """The LLMDeployment is gone."""
        await _stop(self._pods.pop(key, {}))

    async def close(self) -> None:
        """Nothing is loaded any more; engines go on with what they have begun."""
        for key in list(self._pods):
            await self.forget(key)

    async def bring(self, observed: Observed, wanted: Desired) -> AdapterStates:
        """Asks all ready engines at once, or nobody when nothing is or was listed. Does not wait for loading, and never
        raises for engines' answers."""
        if wanted.obstacle is not None or wanted.deployment is None:
            return AdapterStates(None)
        before = {each["name"]: each for each in (observed.body.get("status") or {}).get("adapters") or ()}
        key = key_of(observed.body)
        if not wanted.adapters and not before and key not in self._pods:
            return AdapterStates()
        understood = zip(observed.replicas, observed.diagnoses, strict=True)
        ready = [each.leader for each, found in understood if found.stage is Stage.READY and each.address]
        pods = self._pods.setdefault(key, {})
        gone = pods.keys() - {each.uid for each in observed.replicas}
        await _stop({uid: pods.pop(uid) for uid in gone})
        on_pods = {pod["metadata"]["name"]: self._of(key, pods, pod) for pod in ready}
        ours = before.keys() | {each.name for each in wanted.adapters}
        kept = {each.name for each in wanted.adapters if _is_kept(each, before.get(each.name))}
        looks = (on_pods[pod["metadata"]["name"]].look(pod, wanted.adapters, ours, kept) for pod in ready)
        await asyncio.gather(*looks)
        states = tuple(_state(each, on_pods, before.get(each.name, {})) for each in wanted.adapters)
        if any(each.reason == Reason.DOWNLOADING for each in states):
            self._look_again(key, LOOK_SECONDS)
        listed = {each.name for each in wanted.adapters if each.path or each.is_downloaded}
        is_left = any(each.adapters.refused.keys() - listed for each in on_pods.values())
        if not wanted.adapters and all(each.adapters.is_empty for each in pods.values()):
            self._pods.pop(key, None)
        return AdapterStates(states, is_unfinished=is_left or any(each.is_trouble for each in states))

    def _of(self, key: Key, pods: dict[str, OnPod], pod: JsonObject) -> OnPod:
        uid = pod["metadata"]["uid"]
        if uid not in pods:
            pods[uid] = OnPod(PodAdapters(self._engines, partial(self._changed, key)), PodDownloads(self._reports))
        return pods[uid]

    def _changed(self, key: Key, is_last: bool) -> None:
        if key in self._pods:
            self._look_again(key, 0.0 if is_last else PROGRESS_SECONDS)


async def _stop(pods: Mapping[str, OnPod]) -> None:
    await asyncio.gather(*(each.adapters.stop() for each in pods.values()))


def _is_kept(adapter: PlacedAdapter, before: Mapping[str, Any] | None) -> bool:
    """After a restart of the operator: whether the adapter loaded under this name is the listed one, because the status
    recorded the same source. Older statuses record no source."""
    said = (before or {}).get("source")
    return said == adapter.source or (said is None and (before or {}).get("reason") == Reason.ADAPTER_LOADED)


def _state(adapter: PlacedAdapter, on_pods: Mapping[str, OnPod], before: Mapping[str, Any]) -> AdapterState:
    """One adapter's state, from the ready engines."""
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
