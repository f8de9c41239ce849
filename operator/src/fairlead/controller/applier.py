"""Applier: carries out a Plan and writes the status. The only writer of children and of pods.

Objects of other owners are never touched: the live object is read first, and its uid is part of what is applied. Asking
engines to drain over HTTP is best effort, because SIGTERM asks again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime

from fairlead.api import names
from fairlead.api.conditions import Reason
from fairlead.api.pod_spec import lasting_container
from fairlead.controller.desired import Problem
from fairlead.controller.observe import ChildKey, is_owned
from fairlead.controller.plan import Plan, content_hash, key_of, mark
from fairlead.controller.scaling import SubresourceWriter
from fairlead.controller.worker import Key
from fairlead.fleet.pods import ReplicaPods, is_marked
from fairlead.kube.client import JsonObject, KubeClient, KubeError
from fairlead.kube.resources import BY_KIND, PODS, Resource
from fairlead.kube.watch import key_of as object_key
from fairlead.manifests.common import Manifest
from fairlead_common.http.addresses import authority
from fairlead_common.http.client import HttpClient, TimeLimits
from fairlead_common.http.client_connection import TransportError, cause_of
from fairlead_common.http.origin import parse
from fairlead_common.wire.messages import PATH_DRAIN

logger = logging.getLogger(__name__)

DRAIN_LIMITS = TimeLimits(connect=2.0, first_byte=2.0, silence=2.0, whole=2.0)
"""For one engine's answer: a hanging victim delays scale-down by so much."""


@dataclass(frozen=True, slots=True)
class ChildChange:
    """One object that was written."""

    verb: str
    """Created, Updated, Deleted, Scaled, Draining or Replacing."""
    kind: str
    name: str
    detail: str = ""
    """Numbers for people, such as `replicas 1 → 2`."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a Plan."""

    changes: tuple[ChildChange, ...] = ()
    problems: tuple[Problem, ...] = ()
    """Final refusals of the API, objects that are not ours, and (as `Reconciling`) objects that have to go first."""
    is_refused: bool = False
    """Whether the API server refuses a child for good: only another spec, or another server, helps."""


async def ask_to_drain(pods: Iterable[JsonObject]) -> None:
    """Asks all at once. Never raises for one that cannot be reached: it has nothing to finish."""

    http = HttpClient(max_idle=0)

    async def ask(pod: JsonObject) -> None:
        try:
            origin, path = parse(engine_url(pod) + PATH_DRAIN)
            async with http.request(origin, "POST", path, DRAIN_LIMITS, body=b"") as response:
                if response.status >= 400:
                    raise TransportError(f"HTTP {response.status}")
        except (TransportError, TimeoutError) as error:
            logger.info("%s cannot be asked to drain: %s", pod["metadata"]["name"], cause_of(error))

    await asyncio.gather(*(ask(pod) for pod in pods if (pod.get("status") or {}).get("podIP")))


def engine_url(pod: JsonObject) -> str:
    """Where the engine of a pod with an address answers: at its port, or the usual one."""
    engine = lasting_container(pod["spec"], names.ENGINE_CONTAINER)
    ports = (port["containerPort"] for port in engine.get("ports") or [])
    return f"http://{authority(pod['status']['podIP'], next(ports, names.ENGINE_PORT))}"


