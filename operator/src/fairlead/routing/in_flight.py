"""The in-flight book: what each replica has of ours, by dispatch number. Every slot taken is released exactly once.

Together with a load line it tells what the engine has not counted yet: requests dispatched with a number above
`load.seen` are not in the line's figures, and requests that ended since the line came still are.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from fairlead.routing.kv_index import Expectation
from fairlead.routing.predictor import prefill_work
from fairlead.routing.replica import Decision
from fairlead_protocol.messages import LOAD_STALE_SECONDS

TRIAL_SECONDS = 3.0
"""A request that has been on a replica for so long, or whose prompt has been computed there, is not what kills it: what
does so does it soon, mostly."""


class Slot:
    """One request's place on one replica, from its dispatch until it is over. Only the router changes it."""

    __slots__ = (
        "accepted",
        "cached_tokens",
        "decision",
        "dispatched_at",
        "expectations",
        "first_token_at",
        "is_suspect",
        "modelled_ttft_seconds",
        "num_generated",
        "num_seqs",
        "released",
        "uncached_tokens",
        "work",
    )

    def __init__(
        self,
        decision: Decision,
        dispatched_at: float,
        *,
        cached_tokens: int = 0,
        uncached_tokens: int = 0,
        num_seqs: int = 1,
        is_suspect: bool = False,
    ) -> None:
        self.decision = decision
        self.dispatched_at = dispatched_at
        self.cached_tokens = cached_tokens
        self.uncached_tokens = uncached_tokens
        self.work = prefill_work(cached_tokens, uncached_tokens)
        self.num_seqs = num_seqs
        """Sequences it occupies in the engine: one per prompt."""
        self.first_token_at: float | None = None
        self.modelled_ttft_seconds: float | None = None
        """What the engine's steps should take of the predicted time; None where nothing was predicted."""
        self.expectations: tuple[Expectation, ...] = ()
        """The blocks that it makes the replica compute, while their prefill is not over."""
        self.is_suspect = is_suspect
        """Whether another replica may have died of this request."""
        self.accepted = False
        """Whether the replica has begun to answer: until then it may yet refuse."""
        self.num_generated: int | None = None
        """Tokens of its answer; None where they are not known."""
        self.released = False

    @property
    def uid(self) -> str:
        """The replica's."""
        return self.decision.replica.uid

    @property
    def dispatch(self) -> int:
        """This gateway's how-manieth request to the replica it is, from 1."""
        return self.decision.dispatch


