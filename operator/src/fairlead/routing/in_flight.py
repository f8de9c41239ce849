"""The in-flight book: this gateway's requests on each replica, by dispatch number. Taken once, released once.

Shows what a load line lacks: requests dispatched with a number above `load.seen` are not in the line's figures, and
requests that ended since the line still are.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from fairlead.routing.kv_index import Expectation
from fairlead.routing.predictor import NO_WORK, Work
from fairlead.routing.replica import Decision
from fairlead.routing.sessions import NO_SESSION
from fairlead_common.wire.messages import LOAD_STALE_SECONDS

TRIAL_SECONDS = 3.0
"""A request running for so long, or with a computed prompt, is presumed harmless: killers mostly kill soon."""


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """One request on one replica, from dispatch to end. Only the router changes it."""

    decision: Decision
    dispatched_at: float
    work: Work = NO_WORK
    """The uncached part of its prompt."""
    num_seqs: int = 1
    """Sequences it occupies in the engine: one per prompt."""
    is_suspect: bool = False
    """Whether another replica may have died of this request."""
    adapter: str | None = None
    """What it is read with."""
    adapter_ready_at: float = 0.0
    """When its replica should have loaded that: others that ask for it wait no longer."""
    session: bytes = NO_SESSION
    """Its session; see `Prompt.session`."""
    modelled_ttft_seconds: float | None = None
    """The engine's part of the predicted time; None = no prediction."""
    expectations: tuple[Expectation, ...] = ()
    """Blocks that the replica computes for this request, until the prefill is over."""
    first_token_at: float | None = None
    is_spare: bool = False
    """Whether it is a line of a batch."""
    num_prompt_tokens: int = 0
    """Of the whole prompt, cached tokens included."""
    accepted: bool = False
    """Whether the replica has begun to answer: until then it may yet refuse."""
    num_generated: int | None = None
    """Tokens of its answer; None where they are not known."""
    released: bool = False

    @property
    def uid(self) -> str:
        """The replica's."""
        return self.decision.replica.uid

    @property
    def dispatch(self) -> int:
        """This gateway's number of the request on the replica, from 1."""
        return self.decision.dispatch


