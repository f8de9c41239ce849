"""The life of one pod on this node: address, volumes, containers, status, and its end.

`PodWorker.run` is the story. A worker is the only writer of the pod's status.
"""

import asyncio
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from fairlead.api.names import TERMINATION_LOG_VARIABLE
from fairlead.api.pod_spec import is_sidecar
from fairlead_local.apiserver.metadata import DeleteOptions
from fairlead_local.apiserver.operations import WriteOptions
from fairlead_local.apiserver.resources import PODS
from fairlead_local.apiserver.status import Json, StatusError
from fairlead_local.apiserver.store import key_of
from fairlead_local.apiserver.times import timestamp
from fairlead_local.kubelet.container import ContainerRole, ContainerRunner, Node, Prepared, pause
from fairlead_local.kubelet.environment import (
    ContainerConfigError,
    arguments,
    environment,
    find_program,
    translate,
    words_of,
)
from fairlead_local.kubelet.node import NoAddress
from fairlead_local.kubelet.pod_status import pod_status
from fairlead_local.kubelet.probes import ProbeKind, parse_pre_stop, parse_probe
from fairlead_local.kubelet.process import ContainerLaunch
from fairlead_local.kubelet.volumes import MountError, PodVolumes

log = logging.getLogger(__name__)

HOST_IP = "127.0.0.1"
_OPTIONS = WriteOptions(manager="kubelet")


