"""The status of a Deployment, from its ReplicaSets: counts, and whether it is available and getting on. Pure."""

from collections.abc import Sequence

from fairlead_local.apiserver.status import Json
from fairlead_local.apiserver.times import seconds_since, timestamp
from fairlead_local.controllers.conditions import condition, find, with_condition
from fairlead_local.controllers.rollout import RolloutLimits, name_of

_CLOCK_SECONDS = 0.1
"""Added to a deadline before looking again, because times in objects are whole seconds."""
_SUMS = ("replicas", "readyReplicas", "availableReplicas")


def status_of(deployment: Json, new: Json | None, old: Sequence[Json], *, created: bool) -> Json:
    """The whole status; `created` says that the new set was made just now."""
    spec, before = deployment["spec"], deployment.get("status") or {}
    sets = [*([new] if new else []), *old]
    counts = {name: sum(_count(found, name) for found in sets) for name in _SUMS}
    counts["updatedReplicas"] = _count(new, "replicas") if new else 0
    counts["unavailableReplicas"] = max(0, spec.get("replicas", 1) - counts["availableReplicas"])
    status: Json = {name: count for name, count in counts.items() if count}
    status["observedGeneration"] = deployment["metadata"]["generation"]
    conditions = with_condition(before.get("conditions") or [], _available(deployment, counts["availableReplicas"]))
    progressing = _progressing(deployment, new, counts, created=created)
    if progressing:
        conditions = _with_progress(conditions, progressing)
    failure = next((f for s in sets if (f := find(_conditions(s), "ReplicaFailure"))), None)
    conditions = [found for found in conditions if found["type"] != "ReplicaFailure"]
    status["conditions"] = [*conditions, failure] if failure else conditions
    return status


def is_complete(deployment: Json, counts: Json) -> bool:
    """Whether every pod is of the newest template and available."""
    replicas = deployment["spec"].get("replicas", 1)
    return all(counts.get(name, 0) == replicas for name in ("updatedReplicas", "replicas", "availableReplicas"))


def seconds_to_deadline(deployment: Json) -> float | None:
    """Until a rollout that does not get on counts as failed; None when none is under way."""
    left = _seconds_left(deployment)
    return None if left is None else max(0.0, left) + _CLOCK_SECONDS


def _seconds_left(deployment: Json) -> float | None:
    progressing = find((deployment.get("status") or {}).get("conditions") or (), "Progressing")
    if progressing is None or progressing.get("reason") in ("NewReplicaSetAvailable", "ProgressDeadlineExceeded"):
        return None
    deadline: int = deployment["spec"].get("progressDeadlineSeconds", 600)
    return deadline - seconds_since(progressing.get("lastUpdateTime"))


def _available(deployment: Json, available: int) -> Json:
    if available >= RolloutLimits.of(deployment).fewest_available:
        found = condition("Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    else:
        message = "Deployment does not have minimum availability."
        found = condition("Available", "False", "MinimumReplicasUnavailable", message)
    return found


def _progressing(deployment: Json, new: Json | None, counts: Json, *, created: bool) -> Json | None:
    """The Progressing condition as of now; None where it stays as it is."""
    before = deployment.get("status") or {}
    old = find(before.get("conditions") or (), "Progressing")
    subject = f'ReplicaSet "{name_of(new)}"' if new else f'Deployment "{deployment["metadata"]["name"]}"'
    if created and new is not None:
        message = f'Created new replica set "{name_of(new)}"'
        return condition("Progressing", "True", "NewReplicaSetCreated", message)
    if new is not None and is_complete(deployment, counts):
        message = f"{subject} has successfully progressed."
        return condition("Progressing", "True", "NewReplicaSetAvailable", message)
    if old is None or _has_progressed(before, counts):
        return condition("Progressing", "True", "ReplicaSetUpdated", f"{subject} is progressing.")
    left = _seconds_left(deployment)
    if left is not None and left <= 0:
        message = f"{subject} has timed out progressing."
        return condition("Progressing", "False", "ProgressDeadlineExceeded", message)
    return None


def _has_progressed(before: Json, now: Json) -> bool:
    """More pods are new, ready or available, or fewer are old, than the status says."""
    old_before = before.get("replicas", 0) - before.get("updatedReplicas", 0)
    if now["replicas"] - now["updatedReplicas"] < old_before:
        return True
    return any(now[name] > before.get(name, 0) for name in ("updatedReplicas", "readyReplicas", "availableReplicas"))


def _with_progress(conditions: Sequence[Json], new: Json) -> list[Json]:
    """As `with_condition`; an update time tells the deadline when something last moved."""
    old = find(conditions, "Progressing")
    same = old is not None and all(old.get(field) == new.get(field) for field in ("status", "reason", "message"))
    settled = same and new.get("reason") == "NewReplicaSetAvailable"
    moved = old["lastUpdateTime"] if settled and old else timestamp()
    return with_condition(conditions, {**new, "lastUpdateTime": moved})


def _count(replica_set: Json, name: str) -> int:
    count: int = (replica_set.get("status") or {}).get(name, 0)
    return count


def _conditions(replica_set: Json) -> list[Json]:
    found: list[Json] = (replica_set.get("status") or {}).get("conditions") or []
    return found
