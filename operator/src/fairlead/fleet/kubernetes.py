"""KubernetesFleet: follows LLMDeployments and engine pods by list and watch, and publishes pools.

A pod joins when it is Ready and leaves at the event that says otherwise. Its engine is asked for limits as it joins;
until then only the engine's refusals bound the load. Then its stream of blocks and loads is followed. A change rebuilds
only its own pool.
"""

import asyncio
import logging
import random
from collections.abc import Iterable
from functools import partial

from fairlead.api import names
from fairlead.api.conditions import wrong_condition
from fairlead.api.llmdeployment import InvalidSpec, LLMDeployment
from fairlead.fleet.directory import Fleet, FleetModel, Key, Pool, outlook, scaling_changes, served_model
from fairlead.fleet.engine_stream import EngineListener
from fairlead.fleet.pods import POD_SELECTOR, ReplicaPods, group_of, owner_of
from fairlead.fleet.replica_tasks import ModelInfoClient, ReplicaTasks, TokenizerBook
from fairlead.kube.client import JsonObject, KubeClient, KubeError
from fairlead.kube.resources import LLMDEPLOYMENTS, PODS
from fairlead.kube.watch import Reflector
from fairlead.routing.replica import Replica

logger = logging.getLogger(__name__)

LOST_SECONDS = 20.0
"""Longest refusal of a namespace that is not lost yet: API servers that start refuse requests for a while. Noticed at
the next attempt, up to 18 s later."""

ASKED_AT_ONCE = 3
"""Namespaces asked at once to judge whether another is lost."""


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
        self._replicas: dict[Key, dict[str, ReplicaPods]] = {}
        """By owner, then by group."""
        self._joined: dict[str, Replica] = {}
        """Replicas that are ready, by uid."""
        self._departing: dict[str, Replica] = {}
        """Replicas that drain or are being deleted, by uid."""
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
        owner, group = owner_of(pod), group_of(pod)
        replicas = self._replicas.setdefault(owner, {})
        before = replicas.get(group)
        pods = {each["metadata"]["uid"]: each for each in (before.pods if before else ())}
        pods[pod["metadata"]["uid"]] = pod
        if event_type == "DELETED":
            del pods[pod["metadata"]["uid"]]
        if pods:
            replicas[group] = ReplicaPods.of(*pods.values())
        else:
            replicas.pop(group, None)
        self._follow(owner, before, replicas.get(group))
        if not replicas:
            del self._replicas[owner]
        self._rebuild(owner)

    def _follow(self, owner: Key, before: ReplicaPods | None, now: ReplicaPods | None) -> None:
        """A group's replica has changed; None = there is none."""
        since = None if now is None else (now.uid, now.ready_since)
        if before is not None and before.uid in self._joined and since != (before.uid, before.ready_since):
            self._tasks.leave(before.uid)  # gone, or restarted: another cache, and perhaps other limits
            self._departing[before.uid] = self._joined.pop(before.uid)
        if before is not None and (now is None or before.uid != now.uid):
            self._departing.pop(before.uid, None)
        if now is None:
            return
        node = str(now.leader.get("spec", {}).get("nodeName") or "")
        replica = Replica(now.uid, now.name, now.address, names.ENGINE_PORT, node=node, since=now.created)
        if now.is_terminating and now.address:
            self._departing.setdefault(now.uid, replica)  # also one that went before this gateway came
        if now.is_finished or now.ready_since is not None:
            self._departing.pop(now.uid, None)
        if now.ready_since is not None and now.uid not in self._joined:
            self._joined[now.uid] = replica
            self._tasks.join(replica, partial(self._known, owner))

    def _known(self, owner: Key, replica: Replica) -> None:
        self._joined[replica.uid] = replica
        self._rebuild(owner)

    def _rebuild(self, key: Key) -> None:
        known = self._deployments.get(key)
        if known is None:
            changed = self._pools.pop(key, None) is not None
        else:
            deployment, model = known
            seen = self._replicas.get(key, {}).values()
            ready = (self._joined[each.uid] for each in seen if each.uid in self._joined)
            replicas = tuple(sorted(ready, key=lambda replica: replica.name))
            departing = tuple(self._departing[each.uid] for each in seen if each.uid in self._departing)
            placed = {each.uid for each in (*replicas, *departing)}
            num_starting = sum(each.is_active and each.uid not in placed for each in seen)
            trouble = str(wrong_condition(deployment.status).get("message") or "")
            changes = scaling_changes(deployment.status)
            pool = Pool(model, replicas, outlook(deployment, seen), departing, num_starting, trouble, changes)
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
