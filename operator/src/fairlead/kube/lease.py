"""Lease: one active process at a time, by a coordination.k8s.io Lease; and what its holder says on it of itself.

Whoever loses the Lease must stop acting at once (`lost`); the operator exits and starts again as a candidate. Time is
counted on our own monotonic clock from when we *saw* the record change, so clocks of other machines do not matter.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from fairlead.api import names
from fairlead.kube.client import JsonObject, KubeClient, KubeError
from fairlead.kube.resources import LEASES

logger = logging.getLogger(__name__)

REFUSED_SECONDS = 10.0
"""Shortest refusal that counts: a starting API server refuses everybody until it has read the roles."""
NOT_YET = (401, 403)
"""What it answers until then."""


@dataclass(eq=False)
class Lease:
    """`acquire()`, then run `hold()` beside the work and stop the work when `lost` is set; `release()` at the end.

    `identity`: unique per process. `duration_seconds`: silence after which others may take the Lease. `labels`,
    `annotations`: on our Lease; read at each renewal. Renewed three times per duration, and given up after two thirds
    of it without success, before others may start.
    """

    client: KubeClient
    namespace: str
    name: str
    identity: str
    _: KW_ONLY
    duration_seconds: float = 15.0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Callable[[], Mapping[str, str]] = dict

    def __post_init__(self) -> None:
        self.lost = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._seen = ("", "")
        """(holder, time of renewal) as last seen; an unchanged record shows no sign of life."""
        self._seen_at = float("-inf")
        """Time of their last change, on our clock."""
        self._renewed = float("-inf")

    async def acquire(self) -> None:
        """Returns once the Lease is ours. Raises KubeError for a final refusal (no permission, no namespace)."""
        waiting_for: str | None = None
        refused_since: float | None = None
        while True:
            try:
                if await self._try():
                    return
                refused_since = None
                holder = self._seen[0]
                if holder != waiting_for:
                    logger.info("waiting for the lease %s/%s, held by %s", self.namespace, self.name, holder)
                    waiting_for = holder
            except KubeError as e:
                if e.status in NOT_YET:
                    refused_since = self._clock() if refused_since is None else refused_since
                    if self._clock() - refused_since >= REFUSED_SECONDS:
                        raise
                elif e.may_pass:
                    refused_since = None
                else:
                    raise
                logger.warning("cannot reach the lease %s/%s: %s", self.namespace, self.name, e)
            await asyncio.sleep(self.duration_seconds / 3)

    async def hold(self) -> None:
        """Renews until the Lease is lost, then sets `lost` and returns."""
        while self._clock() < self._renewed + self.duration_seconds * 2 / 3:
            await asyncio.sleep(self.duration_seconds / 3)
            try:
                async with asyncio.timeout(self.duration_seconds / 3):
                    if not await self._try():
                        break
            except (KubeError, TimeoutError) as e:
                reason = str(e) or "the API server does not answer in time"
                logger.warning("cannot renew the lease %s/%s: %s", self.namespace, self.name, reason)
        logger.error("lost the lease %s/%s", self.namespace, self.name)
        self.lost.set()

    async def release(self) -> None:
        """Lets the next candidate in at once. Does nothing when the Lease is not ours; never raises a KubeError."""
        if self.lost.is_set():
            return
        try:
            lease = await self.client.get(LEASES, self.name, self.namespace)
            if (lease.get("spec") or {}).get("holderIdentity") == self.identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self.client.replace(LEASES, lease)
        except KubeError as e:
            logger.warning("cannot release the lease %s/%s: %s", self.namespace, self.name, e)

    async def _try(self) -> bool:
        """Takes or renews a free or own Lease. False = lost the race."""
        started = self._clock()
        try:
            lease = await self.client.find(LEASES, self.name, self.namespace)
            if lease is None:
                await self.client.create(LEASES, self._renewed_by_us(None))
            else:
                spec = lease.get("spec") or {}
                holder = spec.get("holderIdentity") or ""
                if (seen := (holder, spec.get("renewTime") or "")) != self._seen:
                    self._seen, self._seen_at = seen, started
                silent_from = self._seen_at + float(spec.get("leaseDurationSeconds") or 0)
                if holder not in ("", self.identity) and started <= silent_from:
                    return False
                await self.client.replace(LEASES, self._renewed_by_us(lease))
        except KubeError as e:
            if e.status == 409:
                return False
            raise
        self._renewed = started
        return True

    def _renewed_by_us(self, lease: JsonObject | None) -> JsonObject:
        """The renewed Lease. `lease`: as found, None = missing; others' content stays."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        found = lease or {"metadata": {"name": self.name, "namespace": self.namespace}}
        before, metadata = found.get("spec") or {}, found["metadata"]
        ours, transitions = before.get("holderIdentity") == self.identity, before.get("leaseTransitions") or 0
        labels = {**(metadata.get("labels") or {}), **self.labels}
        annotations = {**(metadata.get("annotations") or {}), **self.annotations()}
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self.duration_seconds)),
            "acquireTime": before.get("acquireTime") if ours else now,
            "renewTime": now,
            "leaseTransitions": transitions if ours or lease is None else transitions + 1,
        }
        kind = {"apiVersion": LEASES.api_version, "kind": LEASES.kind}
        return found | kind | {"metadata": metadata | {"labels": labels, "annotations": annotations}, "spec": spec}


PRESENCE_LABELS = {names.LABEL_PART_OF: names.PART_OF, names.LABEL_COMPONENT: names.OPERATOR_COMPONENT}
"""By which the operator's Lease is found, whatever the release is called."""
_EVERYWHERE = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """An operator's namespaces, and its gateways."""

    namespaces: tuple[str, ...] | None
    """Those that it watches now; None = all."""
    gateway_namespace: str
    gateway_selector: str

    @property
    def annotations(self) -> dict[str, str]:
        """As the Lease carries it."""
        watched = _EVERYWHERE if self.namespaces is None else ",".join(self.namespaces)
        gateways = f"{self.gateway_namespace}/{self.gateway_selector}"
        return {names.ANNOTATION_WATCHED_NAMESPACES: watched, names.ANNOTATION_GATEWAYS: gateways}

    @classmethod
    def from_annotations(cls, annotations: Mapping[str, Any]) -> Self | None:
        """What a Lease carries; None where its holder says nothing."""
        watched, gateways = (
            annotations.get(name) for name in (names.ANNOTATION_WATCHED_NAMESPACES, names.ANNOTATION_GATEWAYS)
        )
        if watched is None or gateways is None:
            return None
        namespaces = None if watched == _EVERYWHERE else tuple(filter(None, watched.split(",")))
        namespace, _, selector = gateways.partition("/")
        return cls(namespaces=namespaces, gateway_namespace=namespace, gateway_selector=selector)
