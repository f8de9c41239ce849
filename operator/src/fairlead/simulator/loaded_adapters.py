"""LoadedAdapters: the adapters of an engine model, which of them have a slot, and the seconds to load each."""

from collections.abc import Iterable, Mapping


class LoadedAdapters:
    """Up to `num_slots` adapters at once. A requested adapter without a slot takes the slot that has been unused for
    longest."""

    def __init__(self, load_seconds: Mapping[str, float], num_slots: int | None = None) -> None:
        """`load_seconds`: by name; may be changed at any time. `num_slots`: None = a slot for each adapter."""
        self.load_seconds = dict(load_seconds)
        self._num_slots = num_slots
        self._placed: list[str] = []
        """Least recently used first."""
        self.num_loaded = 0
        """Loads so far."""

    @property
    def waits(self) -> dict[str, float]:
        """By name, seconds that a request would wait for the load; as in load lines."""
        return {name: 0.0 if name in self._placed else seconds for name, seconds in self.load_seconds.items()}

    def has_place(self, name: str, in_use: Iterable[str]) -> bool:
        """Whether a slot is free or can be freed beside the adapters in use."""
        return self._num_slots is None or len({*in_use, name}) <= self._num_slots

    def use(self, name: str, in_use: Iterable[str]) -> float:
        """For a sequence that begins to run: seconds to load the adapter; 0 = has a slot."""
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
