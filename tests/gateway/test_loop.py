"""The gateway's event loop: a fine clock that timers agree with."""

import asyncio
import time

from fairlead.gateway.server import PreciseLoop


def test_the_clock_is_finer_than_a_millisecond_and_timers_follow_it() -> None:
    async def story() -> tuple[list[float], float, float]:
        loop = asyncio.get_running_loop()
        before = time.monotonic()
        times = [loop.time() for _ in range(1000)]
        assert before <= times[0] <= times[-1] <= time.monotonic()
        due = loop.time() + 0.02
        came = loop.create_future()
        loop.call_at(due, lambda: came.set_result(loop.time()))
        return times, due, await came

    with asyncio.Runner(loop_factory=PreciseLoop) as runner:
        times, due, came = runner.run(story())
    assert len({round(each * 1e6) for each in times}) > 20
    assert came >= due - 0.001, "uvloop's timers are whole milliseconds"
