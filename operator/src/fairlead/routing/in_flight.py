"""The in-flight book: what each replica has of ours, by dispatch number. Whatever is taken is released exactly once.

Together with a load line it tells what the engine has not counted yet: requests dispatched with a number above
`load.seen` are not in the line's figures, and requests that ended since the line came still are.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from fairlead.routing.kv_index import Expectation
from fairlead.routing.predictor import NO_WORK, Work
from fairlead.routing.replica import Decision
from fairlead_protocol.messages import LOAD_STALE_SECONDS

TRIAL_SECONDS = 3.0
"""A request that has been on a replica for so long, or whose prompt has been computed there, is not what kills it: what
does so does it soon, mostly."""


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """One request on one replica, from its dispatch until it is over. Only the router changes it."""

    decision: Decision
    dispatched_at: float
    work: Work = NO_WORK
    """Its prompt, as far as it was to be computed."""
    num_seqs: int = 1
    """Sequences it occupies in the engine: one per prompt."""
    is_suspect: bool = False
    """Whether another replica may have died of this request."""
    adapter: str | None = None
    """What it is read with."""
    adapter_ready_at: float = 0.0
    """When its replica should have loaded that: others that ask for it wait no longer."""
    modelled_ttft_seconds: float | None = None
    """What the engine's steps should take of the predicted time; None where nothing was predicted."""
    expectations: tuple[Expectation, ...] = ()
    """The blocks that it makes the replica compute, while their prefill is not over."""
    first_token_at: float | None = None
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
        """This gateway's how-manieth request to the replica it is, from 1."""
        return self.decision.dispatch


class InFlightBook:
    """Requests per replica, by uid. A replica that left keeps its count until its last request ends."""

    def __init__(self) -> None:
        self._requests: dict[str, dict[int, InFlightRequest]] = {}
        """By uid and dispatch number, in the order of dispatch."""
        self._prefilling: dict[str, dict[int, InFlightRequest]] = {}
        """Those whose first token has not come."""
        self._last_dispatch: dict[str, int] = {}
        self._ended: dict[str, deque[tuple[float, InFlightRequest]]] = {}
        """Those released lately, and when."""
        self._num_proven: dict[str, int] = {}
        """By uid: up to which dispatch number an engine has told that the prompts are computed."""
        self._num_suspects = 0

    @property
    def total(self) -> int:
        """Requests in flight on all replicas."""
        return sum(map(len, self._requests.values()))

    def count(self, uid: str) -> int:
        """Requests in flight on one replica."""
        return len(self._requests.get(uid, ()))

    def requests(self, uid: str) -> Iterable[InFlightRequest]:
        """What is in flight on one replica, in the order of dispatch."""
        return self._requests.get(uid, {}).values()

    def is_unproven(self, sent: InFlightRequest, now: float) -> bool:
        """Whether it is so new to its replica that this might yet die of it."""
        is_computed = sent.first_token_at is not None or sent.dispatch <= self._num_proven.get(sent.uid, 0)
        return not is_computed and now < sent.dispatched_at + TRIAL_SECONDS

    def has_unproven(self, uid: str, now: float) -> bool:
        """Whether one that is in flight there is."""
        return any(self.is_unproven(sent, now) for sent in self._prefilling.get(uid, {}).values())

    def has_trial(self, uid: str, now: float) -> bool:
        """Whether a request is on trial there: one that another replica may have died of, and this one yet might."""
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
        """The number of the next dispatch to a replica. `num_seen`: what the engine already counts of ours, which is
        more than this book knows of where the replica left and came back."""
        return max(self._last_dispatch.get(uid, 0), num_seen) + 1

    def take(self, sent: InFlightRequest) -> None:
        """Counts one more on its replica, until it is released."""
        self._requests.setdefault(sent.uid, {})[sent.dispatch] = sent
        self._prefilling.setdefault(sent.uid, {})[sent.dispatch] = sent
        self._last_dispatch[sent.uid] = sent.dispatch
        self._num_suspects += sent.is_suspect

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
        if sent.first_token_at is None:
            _remove(self._prefilling, sent)
        ended = self._ended.setdefault(sent.uid, deque())
        ended.append((now, sent))
        while ended[0][0] < now - LOAD_STALE_SECONDS:
            ended.popleft()
        return True

    def unseen(self, uid: str, num_seen: int) -> Sequence[InFlightRequest]:
        """Those in flight that the engine had not counted when it had seen `num_seen` dispatches; the oldest first."""
        unseen = []
        for number, sent in reversed(self._requests.get(uid, {}).items()):
            if number <= num_seen:
                break
            unseen.append(sent)
        return unseen[::-1]

    def context_per_token(self, uid: str) -> float | None:
        """Mean context of the prompt tokens that a replica is computing for us; None where it computes none."""
        works = [sent.work for sent in self._prefilling.get(uid, {}).values()]
        num_tokens = sum(work.tokens for work in works)
        return sum(work.context for work in works) / num_tokens if num_tokens else None

    def num_ended(self, uid: str, num_seen: int, since: float) -> int:
        """Sequences that a load line of `since`, which includes `num_seen` dispatches, counts though they ended."""
        lately = takewhile(lambda entry: entry[0] > since, reversed(self._ended.get(uid, ())))
        return sum(sent.num_seqs for _, sent in lately if sent.dispatch <= num_seen)

    def keep_only(self, uids: frozenset[str]) -> None:
        """Forgets replicas that left, but for the requests they still have."""
        for uid in self._last_dispatch.keys() - uids - self._requests.keys():
            del self._last_dispatch[uid]
            self._ended.pop(uid, None)
            self._num_proven.pop(uid, None)

    def check(self) -> None:
        """The book's invariants: only what is in flight is kept, in order, and they add up."""
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
        if num_suspects != self._num_suspects:
            raise AssertionError(f"there are {num_suspects} suspects, not {self._num_suspects}")


def _remove(book: dict[str, dict[int, InFlightRequest]], sent: InFlightRequest) -> None:
    of_replica = book[sent.uid]
    del of_replica[sent.dispatch]
    if not of_replica:
        del book[sent.uid]
