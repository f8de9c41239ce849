"""The waiting sequences by rank, their limit, and the limit of running parts of one client request."""

from bisect import bisect_left, insort_left, insort_right
from collections import Counter
from collections.abc import Callable, Collection

from fairlead_engine.core.requests import RequestRefusal
from fairlead_engine.types import FinishReason
from fairlead_engine.types.sequences import Sequence

_PART_SECONDS = 0.25
"""Seconds by which a request's part ranks behind the part before: newer requests pass, but not for ever."""


def rank(sequence: Sequence) -> tuple[int, float]:
    """Sort key: lower priority value first, then earlier arrival."""
    return sequence.priority, sequence.arrival_time + _PART_SECONDS * sequence.num_parts_before


def num_awaited_tokens(sequence: Sequence) -> int:
    """Tokens of a waiting sequence that are not expected in the cache."""
    return sequence.num_tokens - sequence.num_expected_cached_tokens


class WaitingQueue:
    """The waiting sequences. A request is accepted or refused by its first part: counting the queue for each of two
    thousand parts would take seconds. Parts that are held back do not count."""

    def __init__(
        self, max_num_tokens: int, max_num_parts: int, predict_wait: Callable[[], float], now: Callable[[], float]
    ) -> None:
        """Most waiting tokens, most running parts of a request, and the predicted wait of a new request in seconds."""
        self._max_num_tokens = max_num_tokens
        self._max_num_parts = max_num_parts
        self._predict_wait = predict_wait
        self._now = now
        self.sequences: list[Sequence] = []
        """By rank."""

    def refusal(self, sequence: Sequence) -> RequestRefusal | None:
        """Why the queue has no room for the sequence."""
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
        return RequestRefusal(FinishReason.REJECTED, f"the queue is full: {problem}") if is_full else None

    def add(self, sequence: Sequence) -> None:
        """Behind all sequences of its rank."""
        insort_right(self.sequences, sequence, key=rank)

    def put_back(self, sequence: Sequence) -> None:
        """Queues a preempted sequence before all sequences of its rank."""
        insort_left(self.sequences, sequence, key=rank)

    def remove(self, sequence: Sequence) -> None:
        """By bisection, because thousands may leave one after another."""
        place = bisect_left(self.sequences, rank(sequence), key=rank)
        while self.sequences[place] is not sequence:
            place += 1
        del self.sequences[place]

    @property
    def num_tokens(self) -> int:
        """Tokens of all waiting sequences, less those expected in the cache."""
        return sum(map(num_awaited_tokens, self.sequences))

    @property
    def first_in_line(self) -> list[Sequence]:
        """Sequences ahead of a request that arrives now, which goes ahead of later parts of earlier requests."""
        now = self._now()
        return [sequence for sequence in self.sequences if rank(sequence)[1] <= now]


class ClientParts:
    """Counts the parts of client requests with several prompts or answers; a single sequence costs nothing here."""

    def __init__(self, most_running: int) -> None:
        """`most_running`: parts of one request that may run at once."""
        self._most_running = most_running
        self._numbers: Counter[str] = Counter()
        self._running: Counter[str] = Counter()

    def number_of(self, sequence: Sequence) -> int:
        """Waiting and running parts of the same request."""
        return 0 if sequence.part_of is None else self._numbers[sequence.part_of]

    def come(self, sequence: Sequence) -> None:
        _count(self._numbers, sequence, 1)

    def ended(self, sequence: Sequence) -> None:
        _count(self._numbers, sequence, -1)

    def begin(self, sequence: Sequence) -> None:
        _count(self._running, sequence, 1)

    def leave(self, sequence: Sequence) -> None:
        _count(self._running, sequence, -1)

    def may_run(self, sequence: Sequence, num_more: int) -> bool:
        """Whether the request may have another part running, beside its running parts and `num_more`."""
        return sequence.part_of is None or self._running[sequence.part_of] + num_more < self._most_running

    @property
    def num_held_back(self) -> int:
        """Waiting parts of requests at their limit; they are in no other request's way."""
        return sum([max(0, number - self._most_running) for number in self._numbers.values()])

    def check(self, sequences: Collection[Sequence], running: Collection[Sequence]) -> None:
        assert self._numbers == _numbers(sequences), "parts of requests are counted wrongly"
        assert self._running == _numbers(running), "running parts of requests are counted wrongly"


def _numbers(sequences: Collection[Sequence]) -> Counter[str]:
    return Counter(sequence.part_of for sequence in sequences if sequence.part_of is not None)


def _count(numbers: Counter[str], sequence: Sequence, more: int) -> None:
    if (request := sequence.part_of) is not None:
        numbers[request] += more
        if not numbers[request]:
            del numbers[request]
