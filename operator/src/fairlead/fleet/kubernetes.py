"""KubernetesFleet: follows LLMDeployments and engine pods by list and watch, and publishes pools.

A pod joins when it is Ready and leaves at the event that says otherwise. Its engine is asked for limits as it joins;
until then only the engine's refusals bound the load. Then its stream of blocks and loads is followed. A change rebuilds
only its own pool.
"""

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fairlead.api.llmdeployment import InvalidSpec, LLMDeployment
from fairlead.fleet.directory import Fleet, FleetModel, Key, Pool, outlook, served_model
from fairlead.fleet.engine_stream import EngineListener
from fairlead.fleet.pods import POD_SELECTOR, finishes_answers, is_finished, owner_of, ready_since, replica_of
from fairlead.fleet.replica_tasks import ModelInfoClient, ReplicaTasks, TokenizerBook
from fairlead.kube.client import KubeClient, KubeError
from fairlead.kube.resources import LLMDEPLOYMENTS, PODS
from fairlead.kube.watch import Reflector
from fairlead.routing.replica import Replica

logger = logging.getLogger(__name__)

LOST_SECONDS = 20.0
"""Longest refusal of a namespace that is not lost yet: API servers that start refuse requests for a while. Noticed at
the next attempt, up to 18 s later."""

JsonObject = Mapping[str, Any]

ASKED_AT_ONCE = 3
"""Namespaces asked at once to judge whether another is lost."""


@dataclass(slots=True)
class _Joined:
    """A pod that is ready: the replica it is, and since when."""

    replica: Replica
    ready_since: str


