"""PrefixHash: prompts with the same beginning go to the same replica, within a bound of its load."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence, Set

from xxhash import xxh64_intdigest

from fairlead.api.llmdeployment import Routing
from fairlead.routing.prompt import Prompt
from fairlead.routing.replica import Candidate, Decision


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
            load = f"{first.num_in_flight} in flight of at most {bound:.1f}"
            return first.decided(f"the prompt's beginning belongs there ({load})")
        for num_passed, each in enumerate(met, 1):
            if each.num_in_flight <= bound:
                reason = f"next on the ring after {num_passed} with more than {bound:.1f} in flight"
                return each.decided(f"{reason} ({each.num_in_flight} in flight)")
        return first.decided(f"the prompt's beginning belongs there; all have more than {bound:.1f} in flight")


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
