"""How long each step took, where the next one is begun before it is over."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from fairlead_engine.core.clock import Clock


class StepWatch:
    """A launch is the launched step's time, and everything else that of the step whose end it brings.

    So it is right on a GPU, where a launch takes next to nothing and the end is waited for, as on a CPU, where the
    launch is all of the work.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._launches: deque[float] = deque()  # seconds of those steps that are not over, oldest first
        self._seconds_launching = 0.0  # since the clock was started

    def start(self) -> None:
        """A step begins, and none is under way."""
        self._launches.clear()
        self._restart()

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Around the launch of a step."""
        began = self._clock.elapsed()
        yield
        self._launches.append(self._clock.elapsed() - began)
        self._seconds_launching += self._launches[-1]

    def end(self) -> float:
        """The oldest step is over: seconds that it took."""
        seconds = self._launches.popleft() + self._clock.elapsed() - self._seconds_launching
        self._restart()
        return seconds

    def _restart(self) -> None:
        self._clock.start()
        self._seconds_launching = 0.0