class KubernetesFleet(Fleet):
    """Events in, pools out. `run` it as a task."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespaces: Iterable[str] | None = None,
        model_info: ModelInfoClient | None = None,
        listener: EngineListener | None = None,
        tokenizers: TokenizerBook | None = None,
        lost_seconds: float = LOST_SECONDS,
    ) -> None:
        """`namespaces`: None = all, which takes rights for the whole cluster. A namespace refused for `lost_seconds` is
        left out as long as another is shown.

        `model_info`: None = ask the engines over HTTP. `listener`: hears of every ready engine's blocks and loads.
        `tokenizers`: gets every model's tokenizer.
        """
        super().__init__()
        self._model_info = model_info or ModelInfoClient(tokenizers=tokenizers)
        self._tasks = ReplicaTasks(self._model_info, listener)
        places = (None,) if namespaces is None else tuple(dict.fromkeys(namespaces))
        self._namespaces = [Namespace(client, place, self, lost_seconds) for place in places]
        self._deployments: dict[Key, tuple[LLMDeployment, FleetModel]] = {}
        """Each object and its served part, read once per change, as objects may be large."""
        self._pods: dict[Key, dict[str, JsonObject]] = {}
        """Pods by owner, then by uid."""
        self._joined: dict[str, _Joined] = {}
        self._departing: dict[str, Replica] = {}
        """Pods that drain or are being deleted, by uid."""
        self._pools: dict[Key, Pool] = {}

    @property
    def synced(self) -> bool:
        """Whether every namespace was read once, except lost ones; never all are lost."""
        return all(each.is_synced or each.is_lost for each in self._namespaces)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for namespace in self._namespaces:
                    tasks.create_task(namespace.run())
        finally:
            await self.close()

    async def close(self) -> None:
        """Stops asking and following."""
        await self._tasks.close()

    def on_deployment(self, event_type: str, body: JsonObject) -> None:
        """An LLMDeployment was added, changed or deleted."""
        metadata = body["metadata"]
        key = (metadata["namespace"], metadata["name"])
        if event_type == "DELETED":
            self._deployments.pop(key, None)
        else:
            try:
                deployment = LLMDeployment.from_body(body)
                self._deployments[key] = deployment, served_model(deployment)
            except InvalidSpec as error:
                # What was valid before is still what the engines run; the operator reports the error on the object.
                logger.warning("LLMDeployment %s/%s is ignored for now: %s", *key, error)
        self._rebuild(key)

    def on_pod(self, event_type: str, pod: JsonObject) -> None:
        """An engine pod was added, changed or deleted. Needs a running loop: one that joins is asked and followed."""
        owner, uid = owner_of(pod), pod["metadata"]["uid"]
        pods, since = self._pods.setdefault(owner, {}), None
        if event_type == "DELETED":
            pods.pop(uid, None)
        else:
            pods[uid], since = pod, ready_since(pod)
        if uid in self._joined and self._joined[uid].ready_since != since:
            self._tasks.leave(uid)  # gone, or restarted: another cache, and perhaps other limits
            self._departing[uid] = self._joined.pop(uid).replica
        elif uid not in self._joined and finishes_answers(pod):
            self._departing.setdefault(uid, replica_of(pod))  # it went before this gateway came
        if since is not None or event_type == "DELETED" or is_finished(pod):
            self._departing.pop(uid, None)
        if since is not None and uid not in self._joined:
            replica = replica_of(pod)
            self._joined[uid] = _Joined(replica, since)
            self._tasks.join(replica, partial(self._known, owner))
        if not pods:
            del self._pods[owner]
        self._rebuild(owner)

    def _known(self, owner: Key, replica: Replica) -> None:
        self._joined[replica.uid].replica = replica
        self._rebuild(owner)

    def _rebuild(self, key: Key) -> None:
        known = self._deployments.get(key)
        if known is None:
            changed = self._pools.pop(key, None) is not None
        else:
            deployment, model = known
            pods = self._pods.get(key, {})
            replicas = sorted(
                (self._joined[uid].replica for uid in pods if uid in self._joined), key=lambda replica: replica.name
            )
            departing = tuple(self._departing[uid] for uid in pods if uid in self._departing)
            pool = Pool(model, tuple(replicas), outlook(deployment, pods.values()), departing)
            changed = self._pools.get(key) != pool
            self._pools[key] = pool
        if changed:
            self.publish(self._pools.values())

    async def another_is_shown(self, than: "Namespace") -> bool:
        """Whether the API server shows any other namespace. Asks only a few, since when everything is refused every
        namespace asks."""
        others = [each for each in self._namespaces if each is not than]
        for each in random.sample(others, min(ASKED_AT_ONCE, len(others))):
            if await each.is_shown():
                return True
        return False


class Namespace:
    """The LLMDeployments and engine pods of one namespace, or of all, and whether it is lost. `run` it as a task.

    A namespace is lost when the API server refuses it for a while and shows another: it was deleted with its Roles, or
    the right to read it was taken away. Starting gateways then do not wait for it. Known objects are kept, as engines
    outlive a right. When everything is refused, nothing is lost: the API server is the problem.
    """

    def __init__(self, client: KubeClient, name: str | None, fleet: KubernetesFleet, lost_seconds: float) -> None:
        """`name`: None = all namespaces. `fleet`: hears of changes, and tells whether another namespace is shown."""
        self.name = name
        self.is_lost = False
        """Nobody waits for what is in it."""
        self._fleet = fleet
        self._client = client
        self._lost_seconds = lost_seconds
        self._answered = asyncio.Event()
        """Set when a list was answered or refused since the last judgement."""
        heard = self._answered.set
        self._reflectors = (
            Reflector(client, LLMDEPLOYMENTS, namespace=name, on_change=fleet.on_deployment, on_answer=heard),
            Reflector(
                client, PODS, namespace=name, label_selector=POD_SELECTOR, on_change=fleet.on_pod, on_answer=heard
            ),
        )

    @property
    def is_synced(self) -> bool:
        """Whether everything in it has been seen once."""
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    async def is_shown(self) -> bool:
        """Whether the API server shows the namespace now: an open watch proves no present rights."""
        try:
            for resource in (LLMDEPLOYMENTS, PODS):
                await self._client.request("GET", resource.path(self.name), params={"limit": "1"})
        except KubeError:
            return False
        return True

    async def run(self) -> None:
        """Follows the namespace until cancelled, through refusals."""
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
            elif self._is_long_refused() and await self._fleet.another_is_shown(self) and self._is_long_refused():
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
