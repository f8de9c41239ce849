"""Times as the API writes them, ages as kubectl prints them, and conditions, which say since when they hold."""

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


def seconds_since(text: str | None, now: datetime | None = None) -> float:
    """Seconds from the RFC 3339 time to now; 0 when there is none."""
    return ((now or datetime.now(UTC)) - parse_time(text)).total_seconds() if text else 0.0


def age(text: str | None, now: datetime | None = None) -> str:
    """`45s`, `3m12s`, `5h`, `7d`: how long ago, as `kubectl get` shows it."""
    if not text:
        return "<unknown>"
    return duration(seconds_since(text, now))


def duration(seconds: float) -> str:
    """Two significant units up to some size, as kubectl's `HumanDuration` does."""
    whole = int(seconds)
    if whole < 0:
        return "0s"
    if whole < 120:
        return f"{whole}s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    if days < 8 * 365:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(major: int, major_unit: str, minor: int, minor_unit: str) -> str:
    return f"{major}{major_unit}{minor}{minor_unit}" if minor else f"{major}{major_unit}"


def condition(kind: str, status: str, reason: str = "", message: str = "") -> Json:
    """A condition that turned now."""
    text = {name: value for name, value in (("reason", reason), ("message", message)) if value}
    return {"type": kind, "status": status, **text, "lastTransitionTime": timestamp()}


def conditions_of(obj: Json) -> list[Json]:
    """The conditions in the status of an object; empty when it has none."""
    found: list[Json] = (obj.get("status") or {}).get("conditions") or []
    return found


def with_condition(conditions: Sequence[Json], new: Json) -> list[Json]:
    """`conditions` with `new` in its place; its transition time stays the old one while the status does."""
    old = next((found for found in conditions if found["type"] == new["type"]), None)
    if old and old["status"] == new["status"]:
        new = {**new, "lastTransitionTime": old.get("lastTransitionTime", new["lastTransitionTime"])}
    if old:
        return [new if found is old else found for found in conditions]
    return [*conditions, new]
