"""The operator's story, on one screen: observe → desired → plan → apply → status.

Called by the WorkQueue, with a key and nothing else. Running it twice in a row does nothing the second time.
"""

import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from fairlead.controller.adapter_loader import AdapterLoader, AdapterStates
from fairlead.controller.applier import Applied, Applier
from fairlead.controller.capabilities import Capabilities
from fairlead.controller.desired import Desired, desired
from fairlead.controller.device_look import ASK_AGAIN_SECONDS, DeviceLook
from fairlead.controller.events import Announcement, EventRecorder, EventType, announcements, disruptions
from fairlead.controller.observe import Cluster, Observed
from fairlead.controller.plan import differs, make_plan
from fairlead.controller.pod_diagnosis import Stage
from fairlead.controller.pod_starts import next_look
from fairlead.controller.status import situation, status
from fairlead.controller.worker import Key
from fairlead.kube.client import KubeError
from fairlead.operator_settings import OperatorSettings

logger = logging.getLogger(__name__)

RECHECK_SECONDS = 10.0
"""Until the next look at things without events: a claim, a taken name, a quota."""

REFUSED_SECONDS = 120.0
"""The same for objects refused for good: a change of the spec is an event, a new policy of the cluster is none."""
STATUS_REFUSED = "StatusRefused"
"""Of an Event only: no condition can say it."""
CONFIGURING = (("Deployment", "Created"), ("Deployment", "Updated"))
"""Changes that give the engine a new configuration."""


class ReconcileOutcome(StrEnum):
    """How a reconciliation ended; the label of its metric."""

    GONE = "gone"
    """The LLMDeployment does not exist any more, or is going."""
    UNCHANGED = "unchanged"
    """Nothing had to be written to children."""
    APPLIED = "applied"
    """Children were written."""
    BLOCKED = "blocked"
    """Something stands in the way; the conditions say what."""
    REFUSED = "refused"
    """The API server takes a child as it is to be never; the conditions say why."""


@dataclass(eq=False)
class Reconciler:
    """Wires the pure parts to the I/O. `capabilities`: of the API server, as last found."""

    cluster: Cluster
    applier: Applier
    recorder: EventRecorder
    settings: OperatorSettings
    _: KW_ONLY
    adapters: AdapterLoader = field(default_factory=AdapterLoader)
    capabilities: Callable[[], Capabilities] = Capabilities
    devices: DeviceLook | None = None
    """None = the cluster's devices are not asked for."""

    def __post_init__(self) -> None:
        self._refused: dict[Key, str] = {}
        """Why a status could not be written when last tried, in the API server's words."""
        self._lacks_devices: set[Key] = set()
        """Those that ask for devices which no node has; a driver that comes is no event of theirs."""

    async def reconcile(self, key: Key) -> ReconcileOutcome:
        """Brings one LLMDeployment closer to its spec. Raises KubeError for passing errors."""
        observed = await self.cluster.observe(key)
        if observed is None or observed.body["metadata"].get("deletionTimestamp"):
            self.applier.forget(key)  # its children go by their ownerReferences
            self._refused.pop(key, None)
            self._lacks_devices.discard(key)
            await self.adapters.forget(key)
            return ReconcileOutcome.GONE
        if self.devices is not None:
            observed = await self.devices.add(observed, self.settings)
        self._lacks_devices = self._lacks_devices - {key} | ({key} if observed.device_lack is not None else set())
        wanted = desired(observed, self.settings, self.capabilities())
        plan = make_plan(wanted, observed, self.applier.settled(key), self.applier.asked(key, observed.pods))
        applied = await self.applier.apply(plan, observed.body)
        loaded = await self.adapters.bring(observed, wanted)  # engines load and unload what differs
        is_told = await self.write_status(key, observed, wanted, applied, loaded)
        if applied.is_refused:
            return ReconcileOutcome.REFUSED
        if wanted.obstacle is not None or applied.problems or loaded.is_unfinished or not is_told:
            return ReconcileOutcome.BLOCKED
        return ReconcileOutcome.APPLIED if applied.changes else ReconcileOutcome.UNCHANGED

    def recheck_after(self, key: Key, outcome: ReconcileOutcome) -> float | None:
        """Seconds until the next look, where no event may come; None = when something happens."""
        if outcome is ReconcileOutcome.BLOCKED:
            return RECHECK_SECONDS
        if outcome is ReconcileOutcome.REFUSED:
            return REFUSED_SECONDS
        if key in self._lacks_devices:
            return ASK_AGAIN_SECONDS
        observed = self.cluster.last_seen(key)
        return None if observed is None else next_look(observed.pods, datetime.now(UTC))

    async def write_status(
        self, key: Key, observed: Observed, wanted: Desired, applied: Applied, loaded: AdapterStates
    ) -> bool:
        """Writes the status and its Events, if they have changed. Returns whether the status could be written: old
        objects may break a rule of the CRD that every write checks. Raises KubeError for passing errors."""
        is_configuring = any((one.kind, one.verb) in CONFIGURING for one in applied.changes)
        now = situation(
            observed,
            wanted,
            applied.problems,
            is_applying=bool(applied.changes),
            is_configuring=is_configuring,
            adapters=loaded.adapters,
            left_out=self.applier.status.left_out,
        )
        before = observed.body.get("status") or {}
        after = status(observed, now, self.settings, time=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        # In the order of `after`, and without those that others have put there.
        known = {condition.get("type"): condition for condition in before.get("conditions") or []}
        ours = [known[each["type"]] for each in after["conditions"] if each["type"] in known]
        news = announcements(before, after, applied.changes)
        refused = ""
        if differs(after, before | {"conditions": ours}):
            try:
                await self.applier.status.write_status(observed.body, after)
            except KubeError as e:
                if e.status in (404, 409):
                    return True  # it was deleted meanwhile
                if e.may_pass:
                    raise
                refused = e.message
                if refused == self._refused.get(key):  # so that has been told, and all that the status would say
                    news = announcements(after, after, applied.changes)
                else:
                    sentence = f"the status cannot be written: {refused}"
                    logger.warning("%s/%s: %s", *key, sentence)
                    news.append(Announcement(EventType.WARNING, STATUS_REFUSED, sentence))
        if refused:
            self._refused[key] = refused
        else:
            self._refused.pop(key, None)
        for announcement in news:
            await self.recorder.record(observed.body, announcement)
        for announcement in disruptions(now.of(Stage.DRAINING)):
            await self.recorder.record_once(observed.body, announcement)
        return not refused
