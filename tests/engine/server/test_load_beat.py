"""When load lines come, on a clock that only tests move: a steady beat, and at once at the edges of being full."""

from collections.abc import Callable
from typing import Any

import pytest

from fairlead_engine.host.engine_stream import BUSY_SECONDS, IDLE_SECONDS, EngineStream
from fairlead_engine.host.lifecycle import Lifecycle
from fairlead_engine_testing import ScriptedEngine


class FakeLoop:
    """Stands in for the event loop where only its time and its timers are used."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> "FakeTimer":
        self.timers.append(FakeTimer(when, callback))
        return self.timers[-1]

    def advance(self, seconds: float) -> None:
        end = self.now + seconds + 1e-9
        while due := [timer for timer in self.timers if timer.callback is not None and timer.at <= end]:
            timer = min(due, key=lambda each: each.at)
            self.timers.remove(timer)
            self.now = max(self.now, timer.at)
            assert timer.callback is not None
            timer.callback()
        self.now = end


class FakeTimer:
    """What `FakeLoop.call_at` returns. Like uvloop's where the time has come already, it does not say when it is."""

    def __init__(self, at: float, callback: Callable[[], None]) -> None:
        self.at = at
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> FakeLoop:
    fake = FakeLoop()
    monkeypatch.setattr("fairlead_engine.host.engine_stream.asyncio.get_running_loop", lambda: fake)
    return fake


def make_stream() -> tuple[ScriptedEngine, EngineStream]:
    engine = ScriptedEngine()
    engine.alive = True
    stream = EngineStream(engine, Lifecycle())
    engine.listen(stream)
    return engine, stream


async def count(follower: Any) -> int:
    """Lines that have come since the last call."""
    follower.put(b"")
    taken: bytes = await follower.take()
    return taken.count(b"\n")


async def test_the_load_comes_in_a_beat_that_is_quick_while_busy(loop: FakeLoop) -> None:
    engine, stream = make_stream()
    with stream.followed(stream.mirror.epoch, 0) as follower:
        assert await count(follower) == 1
        loop.advance(3.5 * IDLE_SECONDS)
        assert await count(follower) == 3
        engine.change_load(running=1)
        loop.advance(0.0)
        assert await count(follower) == 1, "the last line is older than a busy beat"
        loop.advance(5 * BUSY_SECONDS)
        assert await count(follower) == 5
        engine.change_load(running=0)
        loop.advance(BUSY_SECONDS + 3 * IDLE_SECONDS)
        assert await count(follower) == 4


async def test_the_beat_quickens_as_soon_as_a_request_is_on_its_way(loop: FakeLoop) -> None:
    engine, stream = make_stream()
    with stream.followed(stream.mirror.epoch, 0) as follower:
        loop.advance(0.05)
        await count(follower)
        engine.step_age_seconds = 0.001
        with stream.dispatches.arrived("gw:1") as dispatch:
            stream.sent(1, dispatch)
            loop.advance(BUSY_SECONDS)
        assert await count(follower) == 1


async def test_becoming_full_and_not_full_is_told_at_once(loop: FakeLoop) -> None:
    engine, stream = make_stream()
    with stream.followed(stream.mirror.epoch, 0) as follower:
        await count(follower)
        for changes, num_lines in [
            ({"running": 7}, 0),
            ({"waiting": 1}, 1),
            ({"waiting": 3}, 0),
            ({"waiting": 0}, 1),
            ({"running": 6}, 0),
            ({"max_num_seqs": 6}, 1),
        ]:
            engine.change_load(**changes)
            assert await count(follower) == num_lines, changes


async def test_without_followers_there_is_no_beat(loop: FakeLoop) -> None:
    engine, stream = make_stream()
    engine.change_load(running=8)
    assert loop.timers == []
    with stream.followed(stream.mirror.epoch, 0):
        assert len(loop.timers) == 1
    loop.advance(2 * IDLE_SECONDS)
    assert loop.timers == []
