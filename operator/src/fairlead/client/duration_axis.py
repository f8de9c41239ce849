"""Ticks of a logarithmic axis of durations, as people say them: `10 ms`, `1 s`. Pure."""

import math
from collections.abc import Sequence

_STEPS = (1, 2, 5)
_ENOUGH = 3
"""Powers of ten on an axis that need no ticks between them."""
_SHORTEST = 1e-6


def duration(seconds: float) -> str:
    """In words: `0.5 ms`, `20 ms`, `1 s`."""
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


def raster(durations: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten, from at or below the least of `durations` to at or above the greatest; at least
    two."""
    least, greatest = max(_SHORTEST, min(durations)), max(_SHORTEST, *durations)
    exponents = range(math.floor(math.log10(least)) - 1, math.ceil(math.log10(greatest)) + 2)
    every = [step * 10.0**exponent for exponent in exponents for step in _STEPS]
    first = max(index for index, tick in enumerate(every) if tick <= least)
    last = min(index for index, tick in enumerate(every) if tick >= greatest)
    return every[first : max(last, first + 1) + 1]


def ticks(grid: Sequence[float]) -> list[float]:
    """What of a raster is named: powers of ten, where enough are among it, else all of it."""
    tens = [tick for tick in grid if math.isclose(tick, 10.0 ** round(math.log10(tick)))]
    return tens if len(tens) >= _ENOUGH else list(grid)
