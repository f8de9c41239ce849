"""WorkQueue: one call at a time per key, coalescing, back-off. Time is virtual."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.controller.worker import LAST_BACKOFF_SECONDS, Key, WorkQueue
from fairlead_testing.clock import run_in_virtual_time

A, B = ("ns", "a"), ("ns", "b")


class Recorder:
    """Counts calls, takes a second for each, and notices when two for one key overlap."""

    def __init__(self, outcome: Callable[[Key], float | None] = lambda key: None) -> None:
        self.calls: list[tuple[float, Key]] = []
        self.running: set[Key] = set()
        self.outcome = outcome

    async def __call__(self, key: Key) -> float | None:
        assert key not in self.running
        self.running.add(key)
        self.calls.append((asyncio.get_running_loop().time(), key))
        await asyncio.sleep(1)
        self.running.remove(key)
        return self.outcome(key)

    def times(self, key: Key) -> list[float]:
        return [time for time, called in self.calls if called == key]


def run(recorder: Recorder, script: Callable[[WorkQueue], Awaitable[None]], num_workers: int = 2) -> None:
    async def main() -> None:
        queue = WorkQueue(recorder, num_workers=num_workers)
        task = asyncio.create_task(queue.run())
        await script(queue)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_in_virtual_time(main())


def test_keys_put_in_while_waiting_are_worked_on_once() -> None:
    recorder = Recorder()

    async def script(queue: WorkQueue) -> None:
        for _ in range(5):
            queue.add(A)
        assert queue.num_waiting == 1
        await asyncio.sleep(10)

    run(recorder, script)
    assert recorder.times(A) == [0]


def test_a_key_put_in_while_it_is_worked_on_is_worked_on_once_more() -> None:
    recorder = Recorder()

    async def script(queue: WorkQueue) -> None:
        queue.add(A)
        await asyncio.sleep(0.5)
        for _ in range(5):
            queue.add(A)
        await asyncio.sleep(10)

    run(recorder, script)
    assert recorder.times(A) == [0, 1]


def test_different_keys_are_worked_on_side_by_side_up_to_the_number_of_workers() -> None:
    recorder = Recorder()

    async def script(queue: WorkQueue) -> None:
        queue.add_all([A, B, ("ns", "c")])
        await asyncio.sleep(10)

    run(recorder, script)
    assert [time for time, _ in recorder.calls] == [0, 0, 1]


def test_a_call_may_ask_to_be_repeated_and_an_event_comes_before_it() -> None:
    recorder = Recorder(lambda key: 100.0)

    async def script(queue: WorkQueue) -> None:
        queue.add(A)
        await asyncio.sleep(50)
        queue.add(A)
        await asyncio.sleep(102)

    run(recorder, script)
    assert recorder.times(A) == [0, 50, 151]


def test_the_earliest_of_several_wishes_counts() -> None:
    recorder = Recorder()

    async def script(queue: WorkQueue) -> None:
        queue.add_after(A, 50)
        queue.add_after(A, 10)
        queue.add_after(A, 30)
        await asyncio.sleep(100)

    run(recorder, script)
    assert recorder.times(A) == [10]


def test_failures_are_repeated_with_growing_pauses_and_forgotten_after_a_success() -> None:
    failing = True

    def outcome(key: Key) -> None:
        if failing:
            raise RuntimeError("not yet")

    recorder = Recorder(outcome)

    async def script(queue: WorkQueue) -> None:
        nonlocal failing
        queue.add(A)
        await asyncio.sleep(600)
        failing = False
        await asyncio.sleep(60)
        queue.add(A)
        await asyncio.sleep(0.1)

    run(recorder, script)
    times = recorder.times(A)
    pauses = [later - earlier - 1 for earlier, later in pairwise(times)]
    assert 0.4 <= pauses[0] <= 0.6
    assert 0.8 <= pauses[1] <= 1.2
    assert max(pauses[:-1]) <= LAST_BACKOFF_SECONDS * 1.2
    assert len(times) < 40
    assert times[-1] == 660


def test_events_do_not_shorten_the_pause_after_a_failure() -> None:
    def outcome(key: Key) -> None:
        raise RuntimeError("never")

    recorder = Recorder(outcome)

    async def script(queue: WorkQueue) -> None:
        for _ in range(300):
            queue.add(A)
            await asyncio.sleep(0.1)

    run(recorder, script)
    assert len(recorder.calls) < 8


def test_a_failing_key_does_not_hold_up_the_others() -> None:
    def outcome(key: Key) -> None:
        if key == A:
            raise RuntimeError("never")

    recorder = Recorder(outcome)

    async def script(queue: WorkQueue) -> None:
        queue.add(A)
        for _ in range(10):
            queue.add(B)
            await asyncio.sleep(2)

    run(recorder, script, num_workers=1)
    assert len(recorder.times(B)) == 10


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from([A, B]), st.floats(0, 3)), max_size=20))
def test_nothing_that_was_put_in_is_forgotten(script: list[tuple[Key, float]]) -> None:
    recorder = Recorder()
    added: dict[Key, float] = {}

    async def play(queue: WorkQueue) -> None:
        for key, pause in script:
            queue.add(key)
            added[key] = asyncio.get_running_loop().time()
            await asyncio.sleep(pause)
        await asyncio.sleep(10)

    run(recorder, play)
    for key, time in added.items():
        assert max(recorder.times(key)) >= time
