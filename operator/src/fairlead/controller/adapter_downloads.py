"""How far pods are that download adapters: asked of the container beside each engine.

Who calls it: the adapter loader, in each look. Where an adapter lies once it is there is remembered for as long as its
pod lives: the container holds it, and a moment without an answer must not have an engine unload it.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from fairlead.api import names
from fairlead.api.conditions import Reason
from fairlead.api.pod_containers import lasting_container
from fairlead.controller.pod_diagnosis import in_words
from fairlead.kube.client import JsonObject
from fairlead_protocol.downloads import SOURCES_PATH, SOURCES_PORT, SourcesReport, SourceState
from fairlead_protocol.http.addresses import authority
from fairlead_protocol.http.client import HttpClient, TimeLimits
from fairlead_protocol.http.client_connection import TransportError, cause_of
from fairlead_protocol.http.origin import parse

LOOK_SECONDS = 2.0
"""Until the next look while something is being downloaded: each new answer is a new status."""
_LIMITS = TimeLimits(connect=1.0, first_byte=1.0, silence=1.0, whole=2.0)
_MAX_BYTES = 2**20


class NoReport(Exception):
    """A pod's container does not answer, or not what it should; the text says why."""


class ReportsOfPods(Protocol):
    """Where reports come from."""

    async def report(self, pod: JsonObject) -> SourcesReport:
        """Of a pod with an address. Raises NoReport."""


class HttpReports:
    """By the container's HTTP port."""

    def __init__(self) -> None:
        self._http: HttpClient | None = None

    async def report(self, pod: JsonObject) -> SourcesReport:
        self._http = self._http or HttpClient(max_idle=0)
        origin, target = parse(f"http://{authority(pod['status']['podIP'], SOURCES_PORT)}{SOURCES_PATH}")
        try:
            async with self._http.request(origin, "GET", target, _LIMITS, headers={}) as response:
                answer = await response.read(_MAX_BYTES)
                if response.status != 200:
                    raise NoReport(f"it answers HTTP {response.status}")
                return msgspec.json.decode(answer, type=SourcesReport)
        except (TransportError, TimeoutError) as error:
            raise NoReport(cause_of(error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise NoReport(f"its answer cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a pod does not have an adapter yet."""

    reason: str
    """A Reason, or a DownloadFailure."""
    sentence: str


@dataclass(slots=True)
class PodDownloads:
    """What one pod has downloaded, and why it has not the rest."""

    folders: dict[str, str] = field(default_factory=dict)
    """By source, as the engine sees them."""
    missing: dict[str, Missing] = field(default_factory=dict)
    """By source."""


class AdapterDownloads:
    """Of all pods, by uid."""

    def __init__(self, reports: ReportsOfPods | None = None) -> None:
        """`reports`: None = over HTTP."""
        self._reports = reports or HttpReports()
        self._pods: dict[str, PodDownloads] = {}

    async def look(self, pods: Iterable[JsonObject], sources: Collection[str]) -> None:
        """Asks those that do not have all of `sources` yet, all at once."""
        await asyncio.gather(*(self._look(pod, sources) for pod in pods))

    def of(self, pod: JsonObject) -> PodDownloads:
        """As of the last look."""
        return self._pods.setdefault(pod["metadata"]["uid"], PodDownloads())

    def keep(self, uids: Collection[str]) -> None:
        """Forgets other pods."""
        for uid in self._pods.keys() - uids:
            del self._pods[uid]

    async def _look(self, pod: JsonObject, sources: Collection[str]) -> None:
        known = self.of(pod)
        known.folders = {source: folder for source, folder in known.folders.items() if source in sources}
        known.missing = {}
        if known.folders.keys() >= set(sources):
            return
        wanted = [source for source in sources if source not in known.folders]
        if not _has_downloader(pod):
            sentence = (
                "it has nothing to download with, as replicas have that are made from now on: it is being replaced"
            )
            known.missing = {source: Missing(Reason.DOWNLOADING, sentence) for source in wanted}
            return
        try:
            report = await self._reports.report(pod)
        except NoReport as error:
            sentence = f"its container {names.ADAPTERS_CONTAINER} cannot be asked: {error}"
            known.missing = {source: Missing(Reason.ADAPTER_NOT_LOADED, sentence) for source in wanted}
            return
        states = {each.source: each for each in report.sources}
        known.folders |= {source: folder for source in wanted if (folder := _folder(states.get(source)))}
        known.missing = {source: _missing(source, states) for source in wanted if source not in known.folders}


def _has_downloader(pod: JsonObject) -> bool:
    return bool(lasting_container(pod.get("spec") or {}, names.ADAPTERS_CONTAINER))


def _folder(state: SourceState | None) -> str | None:
    return None if state is None else state.folder


def _missing(source: str, states: Mapping[str, SourceState]) -> Missing:
    state = states.get(source)
    if state is None:
        return Missing(
            Reason.DOWNLOADING, f"{source} waits until the list has reached the pod, a minute or two at most"
        )
    if state.reason:
        return Missing(state.reason, state.message)
    if state.progress is None:
        return Missing(Reason.DOWNLOADING, f"{source} waits for other downloads")
    return Missing(Reason.DOWNLOADING, in_words(state.progress))