class InFlightBook:
    """Slots per replica, by uid. A replica that left keeps its count until its last request ends."""

    def __init__(self) -> None:
        self._slots: dict[str, dict[int, Slot]] = {}
        """By uid and dispatch number, in the order of dispatch."""
        self._prefilling: dict[str, dict[int, Slot]] = {}
        """Those whose first token has not come."""
        self._last_dispatch: dict[str, int] = {}
        self._ended: dict[str, deque[tuple[float, Slot]]] = {}
        """Slots released lately, and when."""
        self._num_proven: dict[str, int] = {}
        """By uid: up to which dispatch number an engine has told that the prompts are computed."""
        self._total = 0
        self._num_suspects = 0

    @property
    def total(self) -> int:
        """Requests in flight on all replicas."""
        return self._total

    def count(self, uid: str) -> int:
        """Requests in flight on one replica."""
        return len(self._slots.get(uid, ()))

    def slots(self, uid: str) -> Iterable[Slot]:
        """What is in flight on one replica, in the order of dispatch."""
        return self._slots.get(uid, {}).values()

    def is_unproven(self, slot: Slot, now: float) -> bool:
        """Whether it is so new to its replica that this might yet die of it."""
        is_computed = slot.first_token_at is not None or slot.dispatch <= self._num_proven.get(slot.uid, 0)
        return not is_computed and now < slot.dispatched_at + TRIAL_SECONDS

    def has_unproven(self, uid: str, now: float) -> bool:
        """Whether one that is in flight there is."""
        return any(self.is_unproven(slot, now) for slot in self._prefilling.get(uid, {}).values())

    def has_trial(self, uid: str, now: float) -> bool:
        """Whether a request is on trial there: one that another replica may have died of, and this one yet might."""
        return any(self.is_unproven(slot, now) for slot in self.suspects(uid))

    def suspects(self, *uids: str) -> Iterator[Slot]:
        """Suspects without a first token, on these replicas or on all."""
        if self._num_suspects:
            for uid in uids or self._prefilling:
                yield from (slot for slot in self._prefilling.get(uid, {}).values() if slot.is_suspect)

    def computed(self, uid: str, num_seen: int) -> None:
        """The replica has computed every prompt up to this dispatch."""
        self._num_proven[uid] = max(num_seen, self._num_proven.get(uid, 0))

    def next_dispatch(self, uid: str, num_seen: int = 0) -> int:
        """The number of the next dispatch to a replica. `num_seen`: what the engine already counts of ours, which is
        more than this book knows of where the replica left and came back."""
        return max(self._last_dispatch.get(uid, 0), num_seen) + 1

    def take(self, slot: Slot) -> None:
        """Counts one more request on the slot's replica, until it is released."""
        self._slots.setdefault(slot.uid, {})[slot.dispatch] = slot
        self._prefilling.setdefault(slot.uid, {})[slot.dispatch] = slot
        self._last_dispatch[slot.uid] = slot.dispatch
        self._total += 1
        self._num_suspects += slot.is_suspect

    def first_token(self, slot: Slot, now: float) -> bool:
        """The slot's first token came. Counts once, and only before the release: whether it did."""
        if slot.first_token_at is not None or slot.released:
            return False
        slot.first_token_at = now
        _remove(self._prefilling, slot)
        return True

    def release(self, slot: Slot, now: float) -> bool:
        """The request is over. Counts once: whether this was the first time."""
        if slot.released:
            return False
        slot.released = True
        self._total -= 1
        self._num_suspects -= slot.is_suspect
        _remove(self._slots, slot)
        if slot.first_token_at is None:
            _remove(self._prefilling, slot)
        ended = self._ended.setdefault(slot.uid, deque())
        ended.append((now, slot))
        while ended[0][0] < now - LOAD_STALE_SECONDS:
            ended.popleft()
        return True

    def unseen(self, uid: str, num_seen: int) -> Sequence[Slot]:
        """Slots in flight that the engine had not counted when it had seen `num_seen` dispatches; the oldest first."""
        slots = []
        for number, slot in reversed(self._slots.get(uid, {}).items()):
            if number <= num_seen:
                break
            slots.append(slot)
        return slots[::-1]

    def context_per_token(self, uid: str) -> float | None:
        """Mean context of the prompt tokens that a replica is computing for us; None where it computes none."""
        works = [slot.work for slot in self._prefilling.get(uid, {}).values()]
        num_tokens = sum(work.tokens for work in works)
        return sum(work.context for work in works) / num_tokens if num_tokens else None

    def num_ended(self, uid: str, num_seen: int, since: float) -> int:
        """Sequences that a load line of `since`, which includes `num_seen` dispatches, counts though they ended."""
        lately = takewhile(lambda entry: entry[0] > since, reversed(self._ended.get(uid, ())))
        return sum(slot.num_seqs for _, slot in lately if slot.dispatch <= num_seen)

    def keep_only(self, uids: frozenset[str]) -> None:
        """Forgets replicas that left, but for the requests they still have."""
        for uid in self._last_dispatch.keys() - uids - self._slots.keys():
            del self._last_dispatch[uid]
            self._ended.pop(uid, None)
            self._num_proven.pop(uid, None)

    def check(self) -> None:
        """The book's invariants: only slots in flight are kept, in order, and they add up."""
        for uid, slots in self._slots.items():
            if not slots or list(slots) != sorted(slots):
                raise AssertionError(f"the slots of {uid} are out of order: {list(slots)}")
            if any(slot.released for slot in slots.values()):
                raise AssertionError(f"{uid} has a slot that was released")
        prefilling = {
            uid: [num for num, slot in slots.items() if slot.first_token_at is None]
            for uid, slots in self._slots.items()
        }
        if {uid: nums for uid, nums in prefilling.items() if nums} != {
            uid: list(slots) for uid, slots in self._prefilling.items()
        }:
            raise AssertionError(f"prompts without a first token are {prefilling}, not {self._prefilling}")
        if sum(map(len, self._slots.values())) != self._total:
            raise AssertionError(f"the slots do not add up to {self._total}")
        if sum(slot.is_suspect for slots in self._slots.values() for slot in slots.values()) != self._num_suspects:
            raise AssertionError(f"the suspects do not add up to {self._num_suspects}")


def _remove(slots: dict[str, dict[int, Slot]], slot: Slot) -> None:
    of_replica = slots[slot.uid]
    del of_replica[slot.dispatch]
    if not of_replica:
        del slots[slot.uid]
