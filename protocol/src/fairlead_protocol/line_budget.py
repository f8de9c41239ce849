"""How many lines of a log strangers may cause. How lines are written is in `logs`."""


class LineBudget:
    """How many lines strangers may cause: `burst` at once, and then `per_second`. Those beyond are counted, and the
    next line can tell how many there were."""

    def __init__(self, *, burst: int, per_second: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._left = float(burst)
        self._as_of: float | None = None
        self._num_left_out = 0

    def take(self, now: float) -> int | None:
        """How many lines were left out since the last one that was not; None = this one is left out, too. `now`:
        seconds of any clock that does not go back."""
        if self._as_of is not None:
            self._left = min(self._burst, self._left + (now - self._as_of) * self._per_second)
        self._as_of = now
        if self._left < 1:
            self._num_left_out += 1
            return None
        self._left -= 1
        num_left_out, self._num_left_out = self._num_left_out, 0
        return num_left_out
