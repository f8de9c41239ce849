"""Who waits, for how long, and in which order: in virtual time, without sockets."""

import asyncio

import pytest

from fairlead.api.llmdeployment import RoutingPolicy
from fairlead.routing.replica import Limits
from fairlead_testing.clock import in_virtual_time
from fairlead_testing.model_pools import FakeReader, Room, pool_of, replica, request


@in_virtual_time
async def test_first_come_first_served() -> None:
    room = Room(pool_of(replica()))
    for name in "abcd":
        room.ask(name, seconds=2.0)
    assert await room.end() == [("a", "a", 0.0), ("b", "a", 2.0), ("c", "a", 4.0), ("d", "a", 6.0)]


@in_virtual_time
async def test_who_waits_longer_than_max_queue_time_is_refused_on_time() -> None:
    room = Room(pool_of(replica(), max_queue_time=5.0))
    room.ask("long", seconds=60.0)
    await asyncio.sleep(1.0)
    room.ask("late")
    assert await room.end() == [("long", "a", 0.0), ("late", "queue_timeout", 6.0)]


@in_virtual_time
async def test_the_queue_is_bounded_in_requests_and_in_bytes() -> None:
    room = Room(pool_of(replica()), max_queue=2, max_body_bytes=100, max_queue_bytes=100)
    room.ask("running", seconds=1.0)
    await asyncio.sleep(0)
    room.ask("large", num_bytes=90)
    await asyncio.sleep(0)
    room.ask("too large", num_bytes=20)
    room.ask("small", num_bytes=5)
    await asyncio.sleep(0)
    room.ask("too many", num_bytes=1)
    outcomes = {name: outcome for name, outcome, _ in await room.end()}
    assert outcomes == {
        "running": "a",
        "large": "a",
        "too large": "queue_full",
        "small": "a",
        "too many": "queue_full",
    }


@in_virtual_time
async def test_deleting_the_model_refuses_who_waits() -> None:
    room = Room(pool_of())
    room.ask("waiting")
    await asyncio.sleep(1.0)
    room.model_pool.remove()
    room.ask("requeued")
    assert await room.end() == [("waiting", "model_removed", 1.0), ("requeued", "no_replicas", 1.0)]


@in_virtual_time
async def test_whoever_is_requeued_goes_before_those_who_came_later_though_they_fill_the_queue() -> None:
    room = Room(pool_of(replica("a", None)), max_queue=1)
    model_pool = room.model_pool
    ticket = model_pool.ticket(request("requeued"))
    async with model_pool.admit(ticket) as attempt:
        attempt.failed(None)
        room.ask("later")
        await asyncio.sleep(0)
        assert len(model_pool.queue) == 1
    async with model_pool.admit(ticket):
        room.log.append(("requeued", "a", model_pool.now()))
    log = await room.end()
    assert [name for name, _, _ in log] == ["requeued", "later"]


@pytest.mark.parametrize("moment", [0.0, 0.5, 1.0])
@in_virtual_time
async def test_a_client_that_leaves_at_any_moment_leaves_nothing_behind(moment: float) -> None:
    room = Room(pool_of(replica()))
    room.ask("running", seconds=1.0)
    leaver = room.ask("leaver", seconds=1.0)
    room.ask("last")
    await asyncio.sleep(moment)
    leaver.cancel()
    log = await room.end()
    assert [entry for entry in log if entry[0] == "last"] == [("last", "a", 1.0)]


@in_virtual_time
async def test_cancelling_in_the_very_moment_of_the_grant_gives_the_slot_back() -> None:
    room = Room(pool_of())
    leaver = room.ask("leaver")
    room.ask("next")
    await asyncio.sleep(1.0)
    room.model_pool.update(pool_of(replica()))  # grants the leaver, whose task has not run yet
    leaver.cancel()
    assert await room.end() == [("next", "a", 1.0)]


@in_virtual_time
async def test_changing_the_policy_takes_effect_without_losing_anybody() -> None:
    room = Room(pool_of(replica("a", None), replica("b", None)))
    for name in "1234":
        room.ask(name, seconds=10.0)
    await asyncio.sleep(1.0)
    room.model_pool.update(pool_of(replica("a", None), replica("b", None), policy=RoutingPolicy.ROUND_ROBIN))
    assert type(room.model_pool.router.policy).__name__ == "RoundRobin"
    assert room.model_pool.router.in_flight.total == 4
    await room.end()


@in_virtual_time
async def test_strictly_first_come_first_served_though_a_shorter_prompt_would_fit() -> None:
    reader = FakeReader("x")
    reader.num_tokens = {"running": 16, "long": 64, "short": 1}
    limits = Limits(max_num_seqs=4, max_num_queued_tokens=64)
    room = Room(pool_of(replica(limits=limits, digest="x")), reader)
    room.tell("a", max_num_seqs=4)
    room.ask("running", seconds=2.0)
    await asyncio.sleep(0.5)
    room.tell("a", running=1, kv_blocks_free=3, max_num_seqs=4, seen={"gateway": 1})
    room.ask("long", seconds=1.0)
    await asyncio.sleep(0)
    room.ask("short")
    log = await room.end()
    assert [name for name, _, _ in log] == ["running", "long", "short"]
    assert log[1][2] == pytest.approx(2.0), "the empty replica takes any prompt"


@in_virtual_time
async def test_the_lowest_priority_goes_first_and_equals_in_the_order_they_came() -> None:
    room = Room(pool_of(replica()))
    room.tell("a")
    room.ask("running", seconds=1.0)
    await asyncio.sleep(0.1)
    for name, priority in (("late", 5), ("first", 0), ("second", 0), ("urgent", -3)):
        room.ask(name, seconds=1.0, priority=priority)
        await asyncio.sleep(0.1)
    assert [name for name, *_ in await room.end()] == ["running", "urgent", "first", "second", "late"]
