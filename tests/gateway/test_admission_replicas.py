"""Replicas that come, go, drain, fail and tell their load, and what that means for who waits: in virtual time."""

import asyncio
from typing import Any

import pytest

from fairlead.fleet.directory import Outlook
from fairlead.gateway.openai.errors import OpenAIError
from fairlead.routing.books import Failure
from fairlead_testing.clock import in_virtual_time
from fairlead_testing.gateways import SCALED_TO_ZERO, make_pool
from fairlead_testing.model_pools import ONE, FakeReader, Room, load, pool_of, replica, request


@in_virtual_time
async def test_requests_are_held_through_a_cold_start_and_go_in_order() -> None:
    room = Room(pool_of())
    room.ask("a")
    room.ask("b")
    await asyncio.sleep(300.0)
    assert room.num_urgent == 2
    room.model_pool.update(pool_of(replica()))
    assert await room.end() == [("a", "a", 300.0), ("b", "a", 300.0)]


@in_virtual_time
async def test_after_a_cold_start_the_whole_max_queue_time_is_still_there() -> None:
    room = Room(pool_of(max_queue_time=5.0))
    room.ask("a", seconds=60.0)
    room.ask("b")
    await asyncio.sleep(100.0)
    room.model_pool.update(pool_of(replica(), max_queue_time=5.0))
    assert await room.end() == [("a", "a", 100.0), ("b", "queue_timeout", 105.0)]


@in_virtual_time
async def test_when_the_last_replica_leaves_who_waits_is_held_for_the_next() -> None:
    room = Room(pool_of(replica(), max_queue_time=5.0))
    room.ask("running", seconds=1.0)
    room.ask("waiting")
    await asyncio.sleep(0.5)
    room.model_pool.update(pool_of(max_queue_time=5.0))
    await asyncio.sleep(50.0)
    room.model_pool.update(pool_of(replica("b"), max_queue_time=5.0))
    assert await room.end() == [("running", "a", 0.0), ("waiting", "b", 50.5)]


@in_virtual_time
async def test_who_waits_when_the_last_replica_leaves_is_told_of_as_one_who_comes_then() -> None:
    room = Room(pool_of(replica()))
    room.ask("running", seconds=1.0)
    room.ask("waiting")
    await asyncio.sleep(0.5)
    assert room.num_urgent == 1, "a line began"
    room.model_pool.update(pool_of())
    assert room.num_urgent == 2
    room.model_pool.update(pool_of(replica("b")))
    await room.end()


@in_virtual_time
async def test_scaling_to_zero_refuses_who_waits_at_once() -> None:
    room = Room(pool_of())
    room.ask("waiting")
    await asyncio.sleep(1.0)
    room.model_pool.update(make_pool([], outlook=SCALED_TO_ZERO))
    room.ask("new")
    assert await room.end() == [("waiting", "no_replicas", 1.0), ("new", "no_replicas", 1.0)]


@in_virtual_time
async def test_a_new_replica_lets_the_head_go_in_the_same_moment() -> None:
    room = Room(pool_of(replica("a")))
    room.ask("running", seconds=60.0)
    room.ask("waiting")
    await asyncio.sleep(3.0)
    room.model_pool.update(pool_of(replica("a"), replica("b")))
    assert ("waiting", "b", 3.0) in await room.end()


@pytest.mark.parametrize(("max_queue_time", "outcome", "seconds"), [(0.3, "replicas_failing", 0.3), (30.0, "a", 0.5)])
@in_virtual_time
async def test_a_paused_replica_is_tried_again_by_time_alone_and_a_pool_without_others_is_not_full(
    max_queue_time: float, outcome: str, seconds: float
) -> None:
    room = Room(pool_of(replica(), max_queue_time=max_queue_time))
    async with room.model_pool.admit(room.model_pool.ticket(request("first"))) as attempt:
        attempt.failed(Failure.UNREACHABLE)
    room.ask("next")
    assert await room.end() == [("next", outcome, seconds)]


@in_virtual_time
async def test_a_new_line_of_a_batch_does_not_wait_for_the_end_of_a_pause_that_others_failures_made_long() -> None:
    room = Room(pool_of(replica(limits=None)))
    pool, now = room.model_pool, 0.0
    for _ in range(6):
        async with pool.admit(pool.ticket(request("failing"))) as attempt:
            assert (now := pool.now()) < 16.0
            attempt.failed(Failure.UNAVAILABLE)
    assert pool.router.next_change(now) == now + 2.0, "others wait for 15 s"
    room.ask("urgent")
    line = request("line")
    line.is_spare = True
    async with pool.admit(pool.ticket(line)) as attempt:
        assert pool.now() == now + 2.0
        attempt.failed(Failure.UNAVAILABLE)
    async with pool.admit(pool.ticket(line)) as attempt:
        assert pool.now() == now + 4.0
        attempt.accepted()
    assert await room.end() == [("urgent", "a", now + 4.0)], "the line found that it serves again"


@in_virtual_time
async def test_lines_of_batches_run_alone_on_a_replica_without_loads_until_nobody_has_asked_for_a_minute() -> None:
    """A second begins when the first has taken 3 % of the time."""
    room = Room(pool_of(replica()))
    room.ask("urgent")
    await asyncio.sleep(1.0)
    line = request("line")
    line.is_spare = True
    for begins, lasts in ((1.0, 0.3), (11.3, 3.0), (60.0, 1.0), (61.0, 1.0)):
        async with room.model_pool.admit(room.model_pool.ticket(line)):
            assert room.model_pool.now() == pytest.approx(begins)
            await asyncio.sleep(lasts)
    await room.end()


