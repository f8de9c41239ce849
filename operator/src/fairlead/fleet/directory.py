"""The directory: finds the pool (a gateway's view of one LLMDeployment) for a name, a canonical path or a Host header.
Pure, and built anew on every change by a Fleet: `KubernetesFleet` (kubernetes.py) in a gateway."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fairlead.api.conditions import ConditionStatus, ConditionType, Reason, find_condition
from fairlead.api.llmdeployment import LLMDeployment, Routing, ScalingMode, ScalingTargets
from fairlead.fleet.pods import ReplicaPods, is_stuck
from fairlead.routing.replica import Replica
from fairlead_common.wire.adapters import split_adapter
from fairlead_common.wire.downloads import DownloadFailure

Key = tuple[str, str]
"""Namespace and name of an LLMDeployment."""


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """An adapter that an LLMDeployment lists."""

    name: str
    """Requests name it behind the model's name and a colon."""
    served_name: str = ""
    """The adapter's own name; empty = none."""
    trouble: str = ""
    """Why no replica can load the adapter, as the operator says; empty = no known trouble."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetModel:
    """The part of an LLMDeployment that serves requests."""

    uid: str
    namespace: str
    name: str
    served_name: str
    """The engines' name for the model, and the usual one of clients."""
    aliases: tuple[str, ...] = ()
    adapters: tuple[ServedAdapter, ...] = ()
    """The listed adapters; replicas tell the adapters that they serve, and may have more."""
    created: float = 0.0
    """Seconds since the epoch."""
    engine: str = ""
    """Fingerprint of everything that decides its engines' limits."""
    max_model_len: int | None = None
    """Context in tokens that the spec sets; None = the engines choose."""
    routing: Routing = field(default_factory=Routing)
    """How a replica is picked, and how long requests may wait."""
    target_ttft_seconds: float | None = None
    """What its autoscaling holds the time to first token to; None = no target."""
    scale_for_batches: bool = False
    """Whether lines of batches are demand that the fleet grows for."""
    target_percentile: int = 90
    """Share of requests, in percent, that the target is for."""
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Every claimed name: the served name, aliases, `namespace/servedName` and `namespace/name`. Names with another
    namespace's prefix, which API servers refuse, are left out."""
    adapter_names: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """Adapters' own names, plain and with the namespace → the adapter."""

    def __post_init__(self) -> None:
        claimed = (self.served_name, *self.aliases, f"{self.namespace}/{self.served_name}", self.key)
        own = f"{self.namespace}/"
        names = tuple(dict.fromkeys(name for name in claimed if "/" not in name or name.startswith(own)))
        object.__setattr__(self, "names", names)
        listed = ((each.served_name, each.name) for each in self.adapters if each.served_name)
        named = [(name, adapter) for plain, adapter in listed for name in (plain, f"{self.namespace}/{plain}")]
        object.__setattr__(self, "adapter_names", {name: adapter for name, adapter in named if name not in names})

    @property
    def key(self) -> str:
        """`namespace/name`: the metrics' label and the beginning of the canonical path."""
        return f"{self.namespace}/{self.name}"

    def split(self, name: str) -> tuple[str, str | None]:
        """A request's `model` as (one of these names, requested adapter); other models' names stay as they are."""
        adapter = self.adapter_names.get(name) if self.adapters else None
        return split_adapter(name, self.names) if adapter is None else (self.served_name, adapter)

    def adapter(self, name: str) -> ServedAdapter | None:
        """The one of this name that it lists."""
        return next((each for each in self.adapters if each.name == name), None)


@dataclass(frozen=True, slots=True)
class ScalingChange:
    """One decision of the autoscaler, as it noted it on the object (`status.scaling.history`)."""

    time: str
    """RFC 3339."""
    before: int
    """Replicas desired until then."""
    after: int
    reason: str
    """The autoscaler's sentence."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Whether a pool without ready replicas will have a replica, and why."""

    starting: bool
    """True: requests are held. False: no replica is on its way, and requests are refused."""
    message: str
    """A sentence for the client."""
    asleep: bool = False
    """It is scaled to zero. If `starting`, the next request wakes it."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A model, its ready replicas, and the outlook while there are none."""

    model: FleetModel
    replicas: tuple[Replica, ...]
    outlook: Outlook
    departing: tuple[Replica, ...] = ()
    """Replicas that take no new requests and may still finish answers."""
    num_starting: int = 0
    """Replicas that exist and are not ready yet."""
    trouble: str = ""
    """What needs a person though replicas may be ready, in the operator's words; empty = nothing is known."""
    changes: tuple[ScalingChange, ...] = ()
    """The autoscaler's last decisions, oldest first."""

    @property
    def adapters(self) -> tuple[str, ...]:
        """Adapters that any replica serves or will serve, sorted."""
        served = {adapter for replica in self.replicas for adapter in replica.adapters}
        return tuple(sorted(served.union(each.name for each in self.model.adapters if not each.trouble)))

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What the model can do, as a replica's engine has told; empty = none has."""
        return next((replica.capabilities for replica in self.replicas if replica.capabilities), ())

    @property
    def state(self) -> str:
        """For lists: ready, starting, asleep (the next request wakes it), stopped (a person must scale it up), or
        failed."""
        if self.replicas:
            return "ready"
        if self.outlook.asleep:
            return "asleep" if self.outlook.starting else "stopped"
        return "starting" if self.outlook.starting else "failed"


