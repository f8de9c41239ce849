"""The engine's clock, the duration of each step, and the time to plan the next step.

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
        self._started = time.perf_counter()

    def elapsed(self) -> float:
        return time.perf_counter() - self._started


class StepWatch:
    """Seconds of each step: its launch, and the time until its end without other steps' launches. Right on a GPU, where
    a launch is short and the end is waited for, and on a CPU, where the launch is all of the work."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._launches: deque[float] = deque()  # seconds of those steps that are not over, oldest first
        self._seconds_launching = 0.0  # since the clock was started

    def start(self) -> None:
        """A step begins while none is under way."""
        self._launches.clear()
        self._restart()

    @contextmanager
    def launching(self) -> Iterator[None]:
        began = self._clock.elapsed()
        yield
        self._launches.append(self._clock.elapsed() - began)
        self._seconds_launching += self._launches[-1]

    def end(self) -> float:
        """Ends the oldest step; its seconds."""
        seconds = self._launches.popleft() + self._clock.elapsed() - self._seconds_launching
        self._restart()
        return seconds

    def _restart(self) -> None:
        self._clock.start()
        self._seconds_launching = 0.0


_MARGIN_SECONDS = 0.0005
"""Added to the time that planning takes."""
_MOST_LEAD_SECONDS = 0.1
"""Bound of the lead of an always late host."""
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.0001, 0.005
"""Bounds of one wait for planning: the device may end sooner than predicted."""
_FADING = 0.99
"""Factor of the lead from step to step."""


class LatePlanning:
    """Learns how long before a step's end the next step must be planned: the recent duration of planning, doubled
    whenever a step was over before its successor was launched."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lead = _MOST_LEAD_SECONDS
        self._end = 0.0  # of the step that the device computes, as predicted

    @property
    def spare_seconds(self) -> float:
        """Seconds that planning can wait before asking again; valid while a step is under way."""
        spare = self._end - self._lead - self._clock.monotonic()
        return min(spare, _LONGEST_SECONDS) if spare > _SHORTEST_SECONDS else 0.0

    def planned(self, began: float, *, is_late: bool) -> None:
        """A step planned since `began` (`Clock.monotonic`) was launched. `is_late`: the device was idle before."""
        least = self._clock.monotonic() - began + _MARGIN_SECONDS
        lead = 2 * self._lead if is_late else _FADING * self._lead
        self._lead = min(_MOST_LEAD_SECONDS, max(least, lead))

    def begins(self, seconds: float) -> None:
        """The device begins a step of at least `seconds`."""
        self._end = self._clock.monotonic() + seconds
