"""How far pods are that download a model: asked of the pods themselves, and told on.

Who calls it: the operator runs a DownloadWatch beside its queue. What an answer means is `pod_diagnosis`' business.
"""

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from fairlead.controller.pod_diagnosis import in_words, is_downloading
from fairlead.controller.worker import Key
from fairlead.fleet.pods import is_active, owner_of
from fairlead.kube.client import JsonObject
from fairlead_protocol.downloads import DOWNLOAD_PORT, PROGRESS_PATH, DownloadProgress
from fairlead_protocol.http.addresses import authority
from fairlead_protocol.http.client import HttpClient, TimeLimits
from fairlead_protocol.http.client_connection import TransportError
from fairlead_protocol.http.origin import parse

LOOK_SECONDS = 2.0
"""Between two questions to a pod: each new answer is a new status."""
MAX_AT_ONCE = 64
"""Pods that are asked in one look; others keep what was last heard of them, and are asked in the next."""
_LIMITS = TimeLimits(connect=2.0, first_byte=5.0, silence=5.0, whole=5.0)
"""Long for a process that answers between two chunks: on a busy node each of them may take a second."""
_MAX_BYTES = 64 * 2**10


class DownloadWatch:
    """Follows the downloads of all engines' pods. `run` it as a task; `known` says what was last heard."""

    def __init__(self, pods: Callable[[], Iterable[JsonObject]], on_change: Callable[[Iterable[Key]], None]) -> None:
        """`pods`: those there are now. `on_change`: told of each LLMDeployment of which there is something new to
        say."""
        self._pods = pods
        self._on_change = on_change
        self._http: HttpClient | None = None
        self._num_asked = 0
        self.known: dict[str, DownloadProgress] = {}
        """By the pod's uid. A pod that does not answer keeps what it last said; one that is done is absent."""

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
        """None where it does not answer, or answers something else."""
        address = (pod.get("status") or {}).get("podIP")
        if not address:
            return None
        self._http = self._http or HttpClient(max_idle=0)
        origin, target = parse(f"http://{authority(address, DOWNLOAD_PORT)}{PROGRESS_PATH}")
        try:
            async with self._http.request(origin, "GET", target, _LIMITS, headers={}) as response:
                answer = await response.read(_MAX_BYTES)
                return msgspec.json.decode(answer, type=DownloadProgress) if response.status == 200 else None
        except (TransportError, TimeoutError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
