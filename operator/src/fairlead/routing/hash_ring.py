"""A ring of consistent hashing: texts are spread over members, and few move when a member comes or goes."""

from bisect import bisect_left
from collections.abc import Iterator, Set

from xxhash import xxh64_intdigest


class HashRing:
    """Each member has `replication` places on a circle of 64-bit hashes (XXH64, as in KubeAI). It knows no loads."""

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