class Directory:
    """An immutable index over pools.

    `<namespace>/<name>` is always the LLMDeployment of that namespace and name. Another name claimed by several
    LLMDeployments belongs to the oldest (of the same second: the first by namespace and name); the others' condition
    Degraded/NameConflict says so.
    """

    def __init__(self, pools: Iterable[Pool] = ()) -> None:
        models = sorted(pools, key=lambda pool: (pool.model.created, pool.model.namespace, pool.model.name))
        self.pools: tuple[Pool, ...] = tuple(models)
        self._by_key: dict[Key, Pool] = {}
        self._by_name: dict[str, Pool] = {}
        for pool in self.pools:
            self._by_key.setdefault((pool.model.namespace, pool.model.name), pool)
            self._by_name.setdefault(pool.model.key, pool)
        for pool in self.pools:
            for name in (*pool.model.names, *pool.model.adapter_names):
                self._by_name.setdefault(name, pool)

    def find(self, name: str) -> Pool | None:
        """The pool of a request's `model` field, with an adapter or without."""
        base, adapter = split_adapter(name, self._by_name)
        pool = self._by_name.get(base)
        # An adapter's own name takes no other adapter.
        return None if pool is None or (adapter is not None and base not in pool.model.names) else pool

    def find_key(self, namespace: str, name: str) -> Pool | None:
        """The pool of this LLMDeployment."""
        return self._by_key.get((namespace, name))

    def find_host(self, host: str) -> Pool | None:
        """The pool of a Host header: `<name>.<namespace>`, perhaps with the cluster's domain and a port. None for the
        gateway's own names and for addresses."""
        parts = host.lower().partition(":")[0].rstrip(".").split(".")
        if len(parts) < 2 or (len(parts) > 2 and parts[2] != "svc"):
            return None
        return self._by_key.get((parts[1], parts[0]))

    @cached_property
    def served_names(self) -> list[str]:
        """The first public name of each model that is not failed, sorted."""
        return sorted(self.public_names(pool)[0] for pool in self.pools if pool.state != "failed")

    def public_names(self, pool: Pool) -> list[str]:
        """The names to list for `pool`: the pool's plain names, else the name with namespace."""
        model = pool.model

        def is_ours(name: str) -> bool:  # by key: whoever asks may have the pool of an older directory
            found = self._by_name.get(name)
            return found is not None and found.model.key == model.key

        plain = [name for name in (model.served_name, *model.aliases) if is_ours(name)]
        if model.served_name not in plain:
            qualified = f"{model.namespace}/{model.served_name}"
            plain.insert(0, qualified if is_ours(qualified) else model.key)
        return list(dict.fromkeys(plain))


def answers_to(pool: Pool, name: str) -> bool:
    """Whether `name`, perhaps with an adapter, is among the pool's names, claimed by other pools or not; for requests
    by path or Host."""
    return pool.model.split(name)[0] in pool.model.names


OnChange = Callable[[Directory], None]
"""Called with each new directory, on the event loop; must not block."""


class Fleet(ABC):
    """The newest directory; tells subscribers of newer ones. Subclasses follow the world and publish."""

    def __init__(self) -> None:
        self.directory = Directory()
        """What is known now. Immutable: a change makes a new one."""
        self._followers: list[OnChange] = []

    @property
    @abstractmethod
    def synced(self) -> bool:
        """Whether everything that exists has been seen once; before that, absence means nothing."""

    def subscribe(self, on_change: OnChange) -> None:
        """`on_change` is called at once with the present directory, and with every later one."""
        self._followers.append(on_change)
        on_change(self.directory)

    def publish(self, pools: Iterable[Pool]) -> None:
        """Makes a directory of `pools` the newest one."""
        self.directory = Directory(pools)
        for on_change in self._followers:
            on_change(self.directory)

    @abstractmethod
    async def run(self) -> None:
        """Follows the world until cancelled."""


HOPELESS_REASONS = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.NOT_PERMITTED,
        Reason.UNKNOWN_PROFILE,
        Reason.RESOURCE_NOT_OWNED,
        Reason.SOURCE_NOT_SUPPORTED,
        Reason.SIDECARS_NOT_SUPPORTED,
        Reason.MODEL_SOURCE_NOT_FOUND,
        Reason.PROFILE_NOT_USABLE,
        Reason.WEIGHTS_TOO_LARGE,
        Reason.NOT_DIVISIBLE,
    }
)
"""Reasons under which the operator creates no pods until somebody changes something."""

_NOT_MENDED_BY_WAITING = frozenset({Reason.IMAGE_PULL_BACK_OFF, Reason.CREATE_CONTAINER_ERROR})
"""Reasons, beside those for an unavailable model, that do not pass by waiting."""
_MENDED_BY_WAITING = frozenset({DownloadFailure.SOURCE_UNREACHABLE, DownloadFailure.NO_SPACE})
"""Reasons for an unavailable model that may pass by waiting."""

