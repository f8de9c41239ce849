"""A Kubernetes API in the test's own process: local mode's API server and controllers on a free port, in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fairlead_local.apiserver.access import new_token, write_kubeconfig
from fairlead_local.apiserver.operations import Operations
from fairlead_local.apiserver.resources import Registry
from fairlead_local.apiserver.server import ApiServer, serving
from fairlead_local.apiserver.store import HISTORY, Store
from fairlead_local.apiserver.subresources import LogSource
from fairlead_local.fleet_state import FleetFolder
from fairlead_local.kubelet.environment import Program
from fairlead_local.kubelet.kubelet import running_kubelet
from fairlead_local.kubelet.node import KubeletSettings
from fairlead_local.supervisor import run_controllers

T = TypeVar("T")

QUICK_KUBELET = KubeletSettings(first_back_off=0.2, longest_back_off=1.0, retry_interval=0.1, shutdown_grace=2.0)
"""Back-offs short enough for a test."""


@dataclass(frozen=True, slots=True)
class LocalApi:
    """A running API server."""

    url: str
    """Base URL, without a trailing slash; requests carry `token` as a bearer token."""
    kubeconfig_path: Path
    token: str
    operations: Operations
    """The verbs behind the HTTP, to arrange and to look at objects without a client."""


@asynccontextmanager
async def local_api_server(
    folder: Path,
    *,
    history: int = HISTORY,
    images: Mapping[str, Program] | None = None,
    resources: Mapping[str, str] | None = None,
    settings: KubeletSettings = QUICK_KUBELET,
) -> AsyncIterator[LocalApi]:
    """Serves while the context lasts; the kubeconfig is written into `folder`.

    `history`: changes kept for watches. With `images` (name → program) there is a node too, offering `resources`
    (None = this machine's), which runs pods of these images as processes; without, pods stay pending.
    """
    operations = Operations(Store(history=history), Registry())
    operations.ensure_namespaces()
    token, path = new_token(), folder / "kubeconfig"
    fleet = FleetFolder(folder)
    async with AsyncExitStack() as stack:
        logs: LogSource | None = None
        if images is not None:
            kubelet = running_kubelet(operations, fleet, images=images, settings=settings, resources=resources)
            logs = (await stack.enter_async_context(kubelet)).log
        controllers = asyncio.create_task(run_controllers(operations, fleet.claims))
        stack.push_async_callback(_cancel, controllers)
        url = await stack.enter_async_context(serving(ApiServer(operations, token, logs).app()))
        write_kubeconfig(path, url, token)
        yield LocalApi(url, path, token, operations)


async def eventually(look: Callable[[], T | None], seconds: float = 15.0) -> T:
    """Looks again and again until there is something to see (anything true); raises AssertionError when time is up."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not (seen := look()):
        assert asyncio.get_running_loop().time() < deadline, f"not within {seconds:g} s; last seen: {seen!r}"
        await asyncio.sleep(0.02)
    return seen


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
