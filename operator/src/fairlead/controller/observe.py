"""Observed: all inputs of a decision about one LLMDeployment; and Cluster, which collects them from kopf's indexes.

kopf fills the indexes before the first handler runs, so a restarted operator never decides on half a picture.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from fairlead.api import names
from fairlead.api.conditions import ConditionStatus, ConditionType, Reason, find_condition
from fairlead.controller.capabilities import (
    IMAGE_VOLUMES,
    SIDECARS,
    PodFeatures,
    has_sidecars,
    wants_image_volume,
    wants_sidecars,
)
from fairlead.controller.pod_diagnosis import Diagnosis, PodWarning, Stage, diagnose_replica
from fairlead.controller.pod_starts import PodWarnings
from fairlead.controller.worker import Key
from fairlead.fit.published_devices import DeviceLack, DeviceSupply
from fairlead.fleet.gateways import Hanging
from fairlead.fleet.pods import ReplicaPods, replicas_of
from fairlead.kube.client import JsonObject, KubeClient, KubeError
from fairlead.kube.resources import CONFIGMAPS, PERSISTENT_VOLUME_CLAIMS, RESOURCE_CLAIM_TEMPLATES
from fairlead.manifests.source import claim_of, mounted_claims
from fairlead_common.wire.downloads import DownloadProgress

ChildKey = tuple[str, str]
"""Kind and name of a child."""
Index = Mapping[Any, Iterable[Any]]
"""What kopf hands to handlers: key → everything indexed under it."""
HANG_LOOK_SECONDS = 1.0
"""As often as gateways speak."""


@dataclass(frozen=True, slots=True)
class NameClaim:
    """An LLMDeployment's wish to be reached under a model name. The oldest one has it."""

    name: str
    created: str
    """RFC 3339 in UTC, so that text sorts as time does; empty = the object's own name, which nobody can take."""
    key: Key

    @property
    def seniority(self) -> tuple[str, Key]:
        """Smaller goes first."""
        return self.created, self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One LLMDeployment and its belongings, as last seen."""

    body: JsonObject
    """The LLMDeployment itself, raw."""
    children: Mapping[ChildKey, JsonObject] = field(default_factory=dict)
    """Objects that carry its label."""
    pods: tuple[JsonObject, ...] = ()
    """The engines' pods of all ReplicaSets, oldest first."""
    rivals: tuple[NameClaim, ...] = ()
    """Claims of older LLMDeployments on the same names."""
    missing_claims: Mapping[str, str] = field(default_factory=dict)
    """Missing PersistentVolumeClaims of its sources, by the field with the name."""
    missing_claim_template: str | None = None
    """The ResourceClaimTemplate that `resources.claimTemplateName` names, if it does not exist."""
    devices: DeviceSupply | None = None
    """Devices of the cluster; None = none are asked for, or unknown."""
    device_lack: DeviceLack | None = None
    """Why no node has the devices of a replica; None = some may."""
    adapter_claims: frozenset[str] = frozenset()
    """Existing PersistentVolumeClaims of the adapters, also of former adapters that are still mounted."""
    profile: JsonObject | None = None
    """The ConfigMap named in `engine.profile`; None = none named, or missing."""
    image_volumes: bool | None = None
    """Whether the API server keeps image volumes; None = not wanted, or unknown."""
    sidecars: bool | None = None
    """Whether the API server keeps sidecars; None = not wanted, kept already, or unknown."""
    warnings: Mapping[str, PodWarning] = field(default_factory=dict)
    """Warnings about pods that are slow to be created, by the pod's uid."""
    running: Mapping[str, int] = field(default_factory=dict)
    """Requests running on each replica, by the pod's uid, as gateways last said; unknown ones are absent."""
    hanging: Mapping[str, str] = field(default_factory=dict)
    """Since when engines have been in a step that will hardly end (RFC 3339), by the pod's uid."""

    tokenizer_problem: str = ""
    """Why gateways leave its prompts to its engines to tokenise; empty = they do not."""
    downloads: Mapping[str, DownloadProgress] = field(default_factory=dict)
    """Progress of model downloads, by the pod's uid."""

    @property
    def replicas(self) -> tuple[ReplicaPods, ...]:
        """The pods by replica, oldest first."""
        return replicas_of(self.pods)

    @property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """Each replica's status and warnings, understood."""
        told = self.warnings, self.hanging, self.downloads, self.device_lack
        found = [(each.template_hash, diagnose_replica(each, *told)) for each in self.replicas]
        staying = [template for template, each in found if each.stage not in (Stage.DRAINING, Stage.FINISHED)]
        newest = staying[-1] if staying else ""
        return tuple(replace(each, is_outdated=template != newest) for template, each in found)

    @property
    def engine_config(self) -> JsonObject | None:
        """The ConfigMap read by the pods of the engine's Deployment, if it exists."""
        pod = (((self.engine or {}).get("spec") or {}).get("template") or {}).get("spec") or {}
        mounted = (str((volume.get("configMap") or {}).get("name")) for volume in pod.get("volumes") or ())
        return next((found for name in mounted if (found := self.children.get(("ConfigMap", name)))), None)

    @property
    def engine(self) -> JsonObject | None:
        """The engine's Deployment, if it is ours."""
        found = self.children.get(("Deployment", names.engine_child(self.body["metadata"]["name"])))
        return found if found is not None and is_owned(found, self.body["metadata"]["uid"]) else None


