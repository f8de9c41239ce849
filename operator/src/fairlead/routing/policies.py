"""Routing policies: which candidate gets the request. A class each, made of `spec.routing`, and a line in
`POLICIES`."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from statistics import median_low
from typing import Protocol

from xxhash import xxh64_intdigest

from fairlead.api.llmdeployment import Routing, RoutingPolicy
from fairlead.routing.prompt import Prompt
from fairlead.routing.replica import Candidate, Decision


class Policy(Protocol):
    """Picks one candidate. May keep state of its own, such as whose turn it is, and changes nothing else."""

    def pick(self, candidates: Sequence[Candidate], prompt: Prompt, in_flight: Mapping[str, int]) -> Decision:
        """Decides among `candidates` (at least one). `in_flight`: this gateway's requests on every ready replica, by
        uid."""
        ...


class _InTurn:
    """Goes round by uid. Replicas that come or go do not change the others' order."""

    def __init__(self, _: Routing) -> None:
        self._last = ""

    def _next(self, candidates: Sequence[Candidate]) -> Candidate:
        """The first candidate after the last picked one, in the circle of uids."""
        last = self._last
        chosen = min(candidates, key=lambda candidate: (candidate.replica.uid <= last, candidate.replica.uid))
        self._last = chosen.replica.uid
        return chosen

    def _least_loaded(self, candidates: Sequence[Candidate]) -> tuple[Candidate, str]:
        """The next one among those with the fewest requests, and why."""
        least = min(candidate.num_in_flight for candidate in candidates)
        ties = [candidate for candidate in candidates if candidate.num_in_flight == least]
        reason = f"fewest in flight ({least}) of {len(candidates)} with room"
        return self._next(ties), f"{reason}, in turn among {len(ties)} equal" if len(ties) > 1 else reason


class PredictedTTFT(_InTurn):
    """The replica with the earliest expected first token.

    - Differences below TIE_RATIO and TIE_SECONDS do not count: among ties the fewest uncached tokens decide, then the
      fewest requests, then turns.
    - A replica without a prediction (no load or step cost yet) counts as typical: the median predicted time, in
      proportion to its requests against the others' median. So it gets its share under load, neither every request nor
      none.
    - Without any prediction the fewest requests decide.
    """

    TIE_RATIO = 0.05
    TIE_SECONDS = 0.001

    def pick(self, candidates: Sequence[Candidate], prompt: Prompt, in_flight: Mapping[str, int]) -> Decision:
        expected = expected_seconds(candidates)
        if not expected:
            chosen, reason = self._least_loaded(candidates)
            return _decide(chosen, f"nothing is known of loads; {reason}")
        soonest = min(expected.values())
        bound = soonest * (1 + self.TIE_RATIO) + self.TIE_SECONDS
        ties = [each for each in candidates if expected[each.replica.uid] <= bound]
        fewest = min(each.uncached_tokens for each in ties)
        chosen, _ = self._least_loaded([each for each in ties if each.uncached_tokens == fewest])
        return _decide(chosen, self._reason(chosen, expected))

    @staticmethod
    def _reason(chosen: Candidate, expected: Mapping[str, float]) -> str:
        others = [seconds for uid, seconds in expected.items() if uid != chosen.replica.uid]
        reason = f"first token in {_ms(expected[chosen.replica.uid])}"
        if chosen.predicted_ttft_seconds is None:
            reason += ", if it is as others are: its load is not known"
        if chosen.is_tokenized:
            num_tokens = chosen.cached_tokens + chosen.uncached_tokens
            reason += f" ({chosen.cached_tokens} of {num_tokens} tokens cached)"
        if chosen.loading_seconds:
            reason += f", {_ms(chosen.loading_seconds)} of it to load the adapter"
        return f"{reason}; next best {_ms(min(others))}" if others else f"{reason}; the only one with room"


class LeastLoaded(_InTurn):
    """The fewest requests in flight. Ties go round in turn, so equal replicas share a trickle evenly."""

    def pick(self, candidates: Sequence[Candidate], prompt: Prompt, in_flight: Mapping[str, int]) -> Decision:
        return _decide(*self._least_loaded(candidates))


class RoundRobin(_InTurn):
    """Each replica in turn, by uid, whatever its load."""

    def pick(self, candidates: Sequence[Candidate], prompt: Prompt, in_flight: Mapping[str, int]) -> Decision:
        return _decide(self._next(candidates), f"next in turn of {len(candidates)} with room")


