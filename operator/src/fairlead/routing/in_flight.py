"""The in-flight book: how many requests each replica has of ours. Every slot taken is released exactly once."""


class Slot:
    """One request's place on one replica; `release` may be called any number of times and counts once."""

    __slots__ = ("_book", "uid")

    def __init__(self, book: "InFlightBook", uid: str) -> None:
        self._book: InFlightBook | None = book
        self.uid = uid

    @property
    def released(self) -> bool:
        return self._book is None

    def release(self) -> None:
        book, self._book = self._book, None
        if book is not None:
            book._give_back(self.uid)


class InFlightBook:
    """Counts per replica, by uid. A replica that left keeps its count until its last request ends."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._total = 0

    @property
    def total(self) -> int:
        """Requests in flight on all replicas."""
        return self._total

    def count(self, uid: str) -> int:
        """Requests in flight on one replica."""
        return self._counts.get(uid, 0)

    def take(self, uid: str) -> Slot:
        """Counts one more request on this replica, until the slot is released."""
        self._counts[uid] = self._counts.get(uid, 0) + 1
        self._total += 1
        return Slot(self, uid)

    def check(self) -> None:
        """The book's invariants: no count below one is kept, and the counts add up."""
        if any(count < 1 for count in self._counts.values()):
            raise AssertionError(f"a replica has a count below one: {self._counts}")
        if sum(self._counts.values()) != self._total:
            raise AssertionError(f"counts {self._counts} do not add up to {self._total}")

    def _give_back(self, uid: str) -> None:
        self._total -= 1
        remaining = self._counts[uid] - 1
        if remaining:
            self._counts[uid] = remaining
        else:
            del self._counts[uid]
