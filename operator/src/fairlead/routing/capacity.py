"""How much each replica takes at the moment, learnt from its refusals.

An engine's published limits bound what one gateway sends; but several gateways share an engine, and long prompts fill
its queue sooner than short ones. So a refusal ("engine-full") caps the replica at what it had of ours, an accepted
request raises the cap by one, and a pause without news allows one more to be tried: additive growth after an exact
cut, much like TCP's congestion control. A load that shows an empty queue ends it: an empty queue takes any request.
"""

from dataclasses import dataclass

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 0.5
FORGET_AFTER_SECONDS = 5.0
"""Without a refusal for this long, the replica is as good as one that never refused."""


@dataclass(slots=True)
class _Cap:
    num_in_flight: int
    retry_at: float
    refused_at: float
    num_refusals: int


class CapacityBook:
    """Caps per replica, by uid."""

    def __init__(self) -> None:
        self._caps: dict[str, _Cap] = {}

    def has_room(self, uid: str, num_in_flight: int, now: float) -> bool:
        """Whether one more request is likely to be taken, or may be tried."""
        cap = self._caps.get(uid)
        if cap is None:
            return True
        if now - cap.refused_at >= FORGET_AFTER_SECONDS:
            del self._caps[uid]
            return True
        return num_in_flight < cap.num_in_flight or now >= cap.retry_at

    def sent(self, uid: str, num_in_flight: int, now: float) -> None:
        """One more goes to a replica that had `num_in_flight`; beyond the cap it is this pause's trial."""
        cap = self._caps.get(uid)
        if cap is not None and num_in_flight >= cap.num_in_flight:
            cap.num_in_flight = num_in_flight + 1
            cap.retry_at = now + _pause(cap.num_refusals)

    def accepted(self, uid: str) -> None:
        """A request was taken: one more may go."""
        cap = self._caps.get(uid)
        if cap is not None:
            cap.num_in_flight += 1
            cap.num_refusals = 1

    def refused(self, uid: str, num_in_flight: int, now: float) -> None:
        """The replica was full while it had `num_in_flight` of ours, the refused one not counted."""
        cap = self._caps.get(uid)
        num_refusals = 1 if cap is None else cap.num_refusals + 1
        self._caps[uid] = _Cap(num_in_flight, now + _pause(num_refusals), now, num_refusals)

    def queue_was_empty(self, uid: str, time: float) -> None:
        """Nobody waited in the engine at that time: a refusal from before says nothing any more."""
        cap = self._caps.get(uid)
        if cap is not None and cap.refused_at < time:
            del self._caps[uid]

    def next_change(self, now: float) -> float | None:
        """When the next pause ends; None when nobody is paused."""
        return min((cap.retry_at for cap in self._caps.values() if cap.retry_at > now), default=None)

    def keep_only(self, uids: frozenset[str]) -> None:
        """Forgets replicas that left."""
        for uid in self._caps.keys() - uids:
            del self._caps[uid]


def _pause(num_refusals: int) -> float:
    return min(FIRST_PAUSE_SECONDS * 2.0 ** min(num_refusals - 1, 16), LONGEST_PAUSE_SECONDS)
