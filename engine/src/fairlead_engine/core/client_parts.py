"""Client requests of several prompts or answers: how many of each one's parts wait or run."""

from collections import Counter
from collections.abc import Collection

from fairlead_engine.sequences import Sequence


class ClientParts:
    """A sequence that stands alone is part of nothing, and costs nothing here."""

    def __init__(self, most_running: int) -> None:
        """`most_running`: parts of one request that may run at once."""
        self._most_running = most_running
        self._numbers: Counter[str] = Counter()

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
            self._numbers[sequence.part_of] -= 1
            if not self._numbers[sequence.part_of]:
                del self._numbers[sequence.part_of]

    @property
    def num_held_back(self) -> int:
        """How many wait because their request may not have more running: they stand in nobody else's way."""
        return sum([max(0, number - self._most_running) for number in self._numbers.values()])

    def check(self, sequences: Collection[Sequence]) -> None:
        """Raises AssertionError unless these are all that are there."""
        numbers = Counter(sequence.part_of for sequence in sequences if sequence.part_of is not None)
        assert self._numbers == numbers, "parts of requests are counted wrongly"