HOPELESS_ADAPTERS = frozenset(
    {Reason.ADAPTER_NOT_LOADED, Reason.ADAPTER_SOURCE_NOT_FOUND, Reason.SOURCE_NOT_SUPPORTED, *DownloadFailure}
)
"""Reasons under which no replica serves an adapter until somebody changes something."""


def scaling_changes(status: Mapping[str, Any]) -> tuple[ScalingChange, ...]:
    """What the autoscaler noted, oldest first; entries that cannot be read are left out."""
    noted = (status.get("scaling") or {}).get("history") or ()
    found = []
    for each in reversed(noted):
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            times, reason = str(each["time"]), str(each.get("reason") or "")
            found.append(ScalingChange(times, int(each["from"]), int(each["to"]), reason))
    return tuple(found)


def served_model(deployment: LLMDeployment) -> FleetModel:
    """The part of the LLMDeployment that serves requests."""
    metadata, spec = deployment.metadata, deployment.spec
    targets = (spec.autoscaling.targets if spec.autoscaling else None) or ScalingTargets()
    engine = repr((spec.model.source, spec.engine, spec.resources, spec.template))
    # What the engines are sure to be started with: arguments and templates win over the field.
    said_elsewhere = "max-model-len" in repr((spec.engine.extra_args, spec.template))
    return FleetModel(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        served_name=spec.model.served_name,
        aliases=tuple(spec.model.aliases),
        adapters=_adapters(deployment),
        created=metadata.creation_timestamp.timestamp(),
        engine=hashlib.blake2b(engine.encode(), digest_size=16).hexdigest(),
        max_model_len=None if said_elsewhere else spec.engine.max_model_len,
        routing=spec.routing,
        target_ttft_seconds=targets.time_to_first_token,
        target_percentile=targets.percentile,
        scale_for_batches=bool(spec.autoscaling and spec.autoscaling.scale_for_batches),
    )


def _adapters(deployment: LLMDeployment) -> tuple[ServedAdapter, ...]:
    """Listed adapters, each with the trouble that the operator has found."""
    said = {each.get("name"): each for each in deployment.status.get("adapters") or ()}
    found = []
    for adapter in deployment.spec.adapters:
        status = said.get(adapter.name) or {}
        trouble = str(status.get("message") or "") if status.get("reason") in HOPELESS_ADAPTERS else ""
        found.append(ServedAdapter(adapter.name, adapter.served_name, trouble))
    return tuple(found)


def outlook(deployment: LLMDeployment, replicas: Iterable[ReplicaPods]) -> Outlook:
    """Whether a replica will be ready: replicas exist that may become ready, will be created, or will be requested by
    waiting requests.

    Existing replicas count, as a condition may be older, unless all fail to start again and again and the operator
    names a cause that lies with model, image or Secret. The message is the operator's about this generation of
    the spec, preferably why the model cannot be loaded.
    """
    status, metadata, generation = deployment.status, deployment.metadata, deployment.metadata.generation
    kinds = (ConditionType.MODEL_AVAILABLE, ConditionType.READY)
    troubles = [
        condition
        for condition in filter(None, (find_condition(status, kind) for kind in kinds))
        if condition.get("status") == ConditionStatus.FALSE
        and condition.get("observedGeneration", generation) == generation
    ]
    is_trouble = troubles and troubles[0].get("reason") != Reason.SCALED_TO_ZERO
    message = str(troubles[0].get("message") or "") if is_trouble else ""
    if pods := [pod for each in replicas if each.is_active for pod in each.pods]:
        cause = troubles[0] if troubles else {}
        return Outlook(not _lasts(cause) or not all(map(is_stuck, pods)), message or "Its replicas are starting.")
    if any(condition.get("reason") in HOPELESS_REASONS for condition in troubles):
        return Outlook(False, message)
    if deployment.desired_replicas != 0:
        return Outlook(True, message or "Its first replica is being created.")
    autoscaling = deployment.spec.autoscaling
    command = f"`kubectl scale llmdeployment {metadata.name} --namespace {metadata.namespace} --replicas 1`"
    if autoscaling is None:
        who = f"{command} starts a replica"
    elif autoscaling.mode is ScalingMode.EXTERNAL:
        who = f"its external autoscaler (autoscaling.mode External) has to raise spec.replicas, as {command} does"
    else:
        who = "Fairlead's autoscaler starts a replica for the requests that wait"
    return Outlook(autoscaling is not None, message or f"It is scaled to zero; {who}.", asleep=True)


def _lasts(trouble: Mapping[str, Any]) -> bool:
    """Whether a condition that is False tells of a cause that somebody has to mend."""
    if trouble.get("type") == ConditionType.MODEL_AVAILABLE:
        return trouble.get("reason") not in _MENDED_BY_WAITING
    return trouble.get("reason") in _NOT_MENDED_BY_WAITING
