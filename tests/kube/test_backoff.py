"""Backoff: pauses grow to a bound, differ between followers, and begin anew when it went well."""

import pytest

from fairlead.kube.backoff import Backoff


class Slept(list[float]):
    """The pauses that were made."""

    async def sleep(self, seconds: float) -> None:
        self.append(seconds)


async def test_pauses_double_up_to_a_bound_and_begin_anew() -> None:
    slept = Slept()
    backoff = Backoff(1.0, 5.0, spread=0.0, sleep=slept.sleep)
    for _ in range(4):
        await backoff.pause()
    backoff.reset()
    await backoff.pause()
    await backoff.wait(60.0)
    assert slept == [1.0, 2.0, 4.0, 5.0, 1.0, 60.0]
    assert backoff.seconds == 2.0


async def test_no_two_pauses_are_alike() -> None:
    slept = Slept()
    backoff = Backoff(10.0, 10.0, spread=0.5, sleep=slept.sleep)
    for _ in range(20):
        await backoff.pause()
    assert len(set(slept)) > 10
    assert all(5.0 <= seconds <= 15.0 for seconds in slept)
    assert sum(slept) / len(slept) == pytest.approx(10.0, abs=5.0)
