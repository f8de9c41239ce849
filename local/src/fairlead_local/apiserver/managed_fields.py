"""Owners of fields: `metadata.managedFields`, updated at every write, and server-side apply.

Pure. The verbs call `track` after a create, update or patch, and `apply` for an apply patch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fairlead_local.apiserver import fieldsets
from fairlead_local.apiserver.fieldsets import FieldSet
from fairlead_local.apiserver.status import Json, StatusError, Violation, ViolationKind, causes

_UNTRACKED_METADATA = (
    *("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"),
    *("deletionGracePeriodSeconds", "managedFields", "selfLink"),
)


@dataclass(frozen=True, slots=True)
class Manager:
    """A writer. Applying and updating under one name are two managers, and so is writing `subresource`."""

    name: str
    operation: str
    api_version: str
    subresource: str = ""

    @property
    def readable(self) -> str:
        inside = f' with subresource "{self.subresource}"' if self.subresource else ""
        using = f" using {self.api_version}" if self.operation == "Update" else ""
        return f'"{self.name}"{inside}{using}'


@dataclass(frozen=True, slots=True)
class Owned:
    """The paths of a manager, and the time (RFC 3339) of the last change."""

    fields: FieldSet
    time: str


Ownership = dict[Manager, Owned]


def decode(entries: Iterable[Any] | None) -> Ownership:
    """From `metadata.managedFields`; entries of unknown operations are left out."""
    ownership: Ownership = {}
    for entry in entries or ():
        if isinstance(entry, dict) and entry.get("operation") in ("Apply", "Update"):
            manager = Manager(
                entry.get("manager", ""), entry["operation"], entry.get("apiVersion", ""), entry.get("subresource", "")
            )
            ownership[manager] = Owned(fieldsets.from_v1(entry.get("fieldsV1") or {}), entry.get("time", ""))
    return ownership


def encode(ownership: Ownership) -> list[Json]:
    """To `metadata.managedFields`: appliers first, then by time and name."""

    def entry(manager: Manager, owned: Owned) -> Json:
        body: Json = {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": manager.api_version,
            "time": owned.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": fieldsets.to_v1(owned.fields),
        }
        return body | ({"subresource": manager.subresource} if manager.subresource else {})

    order = sorted(ownership, key=lambda m: (m.operation, ownership[m].time, m.name, m.subresource))
    return [entry(manager, ownership[manager]) for manager in order if ownership[manager].fields]


def tracked(obj: Json) -> Json:
    """The part of an object whose fields have owners: without fields of the server."""
    metadata = {key: value for key, value in obj.get("metadata", {}).items() if key not in _UNTRACKED_METADATA}
    rest = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind", "metadata")}
    return rest | ({"metadata": metadata} if metadata else {})


def track(schema: Json, ownership: Ownership, manager: Manager, old: Json, new: Json, now: str) -> Ownership:
    """Ownership after `manager` turned `old` ({} = no object) into `new`: the manager owns the changed fields."""
    difference = fieldsets.compare(schema, tracked(old), tracked(new))
    changed = difference.changed - {("f:metadata",)}
    if not changed and not difference.removed:
        return ownership
    result = _without(ownership, changed | difference.removed, but=manager)
    mine = ownership[manager].fields if manager in ownership else fieldsets.EMPTY
    if (mine | changed) - difference.removed != mine:
        result[manager] = Owned((mine | changed) - difference.removed, now)
    return result


class AppliedObject(NamedTuple):
    """The object after an apply, and the owners of the fields."""

    object: Json
    ownership: Ownership


def apply(
    schema: Json, ownership: Ownership, manager: Manager, live: Json, config: Json, now: str, *, force: bool
) -> AppliedObject:
    """Merges `config` into `live` ({} = a new object) and removes fields that `manager` applied before and now omits.

    Raises 409 with every field of another manager that `config` would change, unless `force`.
    """
    before, config = tracked(live), tracked(config)
    mine = fieldsets.fields_of(schema, config)
    last = ownership[manager].fields if manager in ownership else fieldsets.EMPTY
    others = {other: owned for other, owned in ownership.items() if other != manager}
    merged = fieldsets.merge(schema, before, config)
    kept = fieldsets.with_parents(mine.union(*(owned.fields for owned in others.values())))
    merged = fieldsets.remove(schema, merged, last - kept, kept)
    difference = fieldsets.compare(schema, before, merged)
    if not force:
        _refuse_conflicts(others, difference.changed)
    result = _without(others, difference.changed | difference.removed, but=None)
    unchanged = manager in ownership and mine == last and merged == before
    result[manager] = Owned(mine, ownership[manager].time if unchanged else now)
    identity: Json = {key: live[key] for key in ("apiVersion", "kind") if key in live}
    server_metadata = {k: v for k, v in live.get("metadata", {}).items() if k in _UNTRACKED_METADATA}
    return AppliedObject({**identity, **merged, "metadata": {**server_metadata, **merged.get("metadata", {})}}, result)


def _without(ownership: Mapping[Manager, Owned], lost: FieldSet, *, but: Manager | None) -> Ownership:
    """Ownership after all managers except `but` lost these paths."""
    result: Ownership = {}
    for manager, owned in ownership.items():
        left = owned.fields if manager == but else owned.fields - lost
        if left:
            result[manager] = Owned(left, owned.time)
    return result


def _refuse_conflicts(others: Ownership, changed: FieldSet) -> None:
    conflicts = [
        (manager, fieldsets.readable(path))
        for manager in sorted(others, key=lambda m: (m.name, m.operation, m.subresource))
        for path in sorted(others[manager].fields & changed)
    ]
    if not conflicts:
        return
    violations = (
        Violation(path, ViolationKind.CONFLICT, f"conflict with {manager.readable}") for manager, path in conflicts
    )
    if len(conflicts) == 1:
        text = f"1 conflict: conflict with {conflicts[0][0].readable}: {conflicts[0][1]}"
    else:
        lines = []
        for manager in dict.fromkeys(manager for manager, _ in conflicts):
            lines.append(f"conflicts with {manager.readable}:")
            lines += [f"- {path}" for other, path in conflicts if other == manager]
        text = f"{len(conflicts)} conflicts: " + "\n".join(lines)
    raise StatusError(409, "Conflict", f"Apply failed with {text}", {"causes": causes(violations)})
