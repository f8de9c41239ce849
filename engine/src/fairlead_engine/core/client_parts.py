"""Client requests of several prompts or answers: how many of each one's parts there are, and how many run."""

from collections import Counter
from collections.abc import Collection

from fairlead_engine.types.sequences import Sequence


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
