"""Other gateways' requests on a replica, as far as its load lines tell of them. Pure.

They matter when the replica dies: what another gateway has just sent may have killed it as well. Who calls it: the
router, with every load line.
"""

from dataclasses import dataclass

from fairlead.routing.in_flight import TRIAL_SECONDS


@dataclass(slots=True)
class _Told:
    num_seen: int
    """Of all other gateways, as last told."""
    num_computed: int
    """Of these, how many a line that had nothing left to compute told of."""
    since: float
    """When `num_seen` grew last."""


class OtherGatewaysBook:
    """By replica's uid."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}

    def told(self, uid: str, num_seen: int, now: float, *, are_computed: bool) -> None:
        """The replica counts so many requests of others. `are_computed`: it has nothing left to compute."""
        told = self._told.get(uid)
        if told is None or num_seen < told.num_seen:  # it is new, or began to count anew
            told = self._told[uid] = _Told(0, 0, now)
        if num_seen > told.num_seen:
            told.num_seen, told.since = num_seen, now
        if are_computed:
            told.num_computed = num_seen

    def has_unproven(self, uid: str, now: float) -> bool:
        """Whether one of theirs is so new there that the replica might yet die of it."""
        told = self._told.get(uid)
        return told is not None and told.num_computed < told.num_seen and now < told.since + TRIAL_SECONDS

    def keep_only(self, uids: frozenset[str]) -> None:
        """Forgets replicas that left."""
        for uid in self._told.keys() - uids:
            del self._told[uid]