@dataclass(eq=False)
class Applier:
    """Remembers children as written, to not argue with webhooks for ever. `now`: for marks on pods."""

    client: KubeClient
    _: KW_ONLY
    drain: Callable[[Iterable[JsonObject]], Awaitable[None]] = ask_to_drain
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def __post_init__(self) -> None:
        self._scale = SubresourceWriter(self.client, names.FIELD_MANAGER)
        self.status = SubresourceWriter(self.client, names.FIELD_MANAGER_STATUS)
        self._settled: dict[Key, dict[ChildKey, str]] = {}
        self._asked: dict[Key, set[str]] = {}
        """Uids of replicas. The watch brings a mark late; without this memory a look in between would take a second
        victim."""

    def settled(self, key: Key) -> Mapping[ChildKey, str]:
        """For `make_plan`."""
        return self._settled.get(key, {})

    def asked(self, key: Key, pods: Iterable[JsonObject]) -> Collection[str]:
        """For `make_plan`: replicas that this process has asked to drain."""
        asked = self._asked.get(key, set())
        asked &= {pod["metadata"]["uid"] for pod in pods}
        return asked

    def forget(self, key: Key) -> None:
        """The LLMDeployment is gone."""
        self._settled.pop(key, None)
        self._asked.pop(key, None)

    async def apply(self, plan: Plan, owner: JsonObject) -> Applied:
        """Raises KubeError for passing errors; final ones are among the problems."""
        changes: list[ChildChange] = []
        problems: list[Problem] = []
        is_refused = False
        await self._drain(plan.drain, owner, changes)  # before what lowers the count
        for manifest in plan.apply:
            is_refused |= await self._apply_child(manifest, owner, changes, problems)
        for child in plan.prune:
            await self._delete(BY_KIND[child["kind"]], child, "Deleted", changes)
            self._settled.get(object_key(owner), {}).pop(key_of(child), None)
        for pod in (pod for replica in plan.replace for pod in replica.pods):
            await self._delete(PODS, pod, "Replacing", changes)
        if plan.initial_replicas is not None:
            await self._scale.scale(owner, plan.initial_replicas)  # unless somebody has set the count since
            detail = f"spec.replicas = {plan.initial_replicas}"
            changes.append(ChildChange("Scaled", names.KIND, owner["metadata"]["name"], detail))
        return Applied(tuple(changes), tuple(problems), is_refused)

    async def _apply_child(
        self, manifest: Manifest, owner: JsonObject, changes: list[ChildChange], problems: list[Problem]
    ) -> bool:
        """Whether the API server refuses the child for good."""
        resource = BY_KIND[manifest["kind"]]
        try:
            metadata = manifest["metadata"]
            live = await self.client.find(resource, metadata["name"], metadata["namespace"])
            problem = ownership_problem(live, owner) if live is not None else None
            if problem is not None:
                problems.append(problem)
                return False
            uid = {"uid": live["metadata"]["uid"]} if live is not None else {}
            obj = manifest | {"metadata": metadata | uid}
            result = await self.client.apply(resource, obj, names.FIELD_MANAGER, force=True)
        except KubeError as e:
            if e.may_pass or e.status == 409:
                raise
            message = f"{manifest['kind']} {metadata['name']!r} was refused by the API server: {e.message}"
            problems.append(Problem(Reason.APPLY_FAILED, message))
            return e.is_final
        key = object_key(owner)
        self._settled.setdefault(key, {})[key_of(manifest)] = content_hash(result)
        before = ((live or {}).get("spec") or {}).get("replicas")
        after = (manifest.get("spec") or {}).get("replicas")
        verb = "Created" if live is None else "Updated" if after is None or before == after else "Scaled"
        changes.append(ChildChange(verb, *key_of(manifest), f"replicas {before} → {after}" if verb == "Scaled" else ""))
        return False

    async def _drain(self, replicas: Sequence[ReplicaPods], owner: JsonObject, changes: list[ChildChange]) -> None:
        """Marks first: a restart finds marks again, but not requests to drain."""
        if not replicas:
            return
        asked = self._asked.setdefault(object_key(owner), set())
        for replica in replicas:
            for pod in replica.pods:
                if not is_marked(pod) and replica.uid not in asked:
                    await self._mark(pod["metadata"])
                    changes.append(ChildChange("Draining", "Pod", pod["metadata"]["name"]))
            asked.add(replica.uid)
        await self.drain(replica.leader for replica in replicas)

    async def _mark(self, pod: JsonObject) -> None:
        """`pod`: its metadata. Raises KubeError for passing errors. Without the right to mark, the pod is only asked to
        drain."""
        name, namespace = pod["name"], pod["namespace"]
        patch = {"metadata": {"annotations": mark(self.now().strftime("%Y-%m-%dT%H:%M:%SZ"))}}
        try:
            await self.client.patch(PODS, name, patch, namespace, params={"fieldManager": names.FIELD_MANAGER})
        except KubeError as e:
            if e.may_pass or e.status == 409:
                raise
            if e.status != 404:
                logger.warning("%s/%s cannot be marked to be deleted first: %s", namespace, name, e)

    async def _delete(self, resource: Resource, obj: JsonObject, verb: str, changes: list[ChildChange]) -> None:
        metadata = obj["metadata"]
        try:
            await self.client.delete(resource, metadata["name"], metadata["namespace"], uid=metadata["uid"])
        except KubeError as e:
            if e.status not in (404, 409):
                raise
            return
        changes.append(ChildChange(verb, resource.kind, metadata["name"]))


def ownership_problem(live: JsonObject, owner: JsonObject) -> Problem | None:
    """Why a live object must not be written for this LLMDeployment; None = it is ours."""
    if is_owned(live, owner["metadata"]["uid"]):
        return None
    what = f"{live['kind']} {live['metadata']['name']!r}"
    for reference in live["metadata"].get("ownerReferences") or []:
        if reference.get("kind") == names.KIND and reference.get("name") == owner["metadata"]["name"]:
            message = f"waiting until the {what} of an earlier {names.KIND} with this name is deleted"
            return Problem(Reason.RECONCILING, message)
    message = f"{what} exists and is not ours: delete it, or give the {names.KIND} another name"
    return Problem(Reason.RESOURCE_NOT_OWNED, message)
