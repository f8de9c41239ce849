"""Who waits, for how long, and in which order: in virtual time, without sockets."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from fairlead.fleet.pool import Pool
from fairlead.gateway.admission import ModelPool
from fairlead.gateway.openai_errors import OpenAIError
from fairlead.gateway.settings import GatewaySettings
from fairlead.routing.health import Failure
from fairlead.routing.replica import Limits, Replica
from fairlead.testing.clock import run_in_virtual_time
from fairlead.testing.gateways import SCALED_TO_ZERO, make_pool

ONE = Limits(max_num_seqs=1, max_num_waiting=0)


def replica(uid: str = "a", limits: Limits | None = ONE) -> Replica:
    return Replica(uid=uid, name=uid, host="127.0.0.1", port=8000, limits=limits)


def pool_of(*replicas: Replica, **model: Any) -> Pool:
    return make_pool(replicas, **{"max_queue_time": 30.0, "cold_start_timeout": 600.0, **model})


class Room:
    """A ModelPool and what became of its requests: (name, outcome, virtual seconds)."""

    def __init__(self, pool: Pool, **settings: Any) -> None:
        self.model_pool = ModelPool(pool, GatewaySettings(**settings))
        self.log: list[tuple[str, str, float]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def ask(self, name: str, *, seconds: float = 0.0, num_bytes: int = 1) -> asyncio.Task[None]:
        """Asks for a turn and keeps it for `seconds`."""
        task = asyncio.create_task(self._ask(name, seconds, num_bytes))
        self.tasks.append(task)
        return task

    async def _ask(self, name: str, seconds: float, num_bytes: int) -> None:
        try:
            async with self.model_pool.admit(self.model_pool.ticket(num_bytes)) as turn:
                self.log.append((name, turn.decision.replica.uid, self.model_pool.now()))
                await asyncio.sleep(seconds)
                turn.accepted()
        except OpenAIError as error:
            self.log.append((name, str(error.code), self.model_pool.now()))

    async def end(self) -> list[tuple[str, str, float]]:
        """Everything that happened, after everybody is done; nothing may be left behind."""
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.model_pool.queue.check()
        self.model_pool.router.in_flight.check()
        assert len(self.model_pool.queue) == 0
        assert self.model_pool.router.in_flight.total == 0
        assert not self.model_pool._waiting
        return self.log


def play(story: Coroutine[Any, Any, None]) -> None:
    run_in_virtual_time(story)


def test_first_come_first_served() -> None:
    async def story() -> None:
        room = Room(pool_of(replica()))
        for name in "abcd":
            room.ask(name, seconds=2.0)
        assert await room.end() == [("a", "a", 0.0), ("b", "a", 2.0), ("c", "a", 4.0), ("d", "a", 6.0)]

    play(story())


def test_who_waits_longer_than_max_queue_time_is_refused_on_time() -> None:
    async def story() -> None:
        room = Room(pool_of(replica(), max_queue_time=5.0))
        room.ask("long", seconds=60.0)
        await asyncio.sleep(1.0)
        room.ask("late")
        assert await room.end() == [("long", "a", 0.0), ("late", "queue_timeout", 6.0)]

    play(story())


def test_the_queue_is_bounded_in_requests_and_in_bytes() -> None:
    async def story() -> None:
        room = Room(pool_of(replica()), max_queue=2, max_queue_bytes=100)
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

    play(story())


def test_requests_are_held_through_a_cold_start_and_go_in_order() -> None:
    async def story() -> None:
        room = Room(pool_of())
        room.ask("a")
        room.ask("b")
        await asyncio.sleep(300.0)
        room.model_pool.update(pool_of(replica()))
        assert await room.end() == [("a", "a", 300.0), ("b", "a", 300.0)]

    play(story())


def test_a_cold_start_that_never_ends_is_given_up_after_its_own_limit() -> None:
    async def story() -> None:
        room = Room(pool_of(max_queue_time=5.0, cold_start_timeout=100.0))
        room.ask("a")
        assert await room.end() == [("a", "cold_start_timeout", 100.0)]

    play(story())


def test_after_a_cold_start_the_whole_max_queue_time_is_still_there() -> None:
    async def story() -> None:
        room = Room(pool_of(max_queue_time=5.0))
        room.ask("a", seconds=60.0)
        room.ask("b")
        await asyncio.sleep(100.0)
        room.model_pool.update(pool_of(replica(), max_queue_time=5.0))
        assert await room.end() == [("a", "a", 100.0), ("b", "queue_timeout", 105.0)]

    play(story())


def test_when_the_last_replica_leaves_who_waits_is_held_for_the_next() -> None:
    async def story() -> None:
        room = Room(pool_of(replica(), max_queue_time=5.0))
        room.ask("running", seconds=1.0)
        room.ask("waiting")
        await asyncio.sleep(0.5)
        room.model_pool.update(pool_of(max_queue_time=5.0))
        await asyncio.sleep(50.0)
        room.model_pool.update(pool_of(replica("b"), max_queue_time=5.0))
        assert await room.end() == [("running", "a", 0.0), ("waiting", "b", 50.5)]

    play(story())


def test_scaling_to_zero_refuses_who_waits_at_once() -> None:
    async def story() -> None:
        room = Room(pool_of())
        room.ask("waiting")
        await asyncio.sleep(1.0)
        room.model_pool.update(make_pool([], outlook=SCALED_TO_ZERO))
        room.ask("new")
        assert await room.end() == [("waiting", "no_replicas", 1.0), ("new", "no_replicas", 1.0)]

    play(story())


def test_deleting_the_model_refuses_who_waits() -> None:
    async def story() -> None:
        room = Room(pool_of())
        room.ask("waiting")
        await asyncio.sleep(1.0)
        room.model_pool.remove()
        room.ask("requeued")
        assert await room.end() == [("waiting", "model_removed", 1.0), ("requeued", "no_replicas", 1.0)]

    play(story())


def test_a_new_replica_lets_the_head_go_in_the_same_moment() -> None:
    async def story() -> None:
        room = Room(pool_of(replica("a")))
        room.ask("running", seconds=60.0)
        room.ask("waiting")
        await asyncio.sleep(3.0)
        room.model_pool.update(pool_of(replica("a"), replica("b")))
        assert ("waiting", "b", 3.0) in await room.end()

    play(story())


def test_whoever_is_requeued_goes_before_those_who_came_later() -> None:
    async def story() -> None:
        room = Room(pool_of(replica("a", None)))
        model_pool = room.model_pool
        ticket = model_pool.ticket(1)
        async with model_pool.admit(ticket) as turn:
            turn.failed(None)
            room.ask("later")
            await asyncio.sleep(0)
            assert len(model_pool.queue) == 1
        async with model_pool.admit(ticket):
            room.log.append(("requeued", "a", model_pool.now()))
        log = await room.end()
        assert [name for name, _, _ in log] == ["requeued", "later"]

    play(story())


def test_whoever_is_requeued_is_taken_back_though_the_queue_is_full() -> None:
    async def story() -> None:
        room = Room(pool_of(replica("a", None)), max_queue=1)
        ticket = room.model_pool.ticket(1)
        async with room.model_pool.admit(ticket) as turn:
            turn.failed(None)
            room.ask("fills the queue")
            await asyncio.sleep(0)
        async with room.model_pool.admit(ticket):
            pass
        assert [outcome for _, outcome, _ in await room.end()] == ["a"]

    play(story())


def test_a_pool_whose_replicas_all_fail_says_so_instead_of_calling_itself_full() -> None:
    async def story() -> None:
        room = Room(pool_of(replica(), max_queue_time=0.3))
        async with room.model_pool.admit(room.model_pool.ticket(1)) as turn:
            turn.failed(Failure.UNREACHABLE)
        room.ask("next")
        assert await room.end() == [("next", "replicas_failing", 0.3)]

    play(story())


def test_a_paused_replica_is_tried_again_by_time_alone() -> None:
    async def story() -> None:
        room = Room(pool_of(replica()))
        async with room.model_pool.admit(room.model_pool.ticket(1)) as turn:
            turn.failed(Failure.UNREACHABLE)
        room.ask("next")
        assert await room.end() == [("next", "a", 0.5)]

    play(story())


@pytest.mark.parametrize("moment", [0.0, 0.5, 1.0])
def test_a_client_that_leaves_at_any_moment_leaves_nothing_behind(moment: float) -> None:
    async def story() -> None:
        room = Room(pool_of(replica()))
        room.ask("running", seconds=1.0)
        leaver = room.ask("leaver", seconds=1.0)
        room.ask("last")
        await asyncio.sleep(moment)
        leaver.cancel()
        log = await room.end()
        assert [entry for entry in log if entry[0] == "last"] == [("last", "a", 1.0)]

    play(story())


def test_cancelling_in_the_very_moment_of_the_grant_gives_the_slot_back() -> None:
    async def story() -> None:
        room = Room(pool_of())
        leaver = room.ask("leaver")
        room.ask("next")
        await asyncio.sleep(1.0)
        room.model_pool.update(pool_of(replica()))  # grants the leaver, whose task has not run yet
        leaver.cancel()
        assert await room.end() == [("next", "a", 1.0)]

    play(story())


def test_changing_the_policy_takes_effect_without_losing_anybody() -> None:
    async def story() -> None:
        room = Room(pool_of(replica("a", None), replica("b", None)))
        for name in "1234":
            room.ask(name, seconds=10.0)
        await asyncio.sleep(1.0)
        room.model_pool.update(pool_of(replica("a", None), replica("b", None), policy="RoundRobin"))
        assert type(room.model_pool.router.policy).__name__ == "RoundRobin"
        assert room.model_pool.router.in_flight.total == 4
        await room.end()

    play(story())
