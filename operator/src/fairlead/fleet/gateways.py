"""GatewayFollower: follows the signals of every gateway pod, for the autoscaler. The only place where signals do I/O.

A gateway is followed from Ready until it is gone: a draining one still serves. A broken stream is reopened after a
pause; meanwhile the gateway's window stays and grows old. The autoscaler decides what that means.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from fairlead.api.signals_message import PATH_SIGNALS, SignalsLine
from fairlead.demand.readings import GatewayWindow, HeardLoad, Readings, newest_loads
from fairlead.fleet.pods import control_url, ready_since
from fairlead.kube.backoff import Backoff
from fairlead.kube.client import JsonObject, KubeClient
from fairlead.kube.resources import PODS
from fairlead.kube.watch import Reflector
from fairlead_common.http.client import HttpClient, TimeLimits, lines
from fairlead_common.http.client_connection import TransportError, cause_of
from fairlead_common.http.origin import parse

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 2.0
SILENCE_SECONDS = 5.0
"""A gateway sends a line every second; after so long without one its stream is reopened."""
FIRST_PAUSE_SECONDS = 0.1
LAST_PAUSE_SECONDS = 5.0
MAX_LINE_BYTES = 16 * 2**20
REMEMBERED_SECONDS = 10.0
"""How long an engine counts as hanging without news: gateways that pause for a moment have not mended it."""


@dataclass(frozen=True, slots=True)
class Hanging:
    """An engine in a step that will hardly end."""

    model: str
    """The LLMDeployment that it serves: `namespace/name`."""
    seconds: float
    """How long the step has been running."""


class GatewayFollower:
    """`run` it as a task; `readings`, `running` and `hanging` give the present state."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        selector: str,
        silence_seconds: float = SILENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        """`namespace` and label `selector` choose the gateways' pods. `sleep` waits out pauses."""
        self.woken = asyncio.Event()
        """Set for news that cannot wait: waiting requests, a request for a model without a ready replica, or a gateway
        heard (again) after a gap. Cleared by the reader."""
        self._pods = Reflector(
            client, PODS, namespace=namespace, label_selector=selector, on_change=lambda *_: self._changed.set()
        )
        self._changed = asyncio.Event()
        self._http = HttpClient(max_idle=0)
        self._limits = TimeLimits(connect=CONNECT_SECONDS, first_byte=silence_seconds, silence=silence_seconds)
        self._clock = clock
        self._sleep = sleep
        self._windows: dict[str, GatewayWindow] = {}
        """By the pod's uid, as everything here."""
        self._following: dict[str, asyncio.Task[None]] = {}
        self._silent: set[str] = set()
        """Those whose silence has been logged."""
        self._decoder = msgspec.json.Decoder(SignalsLine)

    async def run(self) -> None:
        """Follows pods and their signals until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pods.run())
            while True:
                await self._changed.wait()
                self._changed.clear()
                pods = self._by_uid()
                for uid in self._following.keys() - pods.keys():
                    self._following[uid].cancel()
                for uid, pod in pods.items():
                    if ready_since(pod) is not None and uid not in self._following:
                        task = self._following[uid] = tasks.create_task(self._follow(uid, pod))
                        task.add_done_callback(partial(self._forget, uid))

    def readings(self) -> Readings:
        """Every gateway that is ready, or still serves."""
        ready = [uid for uid, pod in self._by_uid().items() if ready_since(pod) is not None]
        missing = [uid for uid in ready if uid not in self._windows]
        return Readings(self._clock(), tuple(self._windows.values()), len(missing))

    def running(self) -> Mapping[str, int]:
        """Requests of each engine, running or waiting, by its pod's uid, from the newest load."""
        return {uid: each.load.running + each.load.waiting for uid, each in self._newest_loads().items()}

    def hanging(self) -> Mapping[str, Hanging]:
        """Engines that hang in a step, by their pods' uids, from the newest loads."""
        now = self._clock()
        return {
            uid: Hanging(each.model, now - each.time + each.load.step_age_seconds)
            for uid, each in self._newest_loads().items()
            if each.load.hangs and now - each.time <= REMEMBERED_SECONDS
        }

    def tokenizer_problems(self) -> Mapping[str, str]:
        """Why gateways leave the prompts of LLMDeployments to engines to tokenise, by `namespace/name`."""
        lines = [window.latest.line for window in self._windows.values()]
        found = ((name, model.tokenizer_problem) for line in lines for name, model in sorted(line.models.items()))
        return {name: problem for name, problem in found if problem}

    def _newest_loads(self) -> Mapping[str, HeardLoad]:
        return newest_loads(window.latest for window in self._windows.values())

    async def _follow(self, uid: str, pod: JsonObject) -> None:
        """One gateway, until its stream ends while the pod is not ready, or the pod is gone."""
        backoff = Backoff(FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS, sleep=self._sleep)
        while True:
            problem, spoke = "its stream of signals ended", False
            try:
                origin, path = parse(control_url(pod, PATH_SIGNALS))
                async with self._http.request(origin, "GET", path, self._limits) as response:
                    if response.status != 200:
                        raise TransportError(f"HTTP {response.status}")
                    async for line in lines(response, limit=MAX_LINE_BYTES):
                        self._hear(uid, self._decoder.decode(line), is_first=not spoke)
                        spoke = True
            except (TransportError, ValueError, RecursionError) as error:  # of a bad line the latter two
                problem = cause_of(error)
            now = self._by_uid().get(uid)
            if now is None or ready_since(now) is None:
                return
            if uid not in self._silent:
                logger.warning("cannot follow gateway %s: %s", pod["metadata"]["name"], problem)
            self._silent.add(uid)
            if spoke:
                backoff.reset()
            await backoff.pause()

    def _forget(self, uid: str, _: "asyncio.Task[None]") -> None:
        """It is followed no longer."""
        del self._following[uid]
        self._windows.pop(uid, None)
        self._silent.discard(uid)
        self._changed.set()  # it may have become ready again in this very moment

    def _hear(self, uid: str, line: SignalsLine, *, is_first: bool) -> None:
        self._windows[uid] = self._windows.get(uid, GatewayWindow()).hear(line, self._clock())
        self._silent.discard(uid)
        if is_first or line.wake or any(model.waiting for model in line.models.values()):
            self.woken.set()

    def _by_uid(self) -> dict[str, JsonObject]:
        return {pod["metadata"]["uid"]: pod for pod in self._pods.store.values()}
