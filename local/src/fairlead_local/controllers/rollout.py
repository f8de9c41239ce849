"""How many pods each ReplicaSet of a Deployment should have next. Pure; the rules are Kubernetes' own."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from fairlead_local.apiserver.status import Json

DESIRED = "deployment.kubernetes.io/desired-replicas"
REVISION = "deployment.kubernetes.io/revision"


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """How far a rollout may stray from the count wanted: pods above it, and pods below it that are available."""

    replicas: int
    max_surge: int
    max_unavailable: int

    @classmethod
    def of(cls, deployment: Json) -> Self:
        """Percentages round up for the surge, down for the unavailable; not both may be 0."""
        spec = deployment["spec"]
        replicas, strategy = spec.get("replicas", 1), spec.get("strategy") or {}
        if strategy.get("type") == "Recreate":
            return cls(replicas, 0, replicas)
        rolling = strategy.get("rollingUpdate") or {}
        surge = _resolve(rolling.get("maxSurge", "25%"), replicas, up=True)
        unavailable = _resolve(rolling.get("maxUnavailable", "25%"), replicas, up=False)
        return cls(replicas, surge, min(replicas, unavailable if surge or unavailable else 1))

    @property
    def most(self) -> int:
        return self.replicas + self.max_surge

    @property
    def fewest_available(self) -> int:
        return self.replicas - self.max_unavailable


def _resolve(value: int | str, replicas: int, *, up: bool) -> int:
    if isinstance(value, int):
        return value
    exact = int(value.rstrip("%")) * replicas / 100
    return math.ceil(exact) if up else math.floor(exact)


Counts = dict[str, int]
"""Name of a ReplicaSet → the replicas it should have; sets that stay as they are may be left out."""


def next_counts(limits: RolloutLimits, new: Json, old: Sequence[Json], *, recreate: bool) -> Counts:
    """One step of a rollout: what the new set and the old ones should have now."""
    if recreate:
        gone = {name_of(found): 0 for found in old}
        return gone if any(_running(found) for found in old) else {**gone, name_of(new): limits.replicas}
    grown = _new_count(limits, new, old)
    if grown != wanted(new):
        return {name_of(new): grown}
    return _shrink_old(limits, new, old)


def _new_count(limits: RolloutLimits, new: Json, old: Sequence[Json]) -> int:
    if wanted(new) >= limits.replicas:
        return limits.replicas
    room = limits.most - sum(map(wanted, [new, *old]))
    return wanted(new) + max(0, min(room, limits.replicas - wanted(new)))


def _shrink_old(limits: RolloutLimits, new: Json, old: Sequence[Json]) -> Counts:
    """Old pods that serve nobody go first, then as many of the others as availability allows; the oldest set first."""
    total = sum(map(wanted, [new, *old]))
    unready_new = wanted(new) - _available(new)
    spare = total - limits.fewest_available - unready_new
    counts = {name_of(found): wanted(found) for found in old}
    for found in old:
        gone = min(max(0, spare), counts[name_of(found)] - _available(found))
        if gone > 0:
            counts[name_of(found)] -= gone
            spare -= gone
    available = sum(map(_available, [new, *old]))
    surplus = min(max(0, spare), available - limits.fewest_available)
    for found in old:
        gone = min(max(0, surplus), counts[name_of(found)])
        counts[name_of(found)] -= gone
        surplus -= gone
    return counts


def is_scaling(deployment: Json, sets: Sequence[Json]) -> bool:
    """Whether the Deployment's count changed since its sets were last sized."""
    replicas = str(deployment["spec"].get("replicas", 1))
    annotations = [found["metadata"].get("annotations") or {} for found in sets if wanted(found) > 0]
    return any(found.get(DESIRED, replicas) != replicas for found in annotations)


def scaled_counts(limits: RolloutLimits, new: Json | None, old: Sequence[Json]) -> Counts:
    """What a change of the Deployment's count means for its sets. While a rollout is under way the newest set that has
    pods takes the whole change, where Kubernetes shares it in proportion; the rollout evens that out."""
    active = [found for found in [*old, *([new] if new else [])] if wanted(found) > 0]
    if len(active) <= 1:
        target = active[0] if active else new
        return {name_of(target): limits.replicas} if target else {}
    if not limits.replicas:
        return {name_of(found): 0 for found in active}
    *others, newest = active
    return {name_of(newest): max(0, limits.most - sum(map(wanted, others)))}


def name_of(replica_set: Json) -> str:
    name: str = replica_set["metadata"]["name"]
    return name


def wanted(replica_set: Json) -> int:
    """The replicas a set should have."""
    count: int = replica_set["spec"].get("replicas", 1)
    return count


def _running(replica_set: Json) -> int:
    count: int = (replica_set.get("status") or {}).get("replicas", 0)
    return count


def _available(replica_set: Json) -> int:
    count: int = (replica_set.get("status") or {}).get("availableReplicas", 0)
    return min(count, wanted(replica_set))
