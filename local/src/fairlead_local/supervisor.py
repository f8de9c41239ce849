"""The process behind `fairlead local up`: API server, controllers and kubelet in one, the rest as pods.

`run_fleet` is the story. All processes end before its end; after a kill of the supervisor, the keeper ends the rest.
"""

import asyncio
import errno
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fairlead.api.names import SYSTEM_NAMESPACE
from fairlead.kube.client import KubeClient
from fairlead.kube.kubeconfig import load
from fairlead_local.apiserver.access import new_token, write_kubeconfig
from fairlead_local.apiserver.operations import Operations, WriteOptions
from fairlead_local.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS, DEPLOYMENTS, Registry
from fairlead_local.apiserver.server import HOST, ApiServer, serving
from fairlead_local.apiserver.status import StatusError
from fairlead_local.apiserver.store import Journal, Store
from fairlead_local.applying import FileManifest, apply_manifest
from fairlead_local.controllers.controller import Controller, ControlLoop, EventExpiry
from fairlead_local.controllers.deployments import DeploymentController
from fairlead_local.controllers.garbage import DefinitionController, GarbageCollector, NamespaceController
from fairlead_local.controllers.replicasets import ReplicaSetController
from fairlead_local.controllers.scheduler import ClaimController, PodScheduler
from fairlead_local.fleet_state import FleetError, FleetFolder, FleetPhase, FleetState, disk_fault, write_state
from fairlead_local.kubelet.environment import OWN_IMAGES, Images
from fairlead_local.kubelet.kubelet import running_kubelet
from fairlead_local.kubelet.node import NoAddress
from fairlead_local.kubelet.process_table import ProcessRecords, keeper
from fairlead_local.service import free_port, listening, ready_gateways, service
from fairlead_local.system import Ports, crd, operator_settings, system_deployments, wait_until_ready

_OPTIONS = WriteOptions(manager="fairlead-local")
_LEFTOVER_GRACE_SECONDS = 2.0

Say = Callable[[str], None]
"""Tells the person at the terminal one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """Arguments of `up`. Port 0 = any free port."""

    folder: FleetFolder
    api_port: int
    gateway_port: int
    num_gateways: int = 1
    stand_ins: Images = field(default_factory=dict)
    """Images beside our own, and programs in place of them."""
    manifests: Sequence[FileManifest] = ()
    lock: int | None = None
    """A descriptor that holds the folder's lock already; None = the lock is free."""
    lifeline: int | None = None
    """End of a pipe held by the starter. The fleet ends when the pipe closes without a byte; a byte lets the fleet go
    on alone. None = the fleet does not depend on the starter."""


async def run_fleet(options: FleetOptions, say: Say, announce: Callable[[FleetState], None]) -> None:
    """Runs a fleet until a signal or the lifeline ends it; `announce` hears of a ready fleet. Raises FleetError."""
    with options.folder.lock(options.lock):
        try:
            write_state(options.folder, FleetPhase.STARTING)
            await _until_stopped(_run(options, say, announce), options.lifeline)
        except (FleetError, OSError, StatusError) as error:
            fault = None if isinstance(error, FleetError) else disk_fault(error)
            failure = error if fault is None else options.folder.unwritable(fault)
            with suppress(OSError):
                write_state(options.folder, FleetPhase.FAILED, message=str(failure))
            raise failure from (error if failure is not error else error.__cause__)
        options.folder.description.unlink(missing_ok=True)


async def _run(options: FleetOptions, say: Say, announce: Callable[[FleetState], None]) -> None:
    folder = options.folder
    # First: leftovers may hold the wanted ports.
    if leftovers := ProcessRecords(folder.records).stop_all(_LEFTOVER_GRACE_SECONDS):
        say(f"stopped {leftovers} processes that an earlier fleet left behind")
    async with AsyncExitStack() as stack:
        # Held from here on: a free port may be taken before the gateways are up.
        with _taking(options.gateway_port, "--gateway-port"):
            listener = stack.enter_context(listening(HOST, options.gateway_port))
        ports = Ports(gateway=listener.getsockname()[1], operator=free_port(HOST))
        stack.enter_context(keeper(folder.records))
        operations, api = await stack.enter_async_context(_control_plane(options))
        gateway = f"http://{HOST}:{ports.gateway}"
        say(f"API server at {api}")
        _install(operations, options, ports, gateway)
        async with KubeClient(load(folder.kubeconfig)) as client:
            for manifest in options.manifests:
                await apply_manifest(client, manifest)
                say(f"applied {manifest.readable}")
        async with service(lambda: ready_gateways(operations), listener):
            await wait_until_ready(operations, folder, SYSTEM_NAMESPACE, say)
            announce(write_state(folder, FleetPhase.READY, api=api, gateway=gateway))
            await asyncio.Event().wait()


