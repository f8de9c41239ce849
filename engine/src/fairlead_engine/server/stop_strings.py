"""Stop strings in a stream of text: what may be shown, what must wait, and where the text ends.

Knows nothing of tokens: however the text is cut into pieces, the result is the same.
"""

from collections.abc import Sequence


class StopStrings:
    """Watches growing text for stop strings.

    The text ends at the stop string that is complete first (of two that end together, the longer). Text that could
    still become the start of a stop string is held back, and no more than that.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str) -> str:
        """The text that is certain to be part of the output now. After a match there is no more."""
        if self.matched is not None or not self._stops:
            return "" if self.matched is not None else text
        self._held += text
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if not found:
            certain = len(self._held) - self._num_held_back()
        else:
            _, start, self.matched = min(found)
            certain = start + (len(self.matched) if self._include_stop else 0)
        shown, self._held = self._held[:certain], self._held[certain:]
        return shown

    def finish(self) -> str:
        """The text held back, when it ended without a stop string."""
        shown = "" if self.matched is not None else self._held
        self._held = ""
        return shown

    def _num_held_back(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            tail = self._held[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