def is_owned(child: Mapping[str, Any], uid: str) -> bool:
    """Whether the LLMDeployment with this uid is the child's controller."""
    owners = child["metadata"].get("ownerReferences") or []
    return any(owner.get("uid") == uid and owner.get("controller") for owner in owners)


@dataclass(eq=False)
class Cluster:
    """Reads kopf's indexes, and asks the API for unwatched objects: claims, profiles, warnings about slow pods,
    features.

    By the pod's uid: `running` requests; `hanging` since when (RFC 3339); `downloads` of models. `tokenizer_problems`:
    by `namespace/name`.
    """

    client: KubeClient
    running: Callable[[], Mapping[str, int]] = dict
    hanging: Callable[[], Mapping[str, str]] = dict
    downloads: Callable[[], Mapping[str, DownloadProgress]] = dict
    tokenizer_problems: Callable[[], Mapping[str, str]] = dict

    def __post_init__(self) -> None:
        self._warnings = PodWarnings(self.client)
        self._features = PodFeatures(self.client)
        self._indexes: Mapping[str, Index] = {}
        self.is_bound = False
        """Whether it is known what there is. Otherwise there seems to be nothing."""

    def bind(self, indexes: Mapping[str, Index]) -> None:
        """Takes the live indexes from a handler's arguments: llmdeployments, children, pods and name_claims."""
        self._indexes, self.is_bound = indexes, True

    def unbind(self) -> None:
        """The indexes are stale; new ones will be filled."""
        self._indexes, self.is_bound = {}, False

    def pods(self) -> list[JsonObject]:
        """Every engine's pod there is."""
        return [pod for key in self.keys() for pod in self._indexes["pods"].get(key, ())]

    def keys(self) -> list[Key]:
        """Every LLMDeployment there is."""
        return list(self._indexes.get("llmdeployments", {}))

    def rivals_of(self, key: Key) -> list[Key]:
        """Other LLMDeployments that want one of its names."""
        return sorted({claim.key for _, claims in self._contests(key) for claim in claims if claim.key != key})

    def keys_in_conflict(self) -> list[Key]:
        """LLMDeployments with a lost name at the last look: any change may have freed the name."""
        found = []
        for key in self.keys():
            for body in self._indexes["llmdeployments"][key]:
                said = find_condition(body.get("status") or {}, ConditionType.DEGRADED)
                if (said.get("status"), said.get("reason")) == (ConditionStatus.TRUE, Reason.NAME_CONFLICT):
                    found.append(key)
        return found

    async def observe(self, key: Key) -> Observed | None:
        """None when the LLMDeployment is gone. Raises KubeError when the API cannot be asked."""
        observed = self.last_seen(key)
        if observed is None:
            return None
        await self._warnings.ask(observed.pods)
        missing = {
            name: claim
            for name, claim in source_claims(observed.body).items()
            if await self.client.find(PERSISTENT_VOLUME_CLAIMS, claim, key[0]) is None
        }
        wanted = {*adapter_claims(observed.body), *mounted_claims(observed.engine)}
        found = [claim for claim in sorted(wanted) if await self._is_there(claim, key[0])]
        profile = profile_config_map(observed.body)
        mounts_image, engine = wants_image_volume(observed.body), observed.engine
        asks_for_sidecars = wants_sidecars(observed.body, engine) and not has_sidecars(engine)
        return replace(
            observed,
            missing_claims=missing,
            missing_claim_template=await self._missing_template(observed.body),
            adapter_claims=frozenset(found),
            profile=None if profile is None else await self.client.find(CONFIGMAPS, profile, key[0]),
            image_volumes=await self._features.are_kept(IMAGE_VOLUMES, key[0]) if mounts_image else None,
            sidecars=await self._features.are_kept(SIDECARS, key[0]) if asks_for_sidecars else None,
            warnings=self._warnings.known(observed.pods),
        )

    async def _missing_template(self, body: JsonObject) -> str | None:
        """The claim template that is named and does not exist."""
        named = ((body.get("spec") or {}).get("resources") or {}).get("claimTemplateName")
        if not isinstance(named, str) or not named:
            return None
        try:
            found = await self.client.find(RESOURCE_CLAIM_TEMPLATES, named, body["metadata"]["namespace"])
        except KubeError as e:
            if e.status != 403:
                raise
            return None  # the capabilities say what rights are missing
        return named if found is None else None

    async def _is_there(self, claim: str, namespace: str) -> bool:
        """Whether a claim exists and will stay: a claim being deleted waits for its pods."""
        found = await self.client.find(PERSISTENT_VOLUME_CLAIMS, claim, namespace)
        return found is not None and not (found.get("metadata") or {}).get("deletionTimestamp")

    def last_seen(self, key: Key) -> Observed | None:
        """The state without asking the API: no missing claims, and older warnings. None = the object is gone."""
        body = next(iter(self._indexes.get("llmdeployments", {}).get(key, ())), None)
        if body is None:
            return None
        children = self._indexes["children"].get(key, ())
        pods = list(self._indexes["pods"].get(key, ()))
        pods.sort(key=lambda pod: (str(pod["metadata"].get("creationTimestamp") or ""), pod["metadata"]["name"]))
        older = (
            [claim for claim in claims if claim.key != key and claim.seniority < own.seniority]
            for own, claims in self._contests(key)
        )
        return Observed(
            body=body,
            children={(child["kind"], child["metadata"]["name"]): child for child in children},
            pods=tuple(pods),
            warnings=self._warnings.known(pods),
            rivals=tuple(min(claims, key=lambda claim: claim.seniority) for claims in older if claims),
            running=self.running(),
            hanging=self.hanging(),
            downloads=self.downloads(),
            tokenizer_problem=self.tokenizer_problems().get("/".join(key), ""),
        )

    def _contests(self, key: Key) -> Iterator[tuple[NameClaim, list[NameClaim]]]:
        """Each claim of this LLMDeployment, with all claims on the same name."""
        index = self._indexes.get("name_claims", {})
        for claims in index.values():
            everybody = list(claims)
            for claim in everybody:
                if claim.key == key:
                    yield claim, everybody


