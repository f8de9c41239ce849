"""Namespace: the LLMDeployments and engine pods of one namespace, or of all at once, and whether it is lost.

Who calls it: KubernetesFleet. A namespace is lost when the API server has refused it for a while and shows another one
meanwhile: it was deleted and its Roles with it, or the right to read it was taken away. Nobody waits for it then, so
that a gateway that starts can serve the others. What is known of it is kept: engines do not end with a right. Where
everything is refused, nothing is lost: that says more about the API server than about namespaces.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fairlead.fleet.pods import POD_SELECTOR
from fairlead.kube.client import KubeClient, KubeError
from fairlead.kube.resources import LLMDEPLOYMENTS, PODS
from fairlead.kube.watch import OnChange, Reflector

logger = logging.getLogger(__name__)

LOST_SECONDS = 20.0
"""How long a namespace is refused before it is lost: longer than an API server that starts refuses what it will grant.
Noticed when it is asked again, up to 18 s later."""
KINDS = (LLMDEPLOYMENTS, PODS)


class Namespace:
    """Followed by two reflectors; `run` it as a task."""

    def __init__(
        self,
        client: KubeClient,
        name: str | None,
        *,
        on_deployment: OnChange,
        on_pod: OnChange,
        another_is_shown: Callable[["Namespace"], Awaitable[bool]],
        lost_seconds: float = LOST_SECONDS,
    ) -> None:
        """`name`: None = all namespaces. `another_is_shown` asks the API server for others than the given one."""
        self.name = name
        self.is_lost = False
        """Nobody waits for what is in it."""
        self._another_is_shown = another_is_shown
        self._client = client
        self._lost_seconds = lost_seconds
        self._answered = asyncio.Event()
        """Set when a list was answered or refused, since it was last judged."""
        heard = self._answered.set
        self._reflectors = (
            Reflector(client, LLMDEPLOYMENTS, namespace=name, on_change=on_deployment, on_answer=heard),
            Reflector(client, PODS, namespace=name, label_selector=POD_SELECTOR, on_change=on_pod, on_answer=heard),
        )

    @property
    def is_synced(self) -> bool:
        """Whether everything in it has been seen once."""
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    async def is_shown(self) -> bool:
        """Whether the API server shows it at this moment: an open watch says nothing about the rights there are now."""
        try:
            for resource in KINDS:
                await self._client.request("GET", resource.path(self.name), params={"limit": "1"})
        except KubeError:
            return False
        return True

    async def run(self) -> None:
        """Follows it until cancelled, however often it is refused."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._judge())
            for reflector in self._reflectors:
                tasks.create_task(reflector.run())

    async def _judge(self) -> None:
        while True:
            await self._answered.wait()
            self._answered.clear()
            if self.is_lost:
                if self._refused_since is None:
                    self.is_lost = False
                    logger.info("the namespace %s can be read again", self.name)
            elif self._is_long_refused() and await self._another_is_shown(self) and self._is_long_refused():
                logger.warning(
                    "the namespace %s is lost, because the API server refuses to show it: its models are served as "
                    "they were last seen, and by gateways that start not at all. Create it again, and its Roles by "
                    "`helm upgrade`, or take it out of watch.namespaces",
                    self.name,
                )
                self.is_lost = True

    @property
    def _refused_since(self) -> float | None:
        times = [each.refused_since for each in self._reflectors if each.refused_since is not None]
        return min(times, default=None)

    def _is_long_refused(self) -> bool:
        since = self._refused_since
        return since is not None and asyncio.get_running_loop().time() - since >= self._lost_seconds
