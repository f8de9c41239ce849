"""The short form of `make soak`: a few minutes of everything at once, and the books afterwards."""

import os
from collections.abc import Callable

import pytest
from homes.local import LocalFleet
from soak.run import NAME, Soak, SoakOptions

pytestmark = [
    pytest.mark.long,
    pytest.mark.local_only(reason="it reads the memory of the fleet's processes and kills them"),
    pytest.mark.timeout(900),
]

SECONDS = 120.0


def test_the_books_are_right_after_everything_at_once(fleet: LocalFleet, say: Callable[[str], None]) -> None:
    seed = int(os.environ.get("FAIRLEAD_SOAK_SEED", "1"))
    try:
        report = Soak(fleet, SoakOptions(seconds=SECONDS, seed=seed, num_clients=12, burst_seconds=15.0), say).play()
    finally:
        fleet.delete("llm", NAME)
    say(str(report))
    assert report.problems == []
    assert sum(report.disturbances.values()) >= 1
