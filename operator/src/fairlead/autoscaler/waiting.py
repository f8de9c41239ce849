"""Waiting for a slot: the requests that will be there when a replica asked for now could be ready, and how many chance
lets wait in the long run. Pure arithmetic on numbers, no targets.

`held` is the time for which a request holds its slot while all are taken (D of `prediction.py`).
"""

import math

SPREAD = 0.7
"""Half the sum of the squared variations of arrivals (1: independent) and of the times that slots are held (0.4)."""


def after(seconds: float, *, inside: float, per_second: float, slots: float, held: float) -> float:
    """Requests that wait or run after so many seconds, of the `inside` now. While slots are free, requests leave after
    `held` seconds on average; else as fast as slots come free."""
    if inside > slots:
        growth = per_second - slots / held
        if inside + growth * seconds >= slots:
            return inside + growth * seconds
        seconds += (inside - slots) / growth  # from here on slots are free
        inside = slots
    end = per_second * held
    left = end + (inside - end) * math.exp(-seconds / held)
    if left <= slots:
        return left
    full = held * math.log((end - inside) / (end - slots))  # when the last slot is taken
    return slots + (per_second - slots / held) * (seconds - full)


def share_waiting(seconds: float, *, per_second: float, slots: float, held: float) -> float:
    """The share of requests that wait longer for a slot in the long run, if they come independently of one another
    (Erlang C, by Halfin's and Whitt's approximation); 1 = more come than leave."""
    free = slots - per_second * held
    if free <= 0.0:
        return 1.0
    safety = free / math.sqrt(slots)
    density = math.exp(-safety * safety / 2.0) / math.sqrt(2.0 * math.pi)
    below = (1.0 + math.erf(safety / math.sqrt(2.0))) / 2.0
    return density / (density + safety * below) * math.exp(-seconds * free / (held * SPREAD))