class PrefixHash:
    """Consistent hashing with bounded loads on the prompt's beginning (`Prompt.affinity`), as KubeAI defines it.

    Every ready replica has `replication` places on a ring. Clockwise from the text's hash, the first candidate with at
    most (all in flight + 1) / replicas · meanLoadFactor requests in flight is taken; without one, the first candidate.
    Source: Mirrokni, Thorup and Zadimoghaddam, Consistent Hashing with Bounded Loads (2016); KubeAI's load balancer.
    """

    def __init__(self, routing: Routing) -> None:
        self._load_factor = routing.prefix_hash.mean_load_factor / 100
        self._ring = HashRing(routing.prefix_hash.replication)

    def pick(self, candidates: Sequence[Candidate], prompt: Prompt, in_flight: Mapping[str, int]) -> Decision:
        self._ring.set_members(in_flight.keys())
        by_uid = {each.replica.uid: each for each in candidates}
        met = (by_uid[uid] for uid in self._ring.walk(prompt.affinity) if uid in by_uid)
        total = sum(in_flight.values())
        bound = (total + 1) / len(in_flight) * self._load_factor
        first = next(met)
        if total == 0 or first.num_in_flight <= bound:
            return _decide(first, f"the prompt's beginning belongs there ({_load(first)} of at most {bound:.1f})")
        for num_passed, each in enumerate(met, 1):
            if each.num_in_flight <= bound:
                reason = f"next on the ring after {num_passed} with more than {bound:.1f} in flight ({_load(each)})"
                return _decide(each, reason)
        return _decide(first, f"the prompt's beginning belongs there; all have more than {bound:.1f} in flight")


class HashRing:
    """A ring of consistent hashing: few texts move when a member comes or goes. Each member has `replication` places on
    a circle of 64-bit hashes (XXH64, as in KubeAI)."""

    def __init__(self, replication: int) -> None:
        self._replication = replication
        self._places: list[int] = []
        """Sorted."""
        self._member_at: dict[int, str] = {}
        self._members: frozenset[str] = frozenset()

    def set_members(self, members: Set[str]) -> None:
        """Who is on the ring; it is made anew only when that changes."""
        if self._members == members:
            return
        self._members = frozenset(members)
        self._member_at = {
            xxh64_intdigest(f"{member}{place}".encode()): member
            for member in sorted(self._members)
            for place in range(self._replication)
        }
        self._places = sorted(self._member_at)

    def walk(self, text: str) -> Iterator[str]:
        """Every member once, in the order met clockwise from the text's hash."""
        places, met = self._places, set[str]()
        start = bisect_left(places, xxh64_intdigest(text.encode(errors="surrogatepass")))
        for step in range(len(places)):
            member = self._member_at[places[(start + step) % len(places)]]
            if member not in met:
                met.add(member)
                yield member


def expected_seconds(candidates: Sequence[Candidate]) -> dict[str, float]:
    """By uid: the predicted TTFT or its substitute (`PredictedTTFT`); empty = nothing is predicted."""
    known = [(each.predicted_ttft_seconds, each) for each in candidates if each.predicted_ttft_seconds is not None]
    expected = {each.replica.uid: seconds for seconds, each in known}
    if known and len(known) < len(candidates):
        per_request = median_low(expected.values()) / (median_low(each.num_in_flight for _, each in known) + 1)
        for each in candidates:
            expected.setdefault(each.replica.uid, per_request * (each.num_in_flight + 1))
    return expected


def _decide(candidate: Candidate, reason: str) -> Decision:
    """For this candidate; what is only estimated is left out."""
    return Decision(
        candidate.replica,
        reason,
        cached_tokens=candidate.cached_tokens if candidate.is_tokenized else None,
        uncached_tokens=candidate.uncached_tokens if candidate.is_tokenized else None,
        predicted_ttft_seconds=candidate.predicted_ttft_seconds,
    )


def _load(candidate: Candidate) -> str:
    return f"{candidate.num_in_flight} in flight"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10.0 else f"{seconds:.0f} s"


POLICIES: dict[RoutingPolicy, Callable[[Routing], Policy]] = {
    RoutingPolicy.PREDICTED_TTFT: PredictedTTFT,
    RoutingPolicy.LEAST_LOADED: LeastLoaded,
    RoutingPolicy.ROUND_ROBIN: RoundRobin,
    RoutingPolicy.PREFIX_HASH: PrefixHash,
}
"""By the names users write."""


def make_policy(routing: Routing) -> Policy:
    """The policy that `spec.routing` asks for."""
    return POLICIES[routing.policy](routing)
