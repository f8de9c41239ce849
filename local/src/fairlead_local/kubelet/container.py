"""The life of one container: created, started, probed, restarted with back-off, stopped.

`ContainerRunner.run` is the story. The runner keeps a `ContainerRecord`, reports changes to the pod, never to the API.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import aiohttp

from fairlead_local.apiserver.operations import Operations
from fairlead_local.apiserver.status import Json
from fairlead_local.apiserver.times import timestamp
from fairlead_local.controllers.controller import ObjectEvents
from fairlead_local.kubelet.environment import ContainerConfigError, ImageNotFound, Images
from fairlead_local.kubelet.node import AddressBlock, KubeletSettings
from fairlead_local.kubelet.pod_status import ContainerRecord
from fairlead_local.kubelet.probes import PreStop, Probe, ProbeKind, watch_probe
from fairlead_local.kubelet.process import ContainerLaunch, ContainerProcess
from fairlead_local.kubelet.process_table import ProcessRecords


@dataclass(frozen=True, slots=True)
class Prepared:
    """Parts of one run."""

    launch: ContainerLaunch
    probes: dict[ProbeKind, Probe]
    pre_stop: PreStop | None = None
    """The request before the end; None = no hook."""


_POLL_SECONDS = 0.05
_LEAST_GRACE_SECONDS = 2.0
"""Least grace period of a sidecar with a late turn, as in Kubernetes."""

Prepare = Callable[[int], Prepared]
"""Restart count → what to run; raises ImageNotFound, ContainerConfigError."""


async def pause(stopping: asyncio.Event, seconds: float) -> None:
    """Returns after `seconds`, or as soon as the pod is stopped."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopping.wait()


class ContainerRole(StrEnum):
    """Role of a container in the pod."""

    MAIN = "main"
    INIT = "init"
    """Ends with success before the next containers begin."""
    SIDECAR = "sidecar"
    """An init container that is always restarted: later containers begin once it has started, and end before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Shared by all pods of the node."""

    operations: Operations
    images: Images
    addresses: AddressBlock
    records: ProcessRecords
    recorder: ObjectEvents
    session: aiohttp.ClientSession
    settings: KubeletSettings
    pods_folder: Path
    claims_folder: Path
    environment: Mapping[str, str]
    """Variables of every container, below its own."""