class PodWorker:
    """Runs one pod until the pod is deleted or stopped, or all containers are done."""

    def __init__(self, node: Node, pod: Json) -> None:
        self._node = node
        self._pod = pod
        self._ip = ""
        self._start_time = timestamp()
        self._folder = node.pods_folder / str(pod["metadata"]["uid"])
        self._volumes = PodVolumes(node.operations, pod, self._folder / "volumes", node.claims_folder)
        self._init_runners = {
            spec["name"]: self._runner(spec, is_init=True) for spec in pod["spec"].get("initContainers") or ()
        }
        self._runners = {spec["name"]: self._runner(spec) for spec in pod["spec"]["containers"]}
        self._stopping = asyncio.Event()
        self._deleted = asyncio.Event()
        self.idle = asyncio.Event()
        """Set when no container runs or will run."""

    async def run(self) -> None:
        """From admission to the end; removes folder and object of a deleted pod."""
        try:
            is_admitted = await self._retry(self._admit, "FailedCreatePodSandBox")
            if is_admitted and await self._retry(self._mount, "FailedMount"):
                await self._run_containers()
            self.idle.set()
            await self._deleted.wait()
        finally:
            if self._ip not in ("", HOST_IP):
                self._node.addresses.give_back(self._ip)
        # Confirms the end to the API, where somebody may have deleted the pod by force.
        with suppress(StatusError):
            options = DeleteOptions(grace_seconds=0, uid=self._pod["metadata"]["uid"])
            self._node.operations.delete(PODS, *key_of(self._pod), options)
        shutil.rmtree(self._folder, ignore_errors=True)

    def stop(self, grace_seconds: float) -> None:
        """Ends the containers, and `run` as well if the pod is being deleted."""
        self._stopping.set()
        for runner in self._every_runner.values():
            runner.stop(grace_seconds)

    def delete(self, grace_seconds: float) -> None:
        """The pod is being deleted, or gone already."""
        self._deleted.set()
        self.stop(grace_seconds)

    def refresh(self, kind: str, name: str) -> None:
        """Brings the mounted files of a ConfigMap (`configMap`) or Secret (`secret`) up to date."""
        if self._ip and self._volumes.uses(kind, name):
            try:
                self._volumes.set_up()
            except MountError as error:
                self._node.recorder.warning(self._pod, "FailedMount", str(error))

    def log_path(self, container: str, *, previous: bool) -> Path | None:
        """The log of a container's present or previous run."""
        runner = self._every_runner[container]
        return runner.previous_log if previous else runner.log

    def is_writing(self, path: Path) -> bool:
        return any(runner.log == path and runner.record.is_running for runner in self._every_runner.values())

    @property
    def _every_runner(self) -> dict[str, ContainerRunner]:
        """Runners of all containers, by name, which is unique in a pod."""
        return self._init_runners | self._runners

    async def _retry(self, step: Callable[[], None], reason: str) -> bool:
        """Attempts a step of the start until success; false = the pod was stopped before."""
        while not self._stopping.is_set():
            try:
                step()
            except (NoAddress, MountError, OSError) as error:
                self._node.recorder.warning(self._pod, reason, str(error))
                await pause(self._stopping, self._node.settings.retry_interval)
            else:
                return True
        return False

    def _admit(self) -> None:
        """Gives the pod an address."""
        self._ip = HOST_IP if self._pod["spec"].get("hostNetwork") else self._node.addresses.take()
        self._write_status()

    def _mount(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._volumes.set_up()

    async def _run_containers(self) -> None:
        """Sidecars begin in the order of init containers, and end after the main containers, in reverse order."""
        sidecars: list[tuple[ContainerRunner, asyncio.Task[None]]] = []
        async with asyncio.TaskGroup() as group:
            if await self._initialize(group, sidecars):
                await asyncio.wait([group.create_task(runner.run()) for runner in self._runners.values()])
            grace = float(self._pod["spec"].get("terminationGracePeriodSeconds", 30))
            for runner, _ in sidecars:
                runner.stop(grace)
            for runner, running in reversed(sidecars):
                runner.turn.set()
                await running

    async def _initialize(
        self, group: asyncio.TaskGroup, sidecars: list[tuple[ContainerRunner, asyncio.Task[None]]]
    ) -> bool:
        """Runs the init containers one after the other, and collects running sidecars in `sidecars`. False = an init
        container failed for good, or the pod was stopped before all were done."""
        for runner in self._init_runners.values():
            if runner.is_sidecar:
                sidecars.append((runner, group.create_task(runner.run())))
                await runner.started.wait()
            else:
                await runner.run()
            if self._stopping.is_set() or not (runner.is_sidecar or runner.record.has_succeeded):
                return False
        return True

    def _runner(self, spec: Json, *, is_init: bool = False) -> ContainerRunner:
        of_init = ContainerRole.SIDECAR if is_sidecar(spec) else ContainerRole.INIT
        role = of_init if is_init else ContainerRole.MAIN
        prepare = partial(self._prepare, spec)
        return ContainerRunner(self._node, self._pod, spec, role, prepare, self._write_status)

    def _prepare(self, spec: Json, restarts: int) -> Prepared:
        """One run of a container, by the spec and the present objects of the API."""
        if self._pod["spec"].get("ephemeralContainers"):
            raise ContainerConfigError("local mode does not run ephemeral containers")
        if spec.get("volumeDevices"):
            raise ContainerConfigError("local mode has no block devices")
        program = find_program(self._node.images, spec["image"])
        words = words_of(program, spec)
        mounts = self._volumes.mounts(spec)
        name, metadata = spec["name"], self._pod["metadata"]
        own = environment(self._node.operations, self._pod, spec, self._ip, HOST_IP)
        termination_log = self._folder / "termination" / name / str(restarts)
        variables = {
            **os.environ,
            **self._node.environment,
            "HOSTNAME": metadata["name"],
            "PYTHONUNBUFFERED": "1",
            TERMINATION_LOG_VARIABLE: str(termination_log),
            **{variable: translate(value, mounts) for variable, value in own.items()},
        }
        working_dir = spec.get("workingDir")
        launch = ContainerLaunch(
            name=f"{metadata['namespace']}/{metadata['name']}/{name}",
            arguments=[*program.entrypoint, *arguments(words, own, mounts)],
            environment=variables,
            folder=Path(translate(working_dir, mounts)) if working_dir else self._folder,
            log=self._folder / "logs" / name / f"{restarts}.log",
            termination_log=termination_log,
            message_from_log=spec.get("terminationMessagePolicy") == "FallbackToLogsOnError",
        )
        probes = {kind: probe for kind in ProbeKind if (probe := parse_probe(spec, kind, self._ip))}
        return Prepared(launch, probes, parse_pre_stop(spec, self._ip))

    def _write_status(self) -> None:
        live = self._node.operations.find(PODS, *key_of(self._pod))
        if live is None or live["metadata"]["uid"] != self._pod["metadata"]["uid"]:
            return
        init, records = (
            [runner.record for runner in runners.values()] for runners in (self._init_runners, self._runners)
        )
        status = pod_status(live, records, self._ip, HOST_IP, self._start_time, init=init)
        try:
            self._node.operations.set_status(PODS, live, status, _OPTIONS)
        except StatusError:
            log.exception("cannot write the status of pod %s/%s", *key_of(self._pod))
