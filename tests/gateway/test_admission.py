"""Who waits, for how long, and in which order: in virtual time, without sockets."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

import pytest

from fairlead.fleet.pool import Outlook, Pool
from fairlead.gateway.admission import ModelPool, Shared
from fairlead.gateway.openai_errors import OpenAIError
from fairlead.gateway.parse import InferenceRequest
from fairlead.gateway.prompts import ReadPrompt
from fairlead.gateway.settings import GatewaySettings
from fairlead.routing.health import Failure
from fairlead.routing.knowledge import Knowledge
from fairlead.routing.load import Load
from fairlead.routing.prompt import Tokens
from fairlead.routing.replica import Limits, Replica
from fairlead.testing.clock import run_in_virtual_time
from fairlead.testing.gateways import SCALED_TO_ZERO, make_pool

ONE = Limits(max_num_seqs=1, max_num_queued_tokens=0)


def replica(uid: str = "a", limits: Limits | None = ONE, digest: str = "?") -> Replica:
    return Replica(uid=uid, name=uid, host="127.0.0.1", port=8000, limits=limits, digest=digest)


def pool_of(*replicas: Replica, **model: Any) -> Pool:
    return make_pool(replicas, **{"max_queue_time": 30.0, "cold_start_timeout": 600.0, **model})


def load(time: float, **figures: Any) -> Load:
    """Of an idle replica with one slot and four blocks, but for `figures`."""
    idle = {"running": 0, "waiting": 0, "queued_prefill_tokens": 0, "kv_blocks_free": 4, "kv_blocks_total": 4}
    return Load(**{"time": time, **idle, "kv_tokens": 0, "token_budget": 64, "max_num_seqs": 1, **figures})


def request(name: str, num_bytes: int = 1) -> InferenceRequest:
    return InferenceRequest(
        request_id=name,
        path="/v1/completions",
        model="fake",
        stream=False,
        wants_usage=False,
        fields={},
        num_bytes=num_bytes,
    )


class FakeReader:
    """Stands for tokenizers and reader: takes its time, and notes what it has read."""

    def __init__(self, *digests: str, seconds: float = 0.0, num_tokens: int = 10) -> None:
        """`digests`: the tokenizers it knows. `seconds`: what reading takes."""
        self.digests = digests
        self.seconds = seconds
        self.num_tokens: dict[str, int] = {}
        """By request, where it is not the usual."""
        self.usual_num_tokens = num_tokens
        self.read_log: list[tuple[str, str]] = []
        """Request and digest."""

    def get(self, digest: str) -> object | None:
        return object() if digest in self.digests else None

    async def read(
        self, request: InferenceRequest, digests: Iterable[str], prompt: ReadPrompt | None = None, **_: Any
    ) -> ReadPrompt:
        prompt = prompt or ReadPrompt()
        name = request.request_id
        prompt.num_tokens = self.num_tokens.get(name, self.usual_num_tokens)
        for digest in sorted(digests):
            self.read_log.append((name, digest))
            await asyncio.sleep(self.seconds)
            prompt.by_digest[digest] = (Tokens(range(prompt.num_tokens)),)
        return prompt


class Room:
    """A ModelPool and what became of its requests: (name, outcome, virtual seconds)."""

    def __init__(self, pool: Pool, reader: FakeReader | None = None, **settings: Any) -> None:
        self.knowledge = Knowledge()
        self.reader = reader or FakeReader()
        self.num_cold_requests = 0
        shared = Shared(GatewaySettings(**settings), "gateway", self.knowledge, self.reader, self.reader)
        self.model_pool = ModelPool(pool, shared, self._count_cold_request)
        self.log: list[tuple[str, str, float]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def ask(self, name: str, *, seconds: float = 0.0, num_bytes: int = 1) -> asyncio.Task[None]:
        """Asks for a turn and keeps it for `seconds`."""
        task = asyncio.create_task(self._ask(name, seconds, num_bytes))
        self.tasks.append(task)
        return task

    def tell(self, uid: str, **figures: Any) -> None:
        """A load line of this replica comes."""
        told = load(self.model_pool.now(), **figures)
        self.knowledge.loaded(uid, told)
        self.model_pool.load_changed(uid, told)

    async def _ask(self, name: str, seconds: float, num_bytes: int) -> None:
        try:
            place = self.model_pool.place(request(name, num_bytes))
            await self.model_pool.tokenize(place)
            async with self.model_pool.admit(place) as turn:
                self.log.append((name, turn.decision.replica.uid, self.model_pool.now()))
                await asyncio.sleep(seconds)
                turn.accepted()
        except OpenAIError as error:
            self.log.append((name, str(error.code), self.model_pool.now()))

    async def end(self) -> list[tuple[str, str, float]]:
        """Everything that happened, after everybody is done; nothing may be left behind."""
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        assert not [result for result in results if isinstance(result, Exception)]
        await asyncio.sleep(0)
        self.model_pool.queue.check()
        self.model_pool.router.in_flight.check()
        assert len(self.model_pool.queue) == 0
        assert self.model_pool.router.in_flight.total == 0
        assert not self.model_pool._places
        assert self.model_pool._reading is None
        return self.log

    def _count_cold_request(self) -> None:
        self.num_cold_requests += 1


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


def test_who_waits_when_the_last_replica_leaves_is_told_of_as_one_who_comes_then() -> None:
    async def story() -> None:
        room = Room(pool_of(replica()))
        room.ask("running", seconds=1.0)
        room.ask("waiting")
        await asyncio.sleep(0.5)
        assert room.num_cold_requests == 0
        room.model_pool.update(pool_of())
        assert room.num_cold_requests == 1
        room.model_pool.update(pool_of(replica("b")))
        await room.end()

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
        place = model_pool.place(request("requeued"))
        async with model_pool.admit(place) as turn:
            turn.failed(None)
            room.ask("later")
            await asyncio.sleep(0)
            assert len(model_pool.queue) == 1
        async with model_pool.admit(place):
            room.log.append(("requeued", "a", model_pool.now()))
        log = await room.end()
        assert [name for name, _, _ in log] == ["requeued", "later"]

    play(story())


def test_whoever_is_requeued_is_taken_back_though_the_queue_is_full() -> None:
    async def story() -> None:
        room = Room(pool_of(replica("a", None)), max_queue=1)
        place = room.model_pool.place(request("requeued"))
        async with room.model_pool.admit(place) as turn:
            turn.failed(None)
            room.ask("fills the queue")
            await asyncio.sleep(0)
        async with room.model_pool.admit(place):
            pass
        assert [outcome for _, outcome, _ in await room.end()] == ["a"]

    play(story())


def test_a_pool_whose_replicas_all_fail_says_so_instead_of_calling_itself_full() -> None:
    async def story() -> None:
        room = Room(pool_of(replica(), max_queue_time=0.3))
        async with room.model_pool.admit(room.model_pool.place(request("first"))) as turn:
            turn.failed(Failure.UNREACHABLE)
        room.ask("next")
        assert await room.end() == [("next", "replicas_failing", 0.3)]

    play(story())


def test_a_paused_replica_is_tried_again_by_time_alone() -> None:
    async def story() -> None:
        room = Room(pool_of(replica()))
        async with room.model_pool.admit(room.model_pool.place(request("first"))) as turn:
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


def test_a_prompt_is_tokenised_once_before_it_waits() -> None:
    async def story() -> None:
        room = Room(pool_of(replica(digest="x")), FakeReader("x"))
        for name in "abc":
            room.ask(name, seconds=1.0)
        await asyncio.sleep(0.5)
        assert room.reader.read_log == [("a", "x"), ("b", "x"), ("c", "x")]
        assert all("x" in prompt.by_digest for prompt in room.model_pool.waiting_prompts())
        room.model_pool.update(pool_of(replica(digest="x"), replica("b", digest="x")))
        await room.end()
        assert len(room.reader.read_log) == 3

    play(story())


def test_who_waits_for_a_model_never_seen_is_tokenised_for_the_first_replica_in_order() -> None:
    async def story() -> None:
        room = Room(pool_of(), FakeReader("x", seconds=0.1))
        for name in "abc":
            room.ask(name, seconds=1.0)
        await asyncio.sleep(10.0)
        assert room.reader.read_log == []
        room.model_pool.update(pool_of(replica(digest="x")))
        room.ask("later")
        log = await room.end()
        assert [name for name, _, _ in log] == ["a", "b", "c", "later"]
        assert log[0][2] == pytest.approx(10.1), "the head goes as soon as it has been read, whoever is to be read yet"
        assert sorted(room.reader.read_log) == [("a", "x"), ("b", "x"), ("c", "x"), ("later", "x")]

    play(story())


def test_at_zero_a_model_seen_before_is_tokenised_at_once() -> None:
    async def story() -> None:
        room = Room(pool_of(replica(digest="x")), FakeReader("x"))
        room.model_pool.update(pool_of())
        room.ask("a")
        await asyncio.sleep(1.0)
        assert room.reader.read_log == [("a", "x")]
        room.model_pool.update(pool_of(replica("b", digest="x")))
        assert await room.end() == [("a", "b", 1.0)]

    play(story())


def test_a_second_tokenizer_of_a_rollout_reads_who_waits_and_keeps_the_line() -> None:
    async def story() -> None:
        room = Room(pool_of(replica(digest="old")), FakeReader("old", "new", seconds=0.1))
        for name in "abc":
            room.ask(name, seconds=5.0)
        await asyncio.sleep(1.0)
        room.model_pool.update(pool_of(replica(digest="old"), replica("b", digest="new")))
        log = await room.end()
        assert [name for name, _, _ in log] == ["a", "b", "c"]
        assert log[1] == ("b", "b", pytest.approx(1.1))
        reads = room.reader.read_log
        assert len(reads) == len(set(reads)) == 5, "`a` runs already and is not read again"

    play(story())


def test_a_replica_is_left_alone_until_it_has_told_what_it_is_and_how_loaded() -> None:
    async def story() -> None:
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

    play(story())


def test_a_replica_that_tells_no_load_is_used_without() -> None:
    async def story() -> None:
        room = Room(pool_of(replica(digest="", limits=None)), FakeReader("x"))
        room.ask("a")
        await asyncio.sleep(0.5)
        room.model_pool.update(pool_of(replica(digest="x")))
        assert await room.end() == [("a", "a", 2.0)]

    play(story())


def test_a_known_replica_whose_stream_is_lost_is_used_on() -> None:
    async def story() -> None:
        room = Room(pool_of(replica(digest="", limits=None)), FakeReader("x"))
        room.model_pool.update(pool_of(replica(digest="x")))
        room.tell("a")
        await asyncio.sleep(10.0)
        room.knowledge.lost("a")
        room.model_pool.load_changed("a", None)
        room.model_pool.update(pool_of(replica(digest="x"), replica("b", digest="", limits=None)))
        room.ask("a")
        assert await room.end() == [("a", "a", 10.0)]

    play(story())


def test_a_replica_that_does_not_tell_what_it_is_is_used_without() -> None:
    async def story() -> None:
        room = Room(pool_of(replica(digest="", limits=None)), FakeReader("x"))
        room.ask("a")
        assert await room.end() == [("a", "a", 2.0)]

    play(story())


def test_a_tokenizer_that_cannot_be_built_holds_nobody() -> None:
    async def story() -> None:
        room = Room(pool_of(replica(digest="broken")), FakeReader())
        room.ask("a")
        assert await room.end() == [("a", "a", 0.0)]

    play(story())


def test_whoever_leaves_while_being_read_holds_nobody_up() -> None:
    async def story() -> None:
        room = Room(pool_of(), FakeReader("x", seconds=1.0))
        leaver = room.ask("leaver")
        room.ask("next")
        await asyncio.sleep(1.0)
        room.model_pool.update(pool_of(replica(digest="x")))
        await asyncio.sleep(0.5)
        leaver.cancel()
        assert await room.end() == [("next", "a", pytest.approx(3.0))]

    play(story())


def test_strictly_first_come_first_served_though_a_shorter_prompt_would_fit() -> None:
    async def story() -> None:
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

    play(story())


def test_a_load_line_that_shows_room_lets_the_head_go() -> None:
    async def story() -> None:
        room = Room(pool_of(replica()))
        room.tell("a", running=1, kv_blocks_free=0)
        room.ask("a")
        await asyncio.sleep(1.0)
        room.tell("a")
        assert await room.end() == [("a", "a", pytest.approx(1.0))]

    play(story())


def test_a_replica_that_drains_is_not_ready_so_the_cold_start_limit_holds() -> None:
    async def story() -> None:
        room = Room(pool_of(replica(), max_queue_time=5.0, cold_start_timeout=100.0))
        room.tell("a", draining=True)
        assert room.model_pool.num_ready == 0
        room.ask("a")
        for _ in range(40):
            await asyncio.sleep(1.0)
            room.tell("a", draining=True)
        room.knowledge.lost("a")  # it has finished, and ends
        room.model_pool.load_changed("a", None)
        await asyncio.sleep(10.0)
        assert room.num_cold_requests == 1
        room.model_pool.update(pool_of(replica("b"), max_queue_time=5.0, cold_start_timeout=100.0))
        assert await room.end() == [("a", "b", 50.0)]

    play(story())


def test_replicas_that_come_and_go_hold_nobody_for_ever() -> None:
    async def story() -> None:
        limits = {"max_queue_time": 5.0, "cold_start_timeout": 20.0}
        room = Room(pool_of(**limits))
        waiting = room.ask("a")
        while not waiting.done():
            room.knowledge.loaded("a", load(room.model_pool.now(), running=1))
            room.model_pool.update(pool_of(replica(), **limits))
            await asyncio.sleep(2.0)
            room.model_pool.update(pool_of(**limits))
            await asyncio.sleep(2.0)
        ((name, outcome, seconds),) = await room.end()
        assert (name, seconds) == ("a", 25.0)
        assert outcome in ("cold_start_timeout", "queue_timeout")

    play(story())


def test_ten_requests_at_zero_are_all_served_when_a_replica_comes() -> None:
    async def story() -> None:
        room = Room(pool_of(), FakeReader("x"))
        names = [str(index) for index in range(10)]
        for name in names:
            room.ask(name, seconds=1.0)
        await asyncio.sleep(60.0)
        assert room.num_cold_requests == 10
        room.model_pool.update(pool_of(replica(digest="x")))
        log = await room.end()
        assert [(name, outcome) for name, outcome, _ in log] == [(name, "a") for name in names]

    play(story())


def test_a_model_that_cannot_start_says_why_when_the_time_is_over_and_not_before() -> None:
    async def story() -> None:
        room = Room(pool_of(cold_start_timeout=100.0))
        error: list[OpenAIError] = []

        async def ask() -> None:
            place = room.model_pool.place(request("a"))
            try:
                async with room.model_pool.admit(place):
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

    play(story())


def test_a_full_queue_refuses_before_anything_is_tokenised() -> None:
    async def story() -> None:
        room = Room(pool_of(replica(digest="x")), FakeReader("x"), max_queue=1)
        room.ask("running", seconds=1.0)
        room.ask("waiting")
        await asyncio.sleep(0.5)
        room.ask("refused")
        outcomes = {name: outcome for name, outcome, _ in await room.end()}
        assert outcomes["refused"] == "queue_full"
        assert ("refused", "x") not in room.reader.read_log

    play(story())


def test_many_load_lines_cause_few_looks_at_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        room = Room(pool_of(replica(limits=ONE)))
        room.ask("running", seconds=2.0)
        room.ask("waiting")
        await asyncio.sleep(0.5)
        num_routed = 0
        route = room.model_pool.router.route

        def count(*arguments: Any) -> Any:
            nonlocal num_routed
            num_routed += 1
            return route(*arguments)

        monkeypatch.setattr(room.model_pool.router, "route", count)
        for _ in range(100):
            room.tell("a", running=1, kv_blocks_free=0, seen={"gateway": 1})
        await asyncio.sleep(0.1)
        assert 1 <= num_routed <= 2
        await room.end()

    play(story())
