"""The gateway's event loop: uvloop with a clock that is fine enough to measure first tokens by.

uvloop's own `time()` counts whole milliseconds, and is the time at which its present round of callbacks began. A first
token may take ten milliseconds, and what is learnt from it decides where requests go.
"""

import time

import uvloop


class PreciseLoop(uvloop.Loop):
    """uvloop whose `time()` is `time.monotonic()`; timers count from the same clock."""

    def time(self) -> float:
        return time.monotonic()
