"""The sequences that wait, by rank, how many may, and how many parts of one client request may run."""

from bisect import bisect_left, insort_left, insort_right
from collections import Counter
from collections.abc import Callable, Collection

from fairlead_engine.core.requests import Refusal
from fairlead_engine.types import FinishReason
from fairlead_engine.types.sequences import Sequence

_PART_SECONDS = 0.25
"""Each part of a request counts as having come this much later than the one before, as if its client had sent them one
after the other: whoever comes meanwhile goes ahead of the later ones, and nobody goes ahead of them for ever."""


def rank(sequence: Sequence) -> tuple[int, float]:
    """Who comes first: lower priority value, then earlier arrival."""
    return sequence.priority, sequence.arrival_time + _PART_SECONDS * sequence.num_parts_before


def num_awaited_tokens(sequence: Sequence) -> int:
    """Tokens of a waiting sequence that the cache is not expected to spare it."""
    return sequence.num_tokens - sequence.num_expected_cached_tokens


class WaitingQueue:
    """A request is taken or refused by its first part: looking at all that wait for each of two thousand would take
    seconds. What is held back of other requests is not in its way."""

    def __init__(
        self, max_num_tokens: int, max_num_parts: int, predict_wait: Callable[[], float], now: Callable[[], float]
    ) -> None:
        """`max_num_tokens` may wait to be computed, and of one request `max_num_parts` run at once; `predict_wait`:
        seconds that a request would wait."""
        self._max_num_tokens = max_num_tokens
        self._max_num_parts = max_num_parts
        self._predict_wait = predict_wait
        self._now = now
        self.sequences: list[Sequence] = []
        """By rank."""

    def refusal(self, sequence: Sequence) -> Refusal | None:
        """Why it cannot wait as well."""
        if not self.sequences or sequence.num_parts_before:
            return None
        longest = sequence.max_queue_seconds
        if longest is None:
            num_queued = sum(
                num_awaited_tokens(each) for each in self.sequences if each.num_parts_before < self._max_num_parts
            )
            problem = f"{num_queued} of {self._max_num_tokens} prompt tokens wait already"
            is_full = num_queued + num_awaited_tokens(sequence) > self._max_num_tokens
        else:  # who asks this engine itself: nobody else holds the request while others are served
            seconds = self._predict_wait()
            problem = f"a request would wait about {seconds:.1f} s, and at most {longest:g} s are allowed"
            is_full = seconds > longest
        return Refusal(FinishReason.REJECTED, f"the queue is full: {problem}") if is_full else None

    def add(self, sequence: Sequence) -> None:
        """Behind all of its rank."""
        insort_right(self.sequences, sequence, key=rank)

    def put_back(self, sequence: Sequence) -> None:
        """Before all of its rank: it was preempted."""
        insort_left(self.sequences, sequence, key=rank)

    def remove(self, sequence: Sequence) -> None:
        """Without a look at all of the others, as thousands may leave one by one."""
        place = bisect_left(self.sequences, rank(sequence), key=rank)
        while self.sequences[place] is not sequence:
            place += 1
        del self.sequences[place]

    @property
    def num_tokens(self) -> int:
        """Tokens of all, without those the cache is expected to spare them."""
        return sum(map(num_awaited_tokens, self.sequences))

    @property
    def first_in_line(self) -> list[Sequence]:
        """Those that go before a request that came now, which goes ahead of later parts of others."""
        now = self._now()
        return [sequence for sequence in self.sequences if rank(sequence)[1] <= now]


class ClientParts:
    """A sequence that stands alone is part of nothing, and costs nothing here."""

    def __init__(self, most_running: int) -> None:
        """`most_running`: parts of one request that may run at once."""
        self._most_running = most_running
        self._numbers: Counter[str] = Counter()
        self._running: Counter[str] = Counter()

    def number_of(self, sequence: Sequence) -> int:
        """How many parts of the same request are there."""
        return 0 if sequence.part_of is None else self._numbers[sequence.part_of]

    def come(self, sequence: Sequence) -> None:
        """It waits from here on."""
        if sequence.part_of is not None:
            self._numbers[sequence.part_of] += 1

    def ended(self, sequence: Sequence) -> None:
        """It is no longer there."""
        if sequence.part_of is not None:
            _less(self._numbers, sequence.part_of)

    def begin(self, sequence: Sequence) -> None:
        """It runs from here on."""
        if sequence.part_of is not None:
            self._running[sequence.part_of] += 1

    def leave(self, sequence: Sequence) -> None:
        """It does not run any more."""
        if sequence.part_of is not None:
            _less(self._running, sequence.part_of)

    def may_run(self, sequence: Sequence, num_more: int) -> bool:
        """Whether its request may have another part running, beside those that do and `num_more`."""
        return sequence.part_of is None or self._running[sequence.part_of] + num_more < self._most_running

    @property
    def num_held_back(self) -> int:
        """How many wait because their request may not have more running: they stand in nobody else's way."""
        return sum([max(0, number - self._most_running) for number in self._numbers.values()])

    def check(self, sequences: Collection[Sequence], running: Collection[Sequence]) -> None:
        """Raises AssertionError unless these are all that are there, and all that run."""
        assert self._numbers == _numbers(sequences), "parts of requests are counted wrongly"
        assert self._running == _numbers(running), "running parts of requests are counted wrongly"


def _numbers(sequences: Collection[Sequence]) -> Counter[str]:
    return Counter(sequence.part_of for sequence in sequences if sequence.part_of is not None)


def _less(numbers: Counter[str], request: str) -> None:
    numbers[request] -= 1
    if not numbers[request]:
        del numbers[request]