def source_claims(body: Mapping[str, Any]) -> dict[str, str]:
    """The claims that pods need to start, by the field with the name: of model, speculative model and model cache."""
    spec = body.get("spec") or {}
    speculative = (spec.get("engine") or {}).get("speculative") or {}
    sources = {"model.source": spec.get("model") or {}, "engine.speculative.source": speculative}
    claims = {name: claim_of(str(each.get("source") or "")) for name, each in sources.items()}
    cache = (spec.get("model") or {}).get("cache") or {}
    claims["model.cache.claim"] = cache.get("claim") or None
    return {name: claim for name, claim in claims.items() if claim is not None}


def profile_config_map(body: Mapping[str, Any]) -> str | None:
    """The ConfigMap that `engine.profile` names."""
    profile = ((body.get("spec") or {}).get("engine") or {}).get("profile") or {}
    return str(profile["configMap"]) if profile.get("configMap") else None


def adapter_claims(body: Mapping[str, Any]) -> set[str]:
    """The claims of an LLMDeployment's adapters."""
    sources = (str(each.get("source") or "") for each in (body.get("spec") or {}).get("adapters") or ())
    return {claim for claim in map(claim_of, sources) if claim is not None}


def name_claims(body: Mapping[str, Any]) -> dict[str, NameClaim]:
    """The names an LLMDeployment wants: the served name, bare and with the namespace, the aliases, and the object's
    name. None while it is being deleted; never names with a `/`."""
    metadata, model = body["metadata"], (body.get("spec") or {}).get("model") or {}
    if metadata.get("deletionTimestamp"):
        return {}
    key = namespace, name = metadata["namespace"], metadata["name"]
    served_name = str(model.get("servedName") or name)
    adapters = (each.get("servedName") for each in (body.get("spec") or {}).get("adapters") or ())
    own = [str(each) for each in adapters if each]
    wanted = [each for each in (served_name, *map(str, model.get("aliases") or ()), *own) if "/" not in each]
    created = str(metadata.get("creationTimestamp") or "")
    with_namespace = [f"{namespace}/{each}" for each in (served_name, *own) if "/" not in each]
    claims = {each: NameClaim(each, created, key) for each in (*wanted, *with_namespace)}
    return claims | {f"{namespace}/{name}": NameClaim(f"{namespace}/{name}", "", key)}


