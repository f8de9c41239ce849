"""Introductions: which replicas are brand new, and left alone until their engines have said what they are. Pure.

Before that, prompts could not be tokenised for a new replica, and every gateway would take all its slots for free. Who
calls it: the model's pool, whenever its replicas change or a stranger tells its load.
"""

from collections.abc import Callable, Sequence

from fairlead.routing.replica import Replica

INTRODUCTION_SECONDS = 2.0
"""How long a new replica is left alone while its engine has not told what it is, what it holds and how loaded it is.
One that never tells is used all the same after that."""


class Introductions:
    """A replica that joins without saying what it is (its digest) is a stranger until it tells its load."""

    def __init__(self) -> None:
        self._joined: dict[str, float] = {}
        """Since when each replica is there, by uid."""
        self._strangers: set[str] = set()

    def awaits(self, uid: str) -> bool:
        """Whether a load from this replica would introduce it."""
        return uid in self._strangers

    def introduced(
        self, replicas: Sequence[Replica], now: float, has_told: Callable[[str], bool]
    ) -> tuple[Replica, ...]:
        """Those of `replicas`, which are all there are, that may be sent requests. `has_told`: its load, by uid."""
        self._strangers = {each.uid for each in replicas if self._is_strange(each) and not has_told(each.uid)}
        self._joined = {each.uid: self._joined.get(each.uid, now) for each in replicas}
        return tuple(each for each in replicas if not self.awaits(each.uid) or self._due(each.uid) <= now)

    def next_due(self, now: float) -> float | None:
        """When the next stranger will be used all the same; None where there is none to wait for."""
        return min((due for due in map(self._due, self._strangers) if due > now), default=None)

    def _is_strange(self, replica: Replica) -> bool:
        return self.awaits(replica.uid) if replica.uid in self._joined else not replica.digest

    def _due(self, uid: str) -> float:
        return self._joined[uid] + INTRODUCTION_SECONDS