class InFlightBook:
    """Requests per replica, by uid. A departed replica keeps its count until its last request ends."""

    def __init__(self) -> None:
        self._requests: dict[str, dict[int, InFlightRequest]] = {}
        """By uid and dispatch number, in the order of dispatch."""
        self._prefilling: dict[str, dict[int, InFlightRequest]] = {}
        """Those whose first token has not come."""
        self._last_dispatch: dict[str, int] = {}
        self._ended: dict[str, deque[tuple[float, InFlightRequest]]] = {}
        """Those released lately, and when."""
        self._num_proven: dict[str, int] = {}
        """By uid: the last dispatch whose prompt is known to be computed."""
        self._num_suspects = 0
        self._spare: dict[str, dict[int, InFlightRequest]] = {}
        """Lines of batches, by uid and dispatch number."""

    @property
    def total(self) -> int:
        """Requests in flight on all replicas."""
        return sum(map(len, self._requests.values()))

    @property
    def total_urgent(self) -> int:
        """Of those, all but lines of batches."""
        return self.total - sum(map(len, self._spare.values()))

    def count(self, uid: str) -> int:
        """Requests in flight on one replica."""
        return len(self._requests.get(uid, ()))

    def num_spare(self, uid: str) -> int:
        """Lines of batches among them."""
        return len(self._spare.get(uid, ()))

    @property
    def spare(self) -> Iterator[InFlightRequest]:
        """Lines of batches on all replicas."""
        return (sent for requests in self._spare.values() for sent in requests.values())

    def requests(self, uid: str) -> Iterable[InFlightRequest]:
        """Requests on one replica, in the order of dispatch."""
        return self._requests.get(uid, {}).values()

    def is_unproven(self, sent: InFlightRequest, now: float) -> bool:
        """Whether the replica may yet die of this new request."""
        is_computed = sent.first_token_at is not None or sent.dispatch <= self._num_proven.get(sent.uid, 0)
        return not is_computed and now < sent.dispatched_at + TRIAL_SECONDS

    def has_unproven(self, uid: str, now: float) -> bool:
        """Whether one that is in flight there is."""
        return any(self.is_unproven(sent, now) for sent in self._prefilling.get(uid, {}).values())

    def has_trial(self, uid: str, now: float) -> bool:
        """Whether a suspect is on trial on the replica."""
        return any(self.is_unproven(sent, now) for sent in self.suspects(uid))

    def suspects(self, *uids: str) -> Iterator[InFlightRequest]:
        """Suspects without a first token, on these replicas or on all."""
        if self._num_suspects:
            for uid in uids or self._prefilling:
                yield from (sent for sent in self._prefilling.get(uid, {}).values() if sent.is_suspect)

    def computed(self, uid: str, num_seen: int) -> None:
        """The replica has computed every prompt up to this dispatch."""
        self._num_proven[uid] = max(num_seen, self._num_proven.get(uid, 0))

    def next_dispatch(self, uid: str, num_seen: int = 0) -> int:
        """The number of the next dispatch to a replica. `num_seen`: the engine's own count, which is higher when the
        replica left and came back."""
        return max(self._last_dispatch.get(uid, 0), num_seen) + 1

    def take(self, sent: InFlightRequest) -> None:
        """Counts the request on its replica until it is released."""
        self._requests.setdefault(sent.uid, {})[sent.dispatch] = sent
        self._prefilling.setdefault(sent.uid, {})[sent.dispatch] = sent
        self._last_dispatch[sent.uid] = sent.dispatch
        self._num_suspects += sent.is_suspect
        if sent.is_spare:
            self._spare.setdefault(sent.uid, {})[sent.dispatch] = sent

    def first_token(self, sent: InFlightRequest, now: float) -> bool:
        """Its first token came. Counts once, and only before the release: whether it did."""
        if sent.first_token_at is not None or sent.released:
            return False
        sent.first_token_at = now
        _remove(self._prefilling, sent)
        return True

    def release(self, sent: InFlightRequest, now: float) -> bool:
        """The request is over. Counts once: whether this was the first time."""
        if sent.released:
            return False
        sent.released = True
        self._num_suspects -= sent.is_suspect
        _remove(self._requests, sent)
        if sent.is_spare:
            _remove(self._spare, sent)
        if sent.first_token_at is None:
            _remove(self._prefilling, sent)
        ended = self._ended.setdefault(sent.uid, deque())
        ended.append((now, sent))
        while ended[0][0] < now - LOAD_STALE_SECONDS:
            ended.popleft()
        return True

    def unseen(self, uid: str, num_seen: int) -> Sequence[InFlightRequest]:
        """Requests above `num_seen`, missing in the engine's load; oldest first."""
        unseen = []
        for number, sent in reversed(self._requests.get(uid, {}).items()):
            if number <= num_seen:
                break
            unseen.append(sent)
        return unseen[::-1]

    def context_per_token(self, uid: str) -> float | None:
        """Mean context of this gateway's prompt tokens under computation on a replica; None = none."""
        works = [sent.work for sent in self._prefilling.get(uid, {}).values()]
        num_tokens = sum(work.tokens for work in works)
        return sum(work.context for work in works) / num_tokens if num_tokens else None

    def num_ended(self, uid: str, num_seen: int, since: float) -> int:
        """Sequences ended after `since` that a load line of then, with `num_seen` dispatches, includes."""
        lately = takewhile(lambda entry: entry[0] > since, reversed(self._ended.get(uid, ())))
        return sum(sent.num_seqs for _, sent in lately if sent.dispatch <= num_seen)

    def keep_only(self, uids: frozenset[str]) -> None:
        """Forgets replicas that left and have no requests."""
        for uid in self._last_dispatch.keys() - uids - self._requests.keys():
            del self._last_dispatch[uid]
            self._ended.pop(uid, None)
            self._num_proven.pop(uid, None)

    def check(self) -> None:
        """The book's invariants: only requests in flight, in order, and counts that add up."""
        for uid, requests in self._requests.items():
            if not requests or list(requests) != sorted(requests):
                raise AssertionError(f"the requests of {uid} are out of order: {list(requests)}")
            if any(sent.released for sent in requests.values()):
                raise AssertionError(f"{uid} has a request that was released")
            prefilling = [number for number, sent in requests.items() if sent.first_token_at is None]
            if prefilling != list(self._prefilling.get(uid, ())):
                raise AssertionError(f"of {uid}, {prefilling} have no first token, not {self._prefilling.get(uid)}")
        if not all(self._prefilling.values()) or self._prefilling.keys() - self._requests.keys():
            raise AssertionError(f"prompts without a first token are not in flight: {self._prefilling}")
        num_suspects = sum(sent.is_suspect for requests in self._requests.values() for sent in requests.values())
        everything = (sent for requests in self._requests.values() for sent in requests.values())
        spare = {(sent.uid, sent.dispatch) for sent in everything if sent.is_spare}
        if spare != {(sent.uid, sent.dispatch) for sent in self.spare}:
            raise AssertionError(f"lines of batches in flight do not add up: {spare}")
        if num_suspects != self._num_suspects:
            raise AssertionError(f"there are {num_suspects} suspects, not {self._num_suspects}")


def _remove(book: dict[str, dict[int, InFlightRequest]], sent: InFlightRequest) -> None:
    of_replica = book[sent.uid]
    del of_replica[sent.dispatch]
    if not of_replica:
        del book[sent.uid]