class _GatewayWatch:
    """Looks at gateways' signals at intervals, and has affected LLMDeployments looked at. `run` it as a task."""

    def __init__(self, on_change: Callable[[Iterable[Key]], None]) -> None:
        self._on_change = on_change

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(HANG_LOOK_SECONDS)

    def look(self) -> None:
        """Compares the present state with the last one."""
        raise NotImplementedError

    def _tell(self, models: Iterable[str]) -> None:
        """These LLMDeployments (`namespace/name`) are affected."""
        self._on_change({(namespace, name) for namespace, _, name in (model.partition("/") for model in models)})


class HangWatch(_GatewayWatch):
    """Since when engines hang in a step. A time rather than a duration, so that the status need not be written every
    second."""

    def __init__(
        self,
        hanging: Callable[[], Mapping[str, Hanging]],
        on_change: Callable[[Iterable[Key]], None],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`hanging`: engines that hang now, by their pods' uids. `on_change`: told of LLMDeployments with a replica
        that begins or ceases to hang."""
        super().__init__(on_change)
        self._hanging = hanging
        self._now = now
        self._models: dict[str, str] = {}
        """The LLMDeployment of each hanging engine, by uid."""
        self.since: dict[str, str] = {}
        """Begin of each hanging engine's step (RFC 3339), by the pod's uid."""

    def look(self) -> None:
        hanging, before = self._hanging(), self._models
        self._models = {uid: each.model for uid, each in hanging.items()}
        if changed := self._models.keys() ^ before.keys():
            begun = {uid: self._now() - timedelta(seconds=each.seconds) for uid, each in hanging.items()}
            self.since = {
                uid: self.since.get(uid) or time.strftime("%Y-%m-%dT%H:%M:%SZ") for uid, time in begun.items()
            }
            self._tell(self._models.get(uid) or before[uid] for uid in changed)


class TokenizerWatch(_GatewayWatch):
    """LLMDeployments whose prompts gateways leave to engines, and why."""

    def __init__(self, problems: Callable[[], Mapping[str, str]], on_change: Callable[[Iterable[Key]], None]) -> None:
        """`problems`: by `namespace/name`."""
        super().__init__(on_change)
        self._problems = problems
        self.known: Mapping[str, str] = {}

    def look(self) -> None:
        before, self.known = self.known, self._problems()
        if changed := {model for model, _ in before.items() ^ self.known.items()}:
            self._tell(changed)
