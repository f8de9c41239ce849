"""VirtualTime, a clock that jumps from call to call, and TimedEngine, which drives an engine model by this clock."""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from math import inf

from fairlead.simulator.engine_model import EngineModel, EngineStep, ModelSequence, StepOutcome


class VirtualTime:
    """Makes calls in the order of their times; calls of equal time in the order of their scheduling."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds."""
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Schedules a call."""
        heapq.heappush(self._calls, (time, next(self._number), call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Schedules a call relative to now."""
        self.at(self.now + seconds, call)

    def advance(self, until: float = inf) -> bool:
        """Makes the next call. False = no call is due by `until`, which is the time now."""
        if not self._calls or self._calls[0][0] > until:
            self.now = until
            return False
        self.now, _, call = heapq.heappop(self._calls)
        call()
        return True


class TimedEngine(ABC):
    """An engine that computes step after step while it has requests."""

    def __init__(
        self,
        model: EngineModel,
        time: VirtualTime,
        *,
        stretch: Callable[[], float] = lambda: 1.0,
        together_seconds: float = 0.0,
    ) -> None:
        """`stretch`: factor on each step's seconds. `together_seconds`: as of `EngineModel.begin_step`."""
        self.model = model
        self.time = time
        self.step_began = 0.0
        self._stretch = stretch
        self._together_seconds = together_seconds

    @abstractmethod
    def stepped(self, outcome: StepOutcome) -> None:
        """Called at the end of each step, before the next step begins."""

    def add(self, sequence: ModelSequence) -> None:
        """A request arrives."""
        self.model.add(sequence)
        step = self.model.step
        if step is None:
            self._begin_step()
        elif step.num_steps > 1:
            step.cut(self.time.now - self.step_began)
            self._schedule_end(step)

    def _begin_step(self) -> None:
        self.step_began = self.time.now
        if (step := self.model.begin_step(self._together_seconds)) is not None:
            step.seconds *= self._stretch()
            self._schedule_end(step)

    def _schedule_end(self, step: EngineStep) -> None:
        self.time.at(self.step_began + step.seconds, lambda: self._end_step(step))

    def _end_step(self, step: EngineStep) -> None:
        if self.model.step is step:  # else it was cut, and has ended
            self.stepped(self.model.end_step())
            self._begin_step()
