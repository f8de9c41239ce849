"""Which prompts a server holds whose cache is a number of places, each with the sequence that it computed last. Pure.

A sequence takes the free place with the longest common beginning, if that is a tenth of it; else the one that was used
least recently. What its place held beyond the beginning is gone, and what is in places that compute serves nobody else:
as llama.cpp's server chooses.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairlead_protocol.blocks import BlockHash

LEAST_SHARE = 0.1
"""Of a prompt, that a place has to hold to be chosen for it."""


@dataclass(slots=True, eq=False)
class SequencePlace:
    """One of them."""

    names: tuple[BlockHash, ...] = ()
    """Blocks that it holds."""
    is_busy: bool = False


class SequencePlaces:
    """Those of one server, the least recently used first."""

    def __init__(self, num_places: int) -> None:
        self._places = [SequencePlace() for _ in range(num_places)]

    def take(self, names: Sequence[BlockHash]) -> SequencePlace | None:
        """A sequence of this prompt begins, in the place that is returned; None = it waits for one."""
        free = [place for place in self._places if not place.is_busy]
        if not free:
            return None
        best = max(free, key=lambda place: _num_common(place.names, names))
        num_common = _num_common(best.names, names)
        if num_common <= LEAST_SHARE * len(names):
            best, num_common = free[0], _num_common(free[0].names, names)
        best.names, best.is_busy = best.names[:num_common], True
        self._used(best)
        return best

    def computed(self, place: SequencePlace, names: Sequence[BlockHash]) -> None:
        """The prompt in this place is computed."""
        place.names = tuple(names)

    def left(self, place: SequencePlace) -> None:
        """Its sequence is over; what it held stays until another comes."""
        place.is_busy = False
        self._used(place)

    def clear(self) -> None:
        """Nothing is held any more."""
        for place in self._places:
            place.names = ()

    def held(self) -> Iterator[tuple[BlockHash, ...]]:
        """Blocks of each place that another sequence may take."""
        return (place.names for place in self._places if not place.is_busy)

    def _used(self, place: SequencePlace) -> None:
        self._places.remove(place)
        self._places.append(place)


def _num_common(held: Sequence[BlockHash], names: Sequence[BlockHash]) -> int:
    return next((index for index, pair in enumerate(zip(held, names, strict=False)) if pair[0] != pair[1]),
                min(len(held), len(names)))  # fmt: skip