@asynccontextmanager
async def _control_plane(options: FleetOptions) -> AsyncIterator[tuple[Operations, str]]:
    """API server, controllers and kubelet; yields the verbs and the API's base URL."""
    folder = options.folder
    try:
        store = Store(Journal(folder.state))
    except OSError as error:
        raise folder.unwritable(error) from error
    except ValueError as error:
        raise FleetError(f"the objects kept in {folder.state} cannot be read ({error}): remove that folder") from error
    async with AsyncExitStack() as stack:
        stack.callback(store.close)
        operations = Operations(store, Registry())
        operations.ensure_namespaces(SYSTEM_NAMESPACE)
        # KUBECONFIG stands in for the ServiceAccount that a pod has in a cluster.
        environment, images = {"KUBECONFIG": str(folder.kubeconfig)}, {**options.stand_ins, **OWN_IMAGES}
        running = running_kubelet(operations, folder, images=images, environment=environment)
        try:
            kubelet = await stack.enter_async_context(running)
        except NoAddress as error:
            raise FleetError(str(error)) from error
        token = new_token()
        app = ApiServer(operations, token, kubelet.log).app()
        with _taking(options.api_port, "--api-port"):
            api = await stack.enter_async_context(serving(app, options.api_port))
        write_kubeconfig(folder.kubeconfig, api, token)
        # On the way out the API ends last: ending pods still write to it.
        stack.push_async_callback(kubelet.stop)
        controllers = asyncio.create_task(run_controllers(operations, folder.claims))
        stack.push_async_callback(asyncio.wait, [controllers])
        stack.callback(controllers.cancel)
        yield operations, api


async def run_controllers(operations: Operations, claims: Path) -> None:
    """Every controller of a control plane, until cancelled. `claims`: folder of the files of PersistentVolumeClaims."""
    kinds = (GarbageCollector, NamespaceController, DefinitionController, DeploymentController, ReplicaSetController)
    controllers: list[Controller] = [kind(operations) for kind in (*kinds, PodScheduler, EventExpiry)]
    async with asyncio.TaskGroup() as group:
        for controller in (*controllers, ClaimController(operations, claims)):
            group.create_task(ControlLoop(operations.store, controller).run(), name=type(controller).__name__)


def _install(operations: Operations, options: FleetOptions, ports: Ports, gateway: str) -> None:
    """The LLMDeployment API, then the programs that serve it."""
    definition = crd()
    name = definition["metadata"]["name"]
    operations.apply(CUSTOM_RESOURCE_DEFINITIONS, "", name, definition, _OPTIONS, force=True)
    settings = operator_settings(gateway, ports.operator, options.folder.claims, options.folder.models)
    path = options.folder.operator_settings
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    for deployment in system_deployments(ports, path, options.num_gateways):
        metadata = deployment["metadata"]
        operations.apply(DEPLOYMENTS, metadata["namespace"], metadata["name"], deployment, _OPTIONS, force=True)


@contextmanager
def _taking(port: int, flag: str) -> Iterator[None]:
    """Raises FleetError where the port cannot be had."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise FleetError(f"port {port} is in use: choose another with {flag} (0 finds a free one)") from error
        text = f"cannot listen on port {port} ({error.strerror}): choose another with {flag}"
        raise FleetError(text) from error


async def _until_stopped(story: Coroutine[Any, Any, None], lifeline: int | None) -> None:
    """Runs the story until a failure, a signal or the end of the lifeline; the story has ended in order afterwards."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)

    def hear(pipe: int) -> None:
        loop.remove_reader(pipe)
        if not os.read(pipe, 1):
            stopped.set()

    if lifeline is not None:
        loop.add_reader(lifeline, hear, lifeline)
    running = asyncio.create_task(story)
    stopping = asyncio.create_task(stopped.wait())
    await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not running.done():
        running.cancel()
    with suppress(asyncio.CancelledError):
        await running
