"""Random numbers without state: each is a function of who draws and at which output position.

So a seeded request draws the same numbers whatever runs beside it, after a preemption, and on another replica.
"""

import struct
from hashlib import blake2b

_BITS = 52
"""A uniform keeps this many bits: exact in a float, and its product with a sum never rounds up to the sum."""


def uniform(seed: int | None, position: int, engine_seed: int, request_id: str) -> float:
    """The number in [0, 1) that decides the output token at `position` of a request.

    With a seed it depends on seed and position alone; without one on the engine's seed and the request's id.
    """
    if seed is not None:
        digest = blake2b(struct.pack("<qq", seed, position), digest_size=8, person=b"request")
    else:
        digest = blake2b(struct.pack("<qq", engine_seed, position), digest_size=8, person=b"engine")
        digest.update(request_id.encode())
    bits = int.from_bytes(digest.digest(), "little") >> (64 - _BITS)
    return bits * 2.0**-_BITS
