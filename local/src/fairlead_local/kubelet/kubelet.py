"""The kubelet: follows the pods bound to its node, and has a worker for each."""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp

from fairlead_local.apiserver.operations import Operations
from fairlead_local.apiserver.resources import CONFIG_MAPS, PODS, SECRETS
from fairlead_local.apiserver.status import Json
from fairlead_local.apiserver.store import Change, ChangeType
from fairlead_local.controllers.controller import ObjectEvents
from fairlead_local.fleet_state import FleetFolder
from fairlead_local.kubelet.container import Node
from fairlead_local.kubelet.environment import OWN_IMAGES, Images
from fairlead_local.kubelet.node import (
    DEFAULT_SETTINGS,
    NODE_NAME,
    AddressBlock,
    KubeletSettings,
    Resources,
    machine_resources,
    register_node,
)
from fairlead_local.kubelet.pod_worker import PodWorker
from fairlead_local.kubelet.process_table import ProcessRecords

log = logging.getLogger(__name__)

_REFRESHED = {CONFIG_MAPS.qualified: "configMap", SECRETS.qualified: "secret"}


class Kubelet:
    """Starts and stops workers as pods come and go. Also the API server's source of logs."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def follow(self, change: Change) -> None:
        """Follows a change in the API."""
        if kind := _REFRESHED.get(change.resource):
            for worker in tuple(self._workers.values()):
                worker.refresh(kind, change.object["metadata"]["name"])
        elif change.resource == PODS.qualified:
            metadata, is_gone = change.object["metadata"], change.type is ChangeType.DELETED
            if (of_pod := self._workers.get(metadata["uid"])) is None:
                if not is_gone:
                    self.start(change.object)
            elif is_gone:
                of_pod.delete(0.0)
            elif "deletionTimestamp" in metadata:
                of_pod.delete(float(metadata.get("deletionGracePeriodSeconds", 0)))

    def start(self, pod: Json) -> None:
        """Gives the pod a worker, if it is bound to this node."""
        if pod["spec"].get("nodeName") != NODE_NAME:
            return
        uid = pod["metadata"]["uid"]
        worker = self._workers[uid] = PodWorker(self._node, pod)
        task = self._tasks[uid] = asyncio.create_task(worker.run(), name=f"pod {pod['metadata']['name']}")
        task.add_done_callback(lambda _: self._forget(uid))

    def _forget(self, uid: str) -> None:
        self._workers.pop(uid, None)
        task = self._tasks.pop(uid, None)
        if task and not task.cancelled() and (error := task.exception()):
            log.error("the worker of %s failed", task.get_name(), exc_info=error)

    def log(self, pod: Json, container: str, previous: bool) -> tuple[Path, Callable[[], bool]] | None:
        """A `LogSource`."""
        worker = self._workers.get(pod["metadata"]["uid"])
        path = worker.log_path(container, previous=previous) if worker else None
        return (path, partial(worker.is_writing, path)) if worker and path else None

    async def stop(self) -> None:
        """Ends every container; pods stay in the API, as when a node goes away."""
        for worker in self._workers.values():
            worker.stop(self._node.settings.shutdown_grace)
        for worker in tuple(self._workers.values()):
            await worker.idle.wait()
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def running_kubelet(
    operations: Operations,
    folder: FleetFolder,
    *,
    images: Images = OWN_IMAGES,
    settings: KubeletSettings = DEFAULT_SETTINGS,
    resources: Resources | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Kubelet]:
    """A kubelet for this machine while the context lasts; all its processes have ended afterwards.

    `resources`: of the node, None = of the machine. `environment`: of every container. Raises NoAddress.
    """
    addresses = AddressBlock(str(folder.path))
    shutil.rmtree(folder.pods, ignore_errors=True)  # of an earlier kubelet: pods do not outlive one
    folder.pods.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with aiohttp.ClientSession() as session:
        node = Node(
            operations=operations,
            images=images,
            addresses=addresses,
            records=ProcessRecords(folder.records),
            recorder=ObjectEvents(operations, "kubelet", NODE_NAME),
            session=session,
            settings=settings,
            pods_folder=folder.pods,
            claims_folder=folder.claims,
            environment=environment or {},
        )
        kubelet = Kubelet(node)
        register_node(operations, machine_resources() if resources is None else resources)
        for pod in operations.list(PODS):
            kubelet.start(pod)
        unsubscribe = operations.store.subscribe(kubelet.follow)
        try:
            yield kubelet
        finally:
            unsubscribe()
            await kubelet.stop()
            addresses.close()