@in_virtual_time
async def test_a_replica_is_left_alone_until_it_has_told_what_it_is_and_how_loaded() -> None:
    room = Room(pool_of(), FakeReader("x"))
    room.ask("a", seconds=9.0)
    room.ask("b")
    await asyncio.sleep(1.0)
    room.model_pool.update(pool_of(replica(digest="", limits=None)))
    assert room.model_pool.num_ready == 0
    await asyncio.sleep(0.5)
    room.model_pool.update(pool_of(replica(digest="x")))
    assert room.model_pool.num_ready == 0, "others may have filled it already"
    await asyncio.sleep(0.25)
    room.tell("a")
    assert (await room.end())[0] == ("a", "a", 1.75)
    assert ("a", "x") in room.reader.read_log


@pytest.mark.parametrize("tells_what_it_is", [True, False])
@in_virtual_time
async def test_a_replica_that_tells_no_load_is_used_without(tells_what_it_is: bool) -> None:
    room = Room(pool_of(replica(digest="", limits=None)), FakeReader("x"))
    room.ask("a")
    await asyncio.sleep(0.5)
    if tells_what_it_is:
        room.model_pool.update(pool_of(replica(digest="x")))
    assert await room.end() == [("a", "a", 2.0)]


@in_virtual_time
async def test_a_known_replica_whose_stream_is_lost_is_used_on() -> None:
    room = Room(pool_of(replica(digest="", limits=None)), FakeReader("x"))
    room.model_pool.update(pool_of(replica(digest="x")))
    room.tell("a")
    await asyncio.sleep(10.0)
    room.datastore.lost("a")
    room.model_pool.load_changed("a", None)
    room.model_pool.update(pool_of(replica(digest="x"), replica("b", digest="", limits=None)))
    room.ask("a")
    assert await room.end() == [("a", "a", 10.0)]


@in_virtual_time
async def test_a_load_line_that_shows_room_lets_the_head_go() -> None:
    room = Room(pool_of(replica()))
    room.tell("a", running=1, kv_blocks_free=0)
    room.ask("a")
    await asyncio.sleep(1.0)
    room.tell("a")
    assert await room.end() == [("a", "a", pytest.approx(1.0))]


@in_virtual_time
async def test_a_replica_that_drains_is_not_ready_so_the_cold_start_limit_holds() -> None:
    room = Room(pool_of(replica(), max_queue_time=5.0, cold_start_timeout=100.0))
    room.tell("a", draining=True)
    assert room.model_pool.num_ready == 0
    room.ask("a")
    for _ in range(40):
        await asyncio.sleep(1.0)
        room.tell("a", draining=True)
    room.datastore.lost("a")  # it has finished, and ends
    room.model_pool.load_changed("a", None)
    await asyncio.sleep(10.0)
    assert room.num_urgent == 1
    room.model_pool.update(pool_of(replica("b"), max_queue_time=5.0, cold_start_timeout=100.0))
    assert await room.end() == [("a", "b", 50.0)]


@in_virtual_time
async def test_replicas_that_come_and_go_hold_nobody_for_ever() -> None:
    limits = {"max_queue_time": 5.0, "cold_start_timeout": 20.0}
    room = Room(pool_of(**limits))
    waiting = room.ask("a")
    while not waiting.done():
        room.datastore.loaded("a", load(room.model_pool.now(), running=1))
        room.model_pool.update(pool_of(replica(), **limits))
        await asyncio.sleep(2.0)
        room.model_pool.update(pool_of(**limits))
        await asyncio.sleep(2.0)
    ((name, outcome, seconds),) = await room.end()
    assert (name, seconds) == ("a", 25.0)
    assert outcome in ("cold_start_timeout", "queue_timeout")


@in_virtual_time
async def test_a_model_that_cannot_start_says_why_when_the_time_is_over_and_not_before() -> None:
    room = Room(pool_of(cold_start_timeout=100.0))
    error: list[OpenAIError] = []

    async def ask() -> None:
        ticket = room.model_pool.ticket(request("a"))
        try:
            async with room.model_pool.admit(ticket):
                raise AssertionError("it was admitted")
        except OpenAIError as refusal:
            error.append(refusal)

    asking = asyncio.create_task(ask())
    for seconds in (10.0, 80.0):
        await asyncio.sleep(seconds)
        outlook = Outlook(True, f"The engine ends at start, {seconds:g}.")
        room.model_pool.update(make_pool([], outlook=outlook, max_queue_time=30.0, cold_start_timeout=100.0))
        assert not error
    await asking
    assert room.model_pool.now() == 100.0
    assert (error[0].status, error[0].code) == (503, "cold_start_timeout")
    assert error[0].message.endswith("within 100 seconds. The engine ends at start, 80.")
    assert dict(error[0].headers)[b"retry-after"] == b"10"


@in_virtual_time
async def test_many_load_lines_cause_few_looks_at_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(pool_of(replica(limits=ONE)))
    room.ask("running", seconds=2.0)
    room.ask("waiting")
    await asyncio.sleep(0.5)
    num_routed = 0
    route = room.model_pool.router.route

    def count(*arguments: Any, **named: Any) -> Any:
        nonlocal num_routed
        num_routed += 1
        return route(*arguments, **named)

    monkeypatch.setattr(room.model_pool.router, "route", count)
    for _ in range(100):
        room.tell("a", running=1, kv_blocks_free=0, seen={"gateway": 1})
    await asyncio.sleep(0.1)
    assert 1 <= num_routed <= 2
    await room.end()
