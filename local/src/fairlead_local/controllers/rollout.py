"""Rollouts of a Deployment, by the rules of Kubernetes: next counts of ReplicaSets, and the status. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from fairlead.api.conditions import find_condition
from fairlead_local.apiserver.status import Json
from fairlead_local.apiserver.times import condition, conditions_of, seconds_since, timestamp, with_condition

DESIRED = "deployment.kubernetes.io/desired-replicas"
REVISION = "deployment.kubernetes.io/revision"


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """Bounds of a rollout: pods above the wanted count, and available pods below."""

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
"""Name of a ReplicaSet → wanted replicas; unchanged sets may be missing."""


def next_counts(limits: RolloutLimits, new: Json, old: Sequence[Json], *, recreate: bool) -> Counts:
    """One step of a rollout: the next counts of the new set and the old sets."""
    if recreate:
        gone = {name_of(found): 0 for found in old}
        return gone if any(_count(found, "replicas") for found in old) else {**gone, name_of(new): limits.replicas}
    grown = limits.replicas
    if wanted(new) < limits.replicas:
        room = limits.most - sum(map(wanted, [new, *old]))
        grown = wanted(new) + max(0, min(room, limits.replicas - wanted(new)))
    if grown != wanted(new):
        return {name_of(new): grown}
    return _shrink_old(limits, new, old)


def _shrink_old(limits: RolloutLimits, new: Json, old: Sequence[Json]) -> Counts:
    """Unavailable old pods go first, then as many available old pods as allowed; the oldest set first."""
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
    """Counts of sets after a change of the count of the Deployment. During a rollout the newest set with pods takes the
    whole change, where Kubernetes splits the change in proportion; the rollout evens out the difference."""
    active = [found for found in [*old, *([new] if new else [])] if wanted(found) > 0]
    if len(active) <= 1:
        target = active[0] if active else new
        return {name_of(target): limits.replicas} if target else {}
    if not limits.replicas:
        return {name_of(found): 0 for found in active}
    *others, newest = active
    return {name_of(newest): max(0, limits.most - sum(map(wanted, others)))}


def name_of(replica_set: Json) -> str:
    return str(replica_set["metadata"]["name"])


def wanted(replica_set: Json) -> int:
    """The replicas of a set by its spec."""
    return int(replica_set["spec"].get("replicas", 1))


def _available(replica_set: Json) -> int:
    return min(_count(replica_set, "availableReplicas"), wanted(replica_set))


_CLOCK_SECONDS = 0.1
"""Added to a deadline before looking again, because times in objects are whole seconds."""
_SUMS = ("replicas", "readyReplicas", "availableReplicas")


def status_of(deployment: Json, new: Json | None, old: Sequence[Json], *, created: bool) -> Json:
    """The whole status; `created` says that the new set was made just now."""
    spec = deployment["spec"]
    sets = [*([new] if new else []), *old]
    counts = {name: sum(_count(found, name) for found in sets) for name in _SUMS}
    counts["updatedReplicas"] = _count(new, "replicas") if new else 0
    counts["unavailableReplicas"] = max(0, spec.get("replicas", 1) - counts["availableReplicas"])
    status: Json = {name: count for name, count in counts.items() if count}
    status["observedGeneration"] = deployment["metadata"]["generation"]
    availability = condition("Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    if counts["availableReplicas"] < RolloutLimits.of(deployment).fewest_available:
        text = "Deployment does not have minimum availability."
        availability = condition("Available", "False", "MinimumReplicasUnavailable", text)
    conditions = with_condition(conditions_of(deployment), availability)
    progressing = _progressing(deployment, new, counts, created=created)
    if progressing:
        conditions = _with_progress(conditions, progressing)
    failure = next((f for s in sets if (f := find_condition(s.get("status") or {}, "ReplicaFailure"))), None)
    conditions = [found for found in conditions if found["type"] != "ReplicaFailure"]
    status["conditions"] = [*conditions, failure] if failure else conditions
    return status


def is_complete(deployment: Json, counts: Json) -> bool:
    """Whether every pod is of the newest template and available."""
    replicas = deployment["spec"].get("replicas", 1)
    return all(counts.get(name, 0) == replicas for name in ("updatedReplicas", "replicas", "availableReplicas"))


def seconds_to_deadline(deployment: Json) -> float | None:
    """Seconds until a rollout without progress counts as failed; None = no rollout is under way."""
    left = _seconds_left(deployment)
    return None if left is None else max(0.0, left) + _CLOCK_SECONDS


def _seconds_left(deployment: Json) -> float | None:
    progressing = find_condition(deployment.get("status") or {}, "Progressing")
    if not progressing or progressing.get("reason") in ("NewReplicaSetAvailable", "ProgressDeadlineExceeded"):
        return None
    deadline: int = deployment["spec"].get("progressDeadlineSeconds", 600)
    return deadline - seconds_since(progressing.get("lastUpdateTime"))


def _progressing(deployment: Json, new: Json | None, counts: Json, *, created: bool) -> Json | None:
    """The present Progressing condition; None = unchanged."""
    before = deployment.get("status") or {}
    old = find_condition(before, "Progressing")
    subject = f'ReplicaSet "{name_of(new)}"' if new else f'Deployment "{deployment["metadata"]["name"]}"'
    if created and new is not None:
        message = f'Created new replica set "{name_of(new)}"'
        return condition("Progressing", "True", "NewReplicaSetCreated", message)
    if new is not None and is_complete(deployment, counts):
        message = f"{subject} has successfully progressed."
        return condition("Progressing", "True", "NewReplicaSetAvailable", message)
    old_pods = before.get("replicas", 0) - before.get("updatedReplicas", 0)
    has_progressed = counts["replicas"] - counts["updatedReplicas"] < old_pods or any(
        counts[name] > before.get(name, 0) for name in ("updatedReplicas", "readyReplicas", "availableReplicas")
    )
    if not old or has_progressed:
        return condition("Progressing", "True", "ReplicaSetUpdated", f"{subject} is progressing.")
    left = _seconds_left(deployment)
    if left is not None and left <= 0:
        message = f"{subject} has timed out progressing."
        return condition("Progressing", "False", "ProgressDeadlineExceeded", message)
    return None


def _with_progress(conditions: Sequence[Json], new: Json) -> list[Json]:
    """As `with_condition`, with the time of the last progress, from which the deadline counts."""
    old = find_condition({"conditions": conditions}, "Progressing")
    same = bool(old) and all(old.get(field) == new.get(field) for field in ("status", "reason", "message"))
    settled = same and new.get("reason") == "NewReplicaSetAvailable"
    moved = old["lastUpdateTime"] if settled and old else timestamp()
    return with_condition(conditions, {**new, "lastUpdateTime": moved})


def _count(replica_set: Json, name: str) -> int:
    return int((replica_set.get("status") or {}).get(name, 0))
