"""Adapters of an engine in virtual time: which it serves, what loading each takes, and which have a place now."""

from collections.abc import Iterable, Mapping


class AdapterSlots:
    """So many adapters have a place at once. One that is wanted and has none is loaded there, instead of the one that
    nobody runs with for longest."""

    def __init__(self, load_seconds: Mapping[str, float], num_slots: int | None = None) -> None:
        """`load_seconds`: by name, what loading takes; may be changed at any time. `num_slots`: None = one for each."""
        self.load_seconds = dict(load_seconds)
        self._num_slots = num_slots
        self._placed: list[str] = []
        """The last used last."""
        self.num_loaded = 0
        """Times that one was brought to its place."""

    @property
    def waits(self) -> dict[str, float]:
        """What a load line says: seconds that a request for each would wait for it to be loaded."""
        return {name: 0.0 if name in self._placed else seconds for name, seconds in self.load_seconds.items()}

    def has_place(self, name: str, in_use: Iterable[str]) -> bool:
        """Whether it is in place or can be, beside those that sequences run with."""
        return self._num_slots is None or len({*in_use, name}) <= self._num_slots

    def use(self, name: str, in_use: Iterable[str]) -> float:
        """A sequence begins with it; seconds that loading it takes first."""
        seconds = 0.0
        if name in self._placed:
            self._placed.remove(name)
        else:
            seconds = self.load_seconds.get(name, 0.0)
            self.num_loaded += 1
            busy = set(in_use)
            if self._num_slots is not None and len(self._placed) >= self._num_slots:
                self._placed.remove(next(each for each in self._placed if each not in busy))
        self._placed.append(name)
        return seconds
