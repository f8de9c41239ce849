"""How many tokens of one sequence are worth guessing, learnt from how many guesses stood."""

_FIRST_PAUSE = 2
_LONGEST_PAUSE = 64
"""Steps without drafts, once not even one stood."""


class DraftLength:
    """Grows while all drafts stand, shrinks to what stands, and falls to nothing where none does.

    Then it rests, twice as long each time it was tried in vain: what is computed for nothing becomes a row in 64 steps.
    """

    __slots__ = ("_length", "_most", "_pause", "_rest")

    def __init__(self, most: int) -> None:
        self._length = self._most = most
        self._rest = 0
        self._pause = _FIRST_PAUSE

    def next(self) -> int:
        """Drafts for the next step, at most; asked once a step."""
        if self._rest:
            self._rest -= 1
            return 0
        return self._length

    def observe(self, num_drafts: int, num_accepted: int) -> None:
        """What became of a step's drafts, of which there was at least one."""
        if num_accepted:
            self._pause = _FIRST_PAUSE
            wanted = max(self._length, 2 * num_drafts) if num_accepted == num_drafts else num_accepted + 1
            self._length = min(self._most, wanted)
        elif self._length > 1:
            self._length //= 2
        else:
            self._rest, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
