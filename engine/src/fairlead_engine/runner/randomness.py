"""Random numbers without state: each is a function of who draws and at which output position.

So a seeded request draws the same numbers whatever runs beside it, after a preemption, and on another replica.
"""

import struct
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

_BITS = 52
"""A uniform keeps this many bits: exact in a float, and its product with a sum never rounds up to the sum."""


def draw_key(seed: int | None, engine_seed: int, request_id: str) -> int:
    """Who draws, in 64 bits: with a seed that seed alone; without one the engine's seed and the request's id."""
    if seed is not None:
        digest = blake2b(struct.pack("<q", seed), digest_size=8, person=b"request")
    else:
        digest = blake2b(struct.pack("<q", engine_seed), digest_size=8, person=b"engine")
        digest.update(request_id.encode())
    return int.from_bytes(digest.digest(), "little")


def uniforms(keys: list[int], positions: list[int]) -> npt.NDArray[np.float64]:
    """For each key the number in [0, 1) that decides the output token at that position, [keys].

    The counter-based generator SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
    """
    return _drawn(np.array(keys, np.uint64), np.array(positions, np.uint64))


def other_uniforms(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) that the given ones decide, [rows], where a draw needs one more."""
    return _drawn(numbers.view(np.uint64), np.uint64(0))


def _drawn(keys: npt.NDArray[np.uint64], counters: npt.NDArray[np.uint64] | np.uint64) -> npt.NDArray[np.float64]:
    state = keys + (counters + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    drawn: npt.NDArray[np.float64] = (state >> np.uint64(64 - _BITS)).astype(np.float64) * 2.0**-_BITS
    return drawn
