"""Times in the notation of the API, ages in the notation of kubectl, and conditions with transition times."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from fairlead_local.apiserver.status import Json


def timestamp(moment: datetime | None = None) -> str:
    """RFC 3339 in whole seconds, UTC; of now unless `moment` is given."""
    return (moment or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    """The moment an RFC 3339 text names; raises ValueError for anything else."""
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def seconds_since(text: str | None) -> float:
    """Seconds from the RFC 3339 time to now; 0 without a time."""
    return (datetime.now(UTC) - parse_time(text)).total_seconds() if text else 0.0


_ROUNDED = (
    (120, 1, "s", 0, ""),
    (600, 60, "m", 1, "s"),
    (10_800, 60, "m", 0, ""),
    (28_800, 3_600, "h", 60, "m"),
    (172_800, 3_600, "h", 0, ""),
    (691_200, 86_400, "d", 3_600, "h"),
    (63_072_000, 86_400, "d", 0, ""),
    (252_288_000, 31_536_000, "y", 86_400, "d"),
    (math.inf, 31_536_000, "y", 0, ""),
)
"""Seconds below which a row counts; the major unit in seconds and its letter; the minor unit, 0 = not shown."""


def age(text: str | None) -> str:
    """`45s`, `3m12s`, `5h`, `7d`: two significant units up to some size, as kubectl's `HumanDuration`."""
    if not text:
        return "<unknown>"
    whole = max(0, int(seconds_since(text)))
    _, major, letter, minor, minor_letter = next(row for row in _ROUNDED if whole < row[0])
    rest = whole % major // minor if minor else 0
    return f"{whole // major}{letter}" + (f"{rest}{minor_letter}" if rest else "")


def condition(kind: str, status: str, reason: str = "", message: str = "") -> Json:
    """A condition that turned now."""
    text = {name: value for name, value in (("reason", reason), ("message", message)) if value}
    return {"type": kind, "status": status, **text, "lastTransitionTime": timestamp()}


def conditions_of(obj: Json) -> list[Json]:
    """The conditions in the status of an object."""
    found: list[Json] = (obj.get("status") or {}).get("conditions") or []
    return found


def with_condition(conditions: Sequence[Json], new: Json) -> list[Json]:
    """`conditions` with `new` in place of the old condition; with an unchanged status the transition time stays."""
    old = next((found for found in conditions if found["type"] == new["type"]), None)
    if old and old["status"] == new["status"]:
        new = {**new, "lastTransitionTime": old.get("lastTransitionTime", new["lastTransitionTime"])}
    if old:
        return [new if found is old else found for found in conditions]
    return [*conditions, new]
