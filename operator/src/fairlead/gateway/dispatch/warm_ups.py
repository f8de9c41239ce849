"""WarmUps: which replicas are brand new, and left alone until their engines have said what they are. Pure.

Before that, prompts could not be tokenised for a new replica, and every gateway would take all its slots for free. Who
calls it: the model's pool, whenever its replicas change or one that warms up tells its load.
"""

from collections.abc import Callable, Sequence

from fairlead.routing.replica import Replica

WARM_UP_SECONDS = 2.0
"""How long a new replica is left alone while its engine has not told what it is, what it holds and how loaded it is.
One that never tells is used all the same after that."""


class WarmUps:
    """A replica that joins without saying what it is (its digest) warms up until it tells its load."""

    def __init__(self) -> None:
        self._joined: dict[str, float] = {}
        """Since when each replica is there, by uid."""
        self._warming: set[str] = set()

    def awaits(self, uid: str) -> bool:
        """Whether a load from this replica would end its warm-up."""
        return uid in self._warming

    def warm(self, replicas: Sequence[Replica], now: float, has_told: Callable[[str], bool]) -> tuple[Replica, ...]:
        """Those of `replicas`, which are all there are, that may be sent requests. `has_told`: its load, by uid."""
        new = {each.uid for each in replicas if each.uid not in self._joined and not each.digest}
        present = {each.uid for each in replicas}
        self._warming = {uid for uid in present & (self._warming | new) if not has_told(uid)}
        self._joined = {each.uid: self._joined.get(each.uid, now) for each in replicas}
        return tuple(each for each in replicas if not self.awaits(each.uid) or self._due(each.uid) <= now)

    def next_due(self, now: float) -> float | None:
        """When the next that warms up will be used all the same; None where there is none to wait for."""
        return min((due for due in map(self._due, self._warming) if due > now), default=None)

    def _due(self, uid: str) -> float:
        return self._joined[uid] + WARM_UP_SECONDS
