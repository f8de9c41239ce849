"""Kubernetes Events on LLMDeployments: what changed, for people. On change only; repetitions count up one Event.

Losing an Event never fails a reconciliation.
"""

import logging
import secrets
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from fairlead.api import names
from fairlead.api.conditions import ConditionStatus, ConditionType, Reason, find_condition
from fairlead.controller.applier import ChildChange
from fairlead.controller.pod_diagnosis import Diagnosis
from fairlead.kube.client import JsonObject, KubeClient, KubeError
from fairlead.kube.resources import EVENTS

logger = logging.getLogger(__name__)

_UNDER_WAY = (Reason.ADAPTER_LOADING, Reason.DOWNLOADING)
"""Reasons of an adapter that are no news: time will tell."""
MAX_REMEMBERED = 1024
"""Events whose repetitions are counted; older ones start anew."""
MAX_MESSAGE_LENGTH = 1024
"""Kubernetes refuses longer ones."""


class EventType(StrEnum):
    """Kubernetes' two."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Announcement:
    """What an Event says."""

    type: EventType
    reason: str
    message: str


def announcements(
    before: Mapping[str, Any], after: Mapping[str, Any], changes: Sequence[ChildChange]
) -> list[Announcement]:
    """Events worth recording between two statuses, and among the written changes. Pure."""
    found = list(_announce_changes(changes))
    for kind in (ConditionType.DEGRADED, ConditionType.READY):
        old, new = find_condition(before, kind), find_condition(after, kind)
        # Of replicas that hang, also which they are makes another Event.
        fields = ("status", "reason", *(("message",) if new.get("reason") == Reason.REPLICA_HANGS else ()))
        if not new or all(old.get(field) == new.get(field) for field in fields):
            continue
        is_true, event_type = new["status"] == ConditionStatus.TRUE, EventType.NORMAL
        if kind is ConditionType.READY:
            is_news = all(one.reason != new["reason"] for one in found)
        else:
            is_news = is_true or old.get("status") == ConditionStatus.TRUE
            event_type = EventType.WARNING if is_true else EventType.NORMAL
        if is_news:
            found.append(Announcement(event_type, new["reason"], new["message"]))
    return [*found, *_announce_adapters(before, after)]


def disruptions(draining: Sequence[Diagnosis]) -> list[Announcement]:
    """For each replica taken away by others (scheduler, eviction, tainted node) an Event, which outlives the pod and
    its conditions. Pure."""
    return [Announcement(EventType.NORMAL, "Disrupted", pod.sentence) for pod in draining if pod.message]


class EventRecorder:
    """Writes Events in the LLMDeployment's namespace."""

    def __init__(self, client: KubeClient, host: str) -> None:
        """`host`: who reports, such as the pod's name."""
        self._client = client
        self._host = host
        self._known: OrderedDict[tuple[str, Announcement], tuple[str, int]] = OrderedDict()

    async def record(self, body: JsonObject, announcement: Announcement) -> None:
        """Never raises a KubeError."""
        key = (body["metadata"]["uid"], announcement)
        name, count = self._known.get(key, ("", 0))
        try:
            if not await self._count_up(body, name, count):
                name, count = await self._create(body, announcement), 0
        except KubeError as e:
            logger.warning("cannot write the event %s: %s", announcement.reason, e)
            return
        self._known[key] = (name, count + 1)
        self._known.move_to_end(key)
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)

    async def record_once(self, body: JsonObject, announcement: Announcement) -> None:
        """As `record`, of something that lasts: nothing where it was told before."""
        if (body["metadata"]["uid"], announcement) not in self._known:
            await self.record(body, announcement)

    async def _create(self, body: JsonObject, announcement: Announcement) -> str:
        metadata, now = body["metadata"], _now()
        name = f"{metadata['name']}.{secrets.token_hex(8)}"
        event = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
                "resourceVersion": metadata.get("resourceVersion"),
            },
            "type": str(announcement.type),
            "reason": announcement.reason,
            "message": announcement.message[:MAX_MESSAGE_LENGTH],
            "source": {"component": names.OPERATOR_NAME, "host": self._host},
            "reportingComponent": names.OPERATOR_NAME,
            "reportingInstance": self._host,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await self._client.create(EVENTS, event)
        return name

    async def _count_up(self, body: JsonObject, name: str, count: int) -> bool:
        """False = not recorded yet, or expired."""
        if not name:
            return False
        patch = {"count": count + 1, "lastTimestamp": _now()}
        try:
            await self._client.patch(EVENTS, name, patch, body["metadata"]["namespace"])
        except KubeError as e:
            if e.status == 404:
                return False
            raise
        return True


def _announce_adapters(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Announcement]:
    """One for each adapter that was loaded or failed."""
    reasons = {each.get("name"): each.get("reason") for each in before.get("adapters") or ()}
    for each in after.get("adapters") or ():
        if each["reason"] != reasons.get(each["name"]) and each["reason"] not in _UNDER_WAY:
            kind = EventType.NORMAL if each["reason"] == Reason.ADAPTER_LOADED else EventType.WARNING
            yield Announcement(kind, each["reason"], f"adapter {each['name']}: {each['message']}")


def _announce_changes(changes: Sequence[ChildChange]) -> Iterator[Announcement]:
    """An Event per verb. Of updates only the Deployment's are told, which replace pods."""
    told: dict[str, list[str]] = {}
    for change in changes:
        if change.verb != "Updated" or change.kind == "Deployment":
            detail = f" ({change.detail})" if change.detail else ""
            told.setdefault(change.verb, []).append(f"{change.kind} {change.name}{detail}")
    for verb, things in told.items():
        yield Announcement(EventType.NORMAL, verb, f"{verb} {', '.join(things)}")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
