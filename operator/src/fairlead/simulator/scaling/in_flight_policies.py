"""Formulas of other autoscalers by requests in flight: KubeAI, HPA, KPA.

Each is a callable: signals of this second → the number of replicas, before bounds; with state of its own.
"""

import math
import statistics
from dataclasses import dataclass, field

from fairlead.demand.signals import Signals


@dataclass(slots=True)
class Windowed:
    """Figures of the last seconds."""

    window: float
    seen: list[tuple[float, float]] = field(default_factory=list)

    def add(self, time: float, value: float) -> list[float]:
        """The figures of the window with one more."""
        self.seen = [(at, each) for at, each in self.seen if at > time - self.window]
        self.seen.append((time, value))
        return [each for _, each in self.seen]


def in_flight(signals: Signals) -> int:
    """Requests at gateways and replicas."""
    return signals.demand.waiting + signals.demand.running


def kept(signals: Signals) -> int:
    """The number of now; at zero, one replica for the first request."""
    return max(signals.desired, min(1, in_flight(signals)))


@dataclass(slots=True)
class KubeAI:
    """Mean requests in flight over a window, by the requests meant for one replica; every 10 s, and fewer after 30 s in
    which fewer were always enough."""

    each: float
    window: float
    flying: Windowed = field(init=False)
    next_at: float = 0.0
    fewer_since: float | None = None

    def __post_init__(self) -> None:
        self.flying = Windowed(self.window)

    def __call__(self, signals: Signals) -> float:
        wanted = math.ceil(statistics.fmean(self.flying.add(signals.time, in_flight(signals))) / self.each)
        if signals.time < self.next_at:
            return signals.desired
        self.next_at = signals.time + 10.0
        if wanted >= signals.desired:
            self.fewer_since = None
            return wanted
        self.fewer_since = signals.time if self.fewer_since is None else self.fewer_since
        return wanted if signals.time - self.fewer_since >= 30.0 else signals.desired


@dataclass(slots=True)
class HPA:
    """Kubernetes' formula on requests in flight per ready replica: every 15 s, a tolerance of a tenth, at most twice as
    many or four more at once, and the largest number of the last window before fewer."""

    each: float
    window: float
    wanted: Windowed = field(init=False)
    next_at: float = 0.0

    def __post_init__(self) -> None:
        self.wanted = Windowed(self.window)

    def __call__(self, signals: Signals) -> float:
        if signals.time < self.next_at:
            return signals.desired
        self.next_at = signals.time + 15.0
        ready = max(1, signals.ready)
        ratio = in_flight(signals) / ready / self.each
        number = signals.desired if abs(ratio - 1.0) <= 0.1 else max(1, math.ceil(ready * ratio))
        most = max(2 * signals.desired, signals.desired + 4)
        return min(most, max(self.wanted.add(signals.time, number)))


@dataclass(slots=True)
class KPA:
    """Knative's formula: mean in flight of a stable window; of a short one while that asks for twice the ready
    replicas, and nothing goes during such a panic. The defaults are Knative's."""

    each: float
    stable_window: float = 60.0
    short_window: float = 6.0
    delay: float = 0.0
    """Seconds for which fewer must have been enough."""
    most_growth: float = 1000.0
    """Largest ratio of the number to the ready replicas, per look."""
    least_shrinking: float = 2.0
    """Largest ratio of the ready replicas to the number, per look."""
    stable: Windowed = field(init=False)
    short: Windowed = field(init=False)
    wanted: Windowed = field(init=False)
    panic_until: float = -1.0
    most: float = 0.0

    def __post_init__(self) -> None:
        self.stable, self.short = Windowed(self.stable_window), Windowed(self.short_window)
        self.wanted = Windowed(self.delay)

    def __call__(self, signals: Signals) -> float:
        now, flying, ready = signals.time, in_flight(signals), max(1, signals.ready)

        def bounded(window: Windowed) -> float:
            number = math.ceil(statistics.fmean(window.add(now, flying)) / self.each)
            least, most = math.floor(ready / self.least_shrinking), math.ceil(ready * self.most_growth)
            return max(least, min(most, number))

        stable, short = bounded(self.stable), bounded(self.short)
        if short >= 2 * ready:
            self.panic_until = now + self.stable_window
        if now >= self.panic_until:
            self.most = 0.0
            number = stable
        else:
            number = self.most = max(self.most, short, signals.desired)
        return max(self.wanted.add(now, number))
