"""Progress of downloads, asked of the pods: of models before the engine starts, of adapters beside it.

The operator runs a `DownloadWatch` beside its queue; the adapter loader has `PodDownloads` look.
`pod_diagnosis` words the answers.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from fairlead.api import names
from fairlead.api.conditions import Reason
from fairlead.api.pod_spec import lasting_container
from fairlead.controller.pod_diagnosis import in_words, is_downloading
from fairlead.controller.worker import Key
from fairlead.fleet.pods import is_active, owner_of
from fairlead.kube.client import JsonObject
from fairlead_common.http.addresses import authority
from fairlead_common.http.client import HttpClient, TimeLimits
from fairlead_common.http.client_connection import TransportError, cause_of
from fairlead_common.http.origin import parse
from fairlead_common.wire.downloads import (
    DOWNLOAD_PORT,
    PROGRESS_PATH,
    SOURCES_PATH,
    SOURCES_PORT,
    DownloadProgress,
    SourcesReport,
    SourceState,
)

LOOK_SECONDS = 2.0
"""Between two questions while something is being downloaded: each new answer is a new status."""
MAX_AT_ONCE = 64
"""Pods asked for their models in one look; the next look asks the others."""
_MODEL_LIMITS = TimeLimits(connect=2.0, first_byte=5.0, silence=5.0, whole=5.0)
"""Long for a process that answers between two chunks: on a busy node each chunk may take a second."""
_MAX_BYTES = 2**20
_Answer = TypeVar("_Answer")


class NoReport(Exception):
    """A pod gives no usable answer; the text says why."""


class PodReports:
    """Asks pods over HTTP; makes its client with the first question, inside a loop."""

    def __init__(self, port: int, path: str, limits: TimeLimits) -> None:
        self._where = port, path
        self._limits = limits
        self._http: HttpClient | None = None

    async def ask(self, pod: JsonObject, type: type[_Answer]) -> _Answer:
        """What a pod with an address answers. Raises NoReport."""
        self._http = self._http or HttpClient(max_idle=0)
        port, path = self._where
        origin, target = parse(f"http://{authority(pod['status']['podIP'], port)}{path}")
        try:
            async with self._http.request(origin, "GET", target, self._limits, headers={}) as response:
                answer = await response.read(_MAX_BYTES)
                if response.status != 200:
                    raise NoReport(f"it answers HTTP {response.status}")
                return msgspec.json.decode(answer, type=type)
        except (TransportError, TimeoutError) as error:
            raise NoReport(cause_of(error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise NoReport(f"its answer cannot be read: {error}") from error


def adapter_reports() -> PodReports:
    """Asks the containers that download adapters."""
    return PodReports(SOURCES_PORT, SOURCES_PATH, TimeLimits(connect=1.0, first_byte=1.0, silence=1.0, whole=2.0))


class DownloadWatch:
    """Follows the model downloads of all engines' pods. `run` it as a task; `known` says what was last heard."""

    def __init__(self, pods: Callable[[], Iterable[JsonObject]], on_change: Callable[[Iterable[Key]], None]) -> None:
        """`pods`: those there are now. `on_change`: told of each LLMDeployment whose downloads have changed."""
        self._pods = pods
        self._on_change = on_change
        self._reports = PodReports(DOWNLOAD_PORT, PROGRESS_PATH, _MODEL_LIMITS)
        self._num_asked = 0
        self.known: dict[str, DownloadProgress] = {}
        """By the pod's uid. A silent pod keeps its last word; finished ones are absent."""

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Asks every pod that downloads. Never raises for what one answers."""
        pods = [pod for pod in self._pods() if is_active(pod) and is_downloading(pod)]
        before = {uid: progress for pod in pods if (progress := self.known.get(uid := pod["metadata"]["uid"]))}
        first = self._num_asked % len(pods) if len(pods) > MAX_AT_ONCE else 0
        asked = [*pods[first:], *pods[:first]][:MAX_AT_ONCE]
        self._num_asked = first + len(asked)
        answers = await asyncio.gather(*map(self._ask, asked))
        heard = {pod["metadata"]["uid"]: each for pod, each in zip(asked, answers, strict=True) if each is not None}
        self.known = before | heard
        changed = {uid for uid, each in heard.items() if uid not in before or in_words(before[uid]) != in_words(each)}
        if changed:
            self._on_change({owner_of(pod) for pod in asked if pod["metadata"]["uid"] in changed})

    async def _ask(self, pod: JsonObject) -> DownloadProgress | None:
        """None = no address, or no usable answer."""
        if not (pod.get("status") or {}).get("podIP"):
            return None
        try:
            return await self._reports.ask(pod, DownloadProgress)
        except NoReport:
            return None


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a pod does not have an adapter yet."""

    reason: str
    """A Reason, or a DownloadFailure."""
    sentence: str


class PodDownloads:
    """Downloaded adapters of one pod, and why others are missing; both by source. Folders are remembered for the pod's
    lifetime: a moment without an answer must not have an engine unload an adapter."""

    def __init__(self, reports: PodReports) -> None:
        self._reports = reports
        self.folders: dict[str, str] = {}
        """Folders as the engine sees them."""
        self.missing: dict[str, Missing] = {}

    async def look(self, pod: JsonObject, sources: Collection[str]) -> None:
        """Asks the pod if it lacks any of `sources`."""
        self.folders = {source: folder for source, folder in self.folders.items() if source in sources}
        self.missing = {}
        wanted = [source for source in sources if source not in self.folders]
        if not wanted:
            return
        if not lasting_container(pod.get("spec") or {}, names.ADAPTERS_CONTAINER):
            sentence = (
                "it has nothing to download with, as replicas have that are made from now on: it is being replaced"
            )
            self.missing = {source: Missing(Reason.DOWNLOADING, sentence) for source in wanted}
            return
        try:
            report = await self._reports.ask(pod, SourcesReport)
        except NoReport as error:
            sentence = f"its container {names.ADAPTERS_CONTAINER} cannot be asked: {error}"
            self.missing = {source: Missing(Reason.ADAPTER_NOT_LOADED, sentence) for source in wanted}
            return
        states = {each.source: each for each in report.sources}
        self.folders |= {source: folder for source in wanted if source in states and (folder := states[source].folder)}
        self.missing = {source: _missing(source, states) for source in wanted if source not in self.folders}


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
