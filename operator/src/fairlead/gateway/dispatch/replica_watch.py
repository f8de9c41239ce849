"""A pool's watch on its replicas: new replicas warm up, and hanging replicas are logged.

Before a new replica's engine has told its tokenizer, prompts cannot be tokenised for the replica, and every gateway
would take all its slots for free. `routing/replica_state.py` decides how requests avoid hanging replicas. The pool
calls both classes when replicas or loads change.
"""

import logging
from collections.abc import Callable, Sequence

from fairlead.routing.replica import Load, Replica
from fairlead.routing.replica_state import is_hanging

logger = logging.getLogger(__name__)

WARM_UP_SECONDS = 2.0
"""Longest time without requests for a new replica whose engine has told neither model, cache nor load."""


class WarmUps:
    """A replica that joins without a digest warms up until its first load."""

    def __init__(self) -> None:
        self._joined: dict[str, float] = {}
        """Since when each replica is there, by uid."""
        self._warming: set[str] = set()

    def awaits(self, uid: str) -> bool:
        """Whether a load from this replica would end its warm-up."""
        return uid in self._warming

    def warm(self, replicas: Sequence[Replica], now: float, has_told: Callable[[str], bool]) -> tuple[Replica, ...]:
        """The replicas that may be sent requests, of all `replicas`. `has_told`: whether a uid has told its load."""
        new = {each.uid for each in replicas if each.uid not in self._joined and not each.digest}
        present = {each.uid for each in replicas}
        self._warming = {uid for uid in present & (self._warming | new) if not has_told(uid)}
        self._joined = {each.uid: self._joined.get(each.uid, now) for each in replicas}
        return tuple(each for each in replicas if not self.awaits(each.uid) or self._due(each.uid) <= now)

    def next_due(self, now: float) -> float | None:
        """When the next warm-up ends without a load; None = nobody warms up."""
        return min((due for due in map(self._due, self._warming) if due > now), default=None)

    def _due(self, uid: str) -> float:
        return self._joined[uid] + WARM_UP_SECONDS


class Hangs:
    """Of one LLMDeployment."""

    def __init__(self, model: str) -> None:
        """`model`: its `namespace/name`."""
        self._model = model
        self._names: dict[str, str] = {}
        self._seconds: dict[str, float] = {}
        """How long the step of each that hangs has been running, as last told, by uid."""

    def keep(self, replicas: Sequence[Replica]) -> None:
        """These are all there are."""
        present = {replica.uid: replica.name for replica in replicas}
        for uid in self._seconds.keys() - present.keys():
            self._end(uid, "it is not ready any more")
        self._names = present

    def told(self, uid: str, load: Load | None) -> None:
        """A replica has told its load; None: what it told does not hold any more."""
        if load is not None and is_hanging(load):
            is_new = uid not in self._seconds
            self._seconds[uid] = load.step_age_seconds
            if is_new:
                self._log(logging.WARNING, uid, "a replica hangs in a step: it gets nothing new while another is well")
        elif uid in self._seconds:
            self._end(uid, "its load is not known any more" if load is None else "it went on")

    def _end(self, uid: str, why: str) -> None:
        self._log(logging.INFO, uid, f"a replica hangs no longer: {why}")
        del self._seconds[uid]

    def _log(self, level: int, uid: str, message: str) -> None:
        name, seconds = self._names.get(uid, uid), round(self._seconds[uid], 1)
        logger.log(level, message, extra={"model": self._model, "replica": name, "step_seconds": seconds})
