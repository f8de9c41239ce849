"""The load generator: so many at a time, or so many per second; nothing lost, errors counted."""

import asyncio

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.client.load import closed_loop, open_loop, percentile
from fairlead.client.openai import ApiError, Completion, OpenAIClient
from fairlead.testing.clock import run_in_virtual_time
from fairlead.testing.fake_engine import FakeEngine
from fairlead.testing.gateways import make_pool, running_gateway


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_percentiles_are_numpys(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(float(numpy.percentile(values, percent)), abs=1e-6)


def test_the_percentile_of_nothing_is_zero() -> None:
    assert percentile([], 50) == 0.0


def test_a_closed_loop_keeps_so_many_in_flight_and_sends_everything() -> None:
    running = most = 0

    async def request() -> Completion:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(2.0)
        running -= 1
        return Completion(num_completion_tokens=5, replica="a", ttft_seconds=0.5, duration_seconds=2.0)

    report = run_in_virtual_time(closed_loop([request] * 10, concurrency=3))
    assert (len(report.completions), most, report.seconds) == (10, 3, 8.0)
    assert report.by_replica == {"a": 10}
    assert report.output_tokens_per_second == 50 / 8
    assert (report.ttft_percentile(50), report.duration_percentile(99)) == (0.5, 2.0)


def test_an_open_loop_sends_at_its_rate_whether_or_not_answers_come() -> None:
    starts: list[float] = []

    async def request() -> Completion:
        starts.append(asyncio.get_running_loop().time())
        await asyncio.sleep(1000.0)
        return Completion()

    report = run_in_virtual_time(open_loop([request] * 500, rate=10.0))
    assert len(report.completions) == 500
    assert starts == sorted(starts)
    assert starts[-1] == pytest.approx(50.0, rel=0.2)


def test_errors_are_counted_and_do_not_stop_the_rest() -> None:
    async def fails() -> Completion:
        raise ApiError(429, "full")

    async def works() -> Completion:
        return Completion()

    report = run_in_virtual_time(closed_loop([fails, works, fails], concurrency=1))
    assert ([error.status for error in report.errors], len(report.completions)) == ([429, 429], 1)


async def test_fifty_at_once_through_a_gateway_reach_both_replicas() -> None:
    async with FakeEngine("a") as first, FakeEngine("b") as second:
        pool = make_pool([first.replica(), second.replica()])
        async with running_gateway(pool) as (_, _, url), OpenAIClient(f"{url}/v1") as client:

            async def request() -> Completion:
                return await client.chat("fake", [{"role": "user", "content": "hi"}])

            report = await closed_loop([request] * 50, concurrency=50)
    assert report.errors == []
    assert report.by_replica == {"a": 25, "b": 25}
