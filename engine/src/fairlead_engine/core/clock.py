"""Time as the engine reads it, how long each step took, and when to plan the next one.

`fairlead_engine_testing.FakeClock` stands in for `Clock`.
"""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Wall time, and a stopwatch for the running step."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    def now(self) -> float:
        """Wall-clock seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since some moment; never set back."""
        return time.perf_counter()

    def start(self) -> None:
        """Starts the stopwatch again from 0."""
        self._started = time.perf_counter()

    def elapsed(self) -> float:
        """Seconds since `start`."""
        return time.perf_counter() - self._started


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


_MARGIN_SECONDS = 0.0005
"""Of the lead, beside what planning takes."""
_MOST_LEAD_SECONDS = 0.1
"""A host that is always late does not count further."""
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.0001, 0.005
"""Of what planning waits at a time: the device may end sooner than it was expected to."""
_FADING = 0.99
"""Of the lead, from step to step."""


class LatePlanning:
    """Learns how long before a step's end the next one has to be planned: what planning took lately, and twice as long
    whenever the step was over before its successor was launched."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lead = _MOST_LEAD_SECONDS
        self._end = 0.0  # of the step that the device computes, as predicted

    @property
    def spare_seconds(self) -> float:
        """How long planning can wait now, after which it is to be asked again; of use while a step is under way."""
        spare = self._end - self._lead - self._clock.monotonic()
        return min(spare, _LONGEST_SECONDS) if spare > _SHORTEST_SECONDS else 0.0

    def planned(self, began: float, *, is_late: bool) -> None:
        """A step was launched that has been planned since `began` (`Clock.monotonic`). `is_late`: the device had ended
        the one before."""
        least = self._clock.monotonic() - began + _MARGIN_SECONDS
        lead = 2 * self._lead if is_late else _FADING * self._lead
        self._lead = min(_MOST_LEAD_SECONDS, max(least, lead))

    def begins(self, seconds: float) -> None:
        """The device begins with a step now that takes at least so long."""
        self._end = self._clock.monotonic() + seconds
