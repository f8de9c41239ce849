"""Conditions in a status: their times tell when they last turned, and when they were last touched. Pure."""

from collections.abc import Sequence

from fairlead_local.apiserver.status import Json
from fairlead_local.apiserver.times import timestamp


def condition(kind: str, status: str, reason: str = "", message: str = "") -> Json:
    """A condition that turned now."""
    text = {name: value for name, value in (("reason", reason), ("message", message)) if value}
    return {"type": kind, "status": status, **text, "lastTransitionTime": timestamp()}


def find(conditions: Sequence[Json], kind: str) -> Json | None:
    return next((found for found in conditions if found["type"] == kind), None)


def with_condition(conditions: Sequence[Json], new: Json) -> list[Json]:
    """`conditions` with `new` in its place; its transition time stays the old one while the status does."""
    old = find(conditions, new["type"])
    if old and old["status"] == new["status"]:
        new = {**new, "lastTransitionTime": old.get("lastTransitionTime", new["lastTransitionTime"])}
    if old:
        return [new if found is old else found for found in conditions]
    return [*conditions, new]