class ContainerRunner:
    """Runs one container until its pod is stopped or its restart policy is satisfied."""

    def __init__(
        self, node: Node, pod: Json, spec: Json, role: ContainerRole, prepare: Prepare, on_change: Callable[[], None]
    ) -> None:
        self._node = node
        self._pod = pod
        self._role = role
        self._prepare = prepare
        self._on_change = on_change
        self.is_sidecar = role is ContainerRole.SIDECAR
        self.record = ContainerRecord(spec["name"], spec["image"], is_sidecar=self.is_sidecar)
        if pod["spec"].get("initContainers"):
            self.record.state = {"waiting": {"reason": "PodInitializing"}}
        self._process: ContainerProcess | None = None
        self._pre_stop: PreStop | None = None
        self._stopping = asyncio.Event()
        self.started = asyncio.Event()
        """Set once the container has started, by the startup probe, or was stopped before."""
        self.turn = asyncio.Event()
        """Set once all containers before a sidecar in the order of ends have ended."""
        if not self.is_sidecar:
            self.turn.set()
        self._ending: asyncio.Task[None] | None = None
        self._deadline = math.inf
        self.log: Path | None = None
        self.previous_log: Path | None = None

    async def run(self) -> None:
        """Runs the container, again and again by the restart policy of the pod."""
        failures = 0
        while not self._stopping.is_set():
            prepared = await self._prepared()
            if prepared is None:
                break
            ran_for = await self._run_once(prepared)
            if self._stopping.is_set() or not self._restarts():
                break
            failures = 0 if ran_for >= self._node.settings.back_off_reset else failures + 1
            await self._back_off(failures - 1)
            if not self._stopping.is_set():
                self._keep_last_state()
                self.record.restart_count += 1
                self.previous_log = self.log
        self.record.is_done = not self._restarts() or self._stopping.is_set()
        self._changed(ready=False, started=False)
        self.started.set()

    def stop(self, grace_seconds: float) -> None:
        """Asks the process to end, kills it after `grace_seconds` (a later call may shorten them); then `run` ends. A
        sidecar is asked after `turn`."""
        self._stopping.set()
        self.started.set()
        if grace_seconds <= 0:
            self.turn.set()
        self._end_process(grace_seconds, f"Stopping container {self.record.name}")

    async def _prepared(self) -> Prepared | None:
        """Retries until the next run is prepared; None = the pod was stopped before."""
        attempts = 0
        while not self._stopping.is_set():
            try:
                return self._prepare(self.record.restart_count)
            except ImageNotFound as error:
                recorder, pod, image = self._node.recorder, self._pod, self.record.image
                self._waiting("ErrImagePull", str(error))
                recorder.warning(pod, "Failed", f'Failed to pull image "{image}": {error}')
                recorder.warning(pod, "Failed", "Error: ErrImagePull")
                await pause(self._stopping, self._node.settings.retry_interval)
                self._waiting("ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {error}')
                recorder.normal(pod, "BackOff", f'Back-off pulling image "{image}"')
                await pause(self._stopping, self._back_off_seconds(attempts + 1))
            except ContainerConfigError as error:
                self._waiting("CreateContainerConfigError", str(error))
                self._node.recorder.warning(self._pod, "Failed", f"Error: {error}")
                await pause(self._stopping, self._node.settings.retry_interval)
            attempts += 1
        return None

    async def _run_once(self, prepared: Prepared) -> float:
        """One run, from start to end; returns how many seconds it lasted."""
        loop = asyncio.get_running_loop()
        try:
            process = await ContainerProcess.start(prepared.launch, self._node.records)
        except OSError as error:
            message, now = f"failed to start container: {error}", timestamp()
            ended = {"exitCode": 128, "reason": "StartError", "message": message, "startedAt": now, "finishedAt": now}
            self.record.state = {"terminated": ended}
            self._node.recorder.warning(self._pod, "Failed", f"Error: {message}")
            self._changed(ready=False, started=False)
            return 0.0
        began = loop.time()
        self._process, self._pre_stop, self.log = process, prepared.pre_stop, prepared.launch.log
        self.record.container_id = f"process://{process.pid}"
        self.record.state = {"running": {"startedAt": process.started_at}}
        self._node.recorder.normal(self._pod, "Started", f"Started container {self.record.name}")
        probing = asyncio.create_task(self._probe(prepared.probes))
        if self._stopping.is_set():  # the pod was stopped while the process was being started
            self.stop(self._deadline - began)
        try:
            terminated = await process.ended()
        finally:
            probing.cancel()
            self._process, self._ending, self._deadline = None, None, math.inf
        self.record.state = {"terminated": {**terminated, "containerID": self.record.container_id}}
        self._changed(ready=False, started=False)
        return loop.time() - began

    async def _probe(self, probes: dict[ProbeKind, Probe]) -> None:
        """Probes readiness and liveness after the startup probe has succeeded."""
        if startup := probes.get(ProbeKind.STARTUP):
            self._changed(ready=False, started=False)
            begun = asyncio.Event()
            watching = asyncio.create_task(
                self._watch(startup, lambda well: begun.set() if well else self._restart(startup))
            )
            try:
                await begun.wait()
            finally:
                watching.cancel()
        self._changed(started=True, ready=ProbeKind.READINESS not in probes)
        async with asyncio.TaskGroup() as group:
            if readiness := probes.get(ProbeKind.READINESS):
                group.create_task(self._watch(readiness, lambda well: self._changed(ready=well)))
            if liveness := probes.get(ProbeKind.LIVENESS):
                group.create_task(self._watch(liveness, lambda well: None if well else self._restart(liveness)))

    async def _watch(self, probe: Probe, on_turn: Callable[[bool], None]) -> None:
        def unhealthy(problem: str) -> None:
            text = f"{probe.kind.word} probe failed: {problem}"
            self._node.recorder.warning(self._pod, "Unhealthy", text)

        await watch_probe(probe, self._node.session, on_turn, unhealthy)

    def _restart(self, probe: Probe) -> None:
        """Ends the process after a failed liveness or startup probe; a restart follows."""
        if self._stopping.is_set() or self._process is None:
            return
        text = f"Container {self.record.name} failed {probe.kind.word.lower()} probe, will be restarted"
        of_pod = float(self._pod["spec"].get("terminationGracePeriodSeconds", 30))
        self._end_process(of_pod if probe.grace is None else probe.grace, text)

    def _end_process(self, grace_seconds: float, why: str) -> None:
        self._deadline = min(self._deadline, asyncio.get_running_loop().time() + grace_seconds)
        if self._process is not None and self._ending is None:
            self._node.recorder.normal(self._pod, "Killing", why)
            waits_for_turn = self._stopping.is_set() and not self.turn.is_set()
            if self._pre_stop is None and not waits_for_turn:
                self._process.ask_to_end()
                going = None
            else:
                going = asyncio.create_task(self._may_be_asked())
            self._ending = asyncio.create_task(self._kill_at_deadline(self._process, going))

    async def _may_be_asked(self) -> None:
        """Waits until the process may be asked to end: for the hook, then, in an ending pod, for the turn."""
        if self._pre_stop is not None and (problem := await self._pre_stop.ask(self._node.session)):
            text = f"PreStopHook failed: {problem}"
            self._node.recorder.warning(self._pod, "FailedPreStopHook", text)
        if self._stopping.is_set():
            await self.turn.wait()

    async def _kill_at_deadline(self, process: ContainerProcess, going: "asyncio.Task[None] | None") -> None:
        """`going`: ends when the process may be asked to end; the grace period runs meanwhile."""
        loop = asyncio.get_running_loop()
        try:
            while self._process is process:
                is_late = loop.time() >= self._deadline
                if going is not None and (going.done() or (is_late and self.is_sidecar)):
                    going.cancel()
                    going = None
                    process.ask_to_end()
                    if self.is_sidecar:
                        self._deadline = max(self._deadline, loop.time() + _LEAST_GRACE_SECONDS)
                elif is_late:
                    process.kill()
                    return
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            if going is not None:
                going.cancel()

    def _restarts(self) -> bool:
        if self.is_sidecar:
            return True
        policy = self._pod["spec"].get("restartPolicy", "Always")
        if self._role is ContainerRole.INIT and policy == "Always":
            policy = "OnFailure"
        failed = bool(self.record.state.get("terminated", {}).get("exitCode"))
        return policy == "Always" or (policy == "OnFailure" and (failed or "terminated" not in self.record.state))

    async def _back_off(self, failures: int) -> None:
        """The first restart is immediate; then waits double."""
        seconds = self._back_off_seconds(failures)
        if not seconds:
            return
        metadata, name = self._pod["metadata"], self.record.name
        pod = f"{metadata['name']}_{metadata['namespace']}({metadata['uid']})"
        self._keep_last_state()
        self._waiting("CrashLoopBackOff", f"back-off {seconds:g}s restarting failed container={name} pod={pod}")
        text = f"Back-off restarting failed container {name} in pod {pod}"
        self._node.recorder.warning(self._pod, "BackOff", text)
        await pause(self._stopping, seconds)

    def _back_off_seconds(self, failures: int) -> float:
        settings = self._node.settings
        return min(settings.first_back_off * 2.0 ** (failures - 1), settings.longest_back_off) if failures else 0.0

    def _keep_last_state(self) -> None:
        if "terminated" in self.record.state:
            self.record.last_state = self.record.state

    def _waiting(self, reason: str, message: str) -> None:
        self.record.state = {"waiting": {"reason": reason, "message": message}}
        self._changed(ready=False, started=False)

    def _changed(self, *, ready: bool | None = None, started: bool | None = None) -> None:
        if ready is not None:
            self.record.ready = ready
        if started is not None:
            self.record.started = started
            if started:
                self.started.set()
        self._on_change()
