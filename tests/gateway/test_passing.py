"""Who passes whom in line: whoever can be placed is, and nobody loses a replica to one who stands behind. In virtual
time."""

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.gateway.dispatch.ticket import MOST_FITTED
from fairlead.gateway.openai.parse import InferenceRequest
from fairlead.gateway.prompts.reader import ReadPrompt
from fairlead.routing.in_flight import InFlightRequest
from fairlead.routing.prompt import DEFAULT_BLOCK_SIZE
from fairlead.routing.replica import Limits, Replica
from fairlead_testing.clock import in_virtual_time
from fairlead_testing.model_pools import FakeReader, Room, pool_of, replica

ADAPTERS = ("cook", "pirate", "poet")
BLOCKS = 8
"""Of each replica's cache."""


@dataclass(frozen=True)
class Wish:
    """A request; `after`: virtual seconds after the one before."""

    after: float
    seconds: float
    adapter: str | None
    priority: int
    num_tokens: int

    def may_use(self, replica: Replica) -> bool:
        most = None if replica.limits is None else replica.limits.max_model_len
        return (self.adapter is None or self.adapter in replica.adapters) and (most is None or self.num_tokens < most)


WISHES = st.builds(
    Wish,
    after=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
    seconds=st.sampled_from([0.50137, 1.00137, 3.00137, 7.00137]),  # none ends in the moment in which a load is told
    adapter=st.sampled_from([None, *ADAPTERS]),
    priority=st.sampled_from([0, 0, 0, 5]),
    num_tokens=st.sampled_from([10, 10, 100]),
)
REPLICAS = st.lists(
    st.tuples(st.sets(st.sampled_from(ADAPTERS)), st.sampled_from([50, None]), st.integers(1, 3)),
    min_size=1,
    max_size=4,
)


def blocks(num_tokens: float) -> int:
    return ceil(num_tokens / DEFAULT_BLOCK_SIZE)


class NamingReader(FakeReader):
    """Prompts say whose they are."""

    async def read(self, request: InferenceRequest, digests: Iterable[str], *rest: Any, **more: Any) -> ReadPrompt:
        prompt = await super().read(request, digests, *rest, **more)
        prompt.affinity = request.request_id
        return prompt


@in_virtual_time
async def test_a_full_holder_of_an_adapter_holds_up_nobody_who_can_go_elsewhere() -> None:
    room = Room(pool_of(replica("holder", adapters=["pirate"]), replica("other")))
    for name in ("first", "second"):
        room.ask(name, seconds=5.0, model="fake:pirate")
    await asyncio.sleep(1.0)
    room.ask("plain", seconds=1.0)
    await asyncio.sleep(0.5)
    room.ask("last", seconds=10.0)
    assert await room.end() == [
        ("first", "holder", 0.0), ("plain", "other", 1.0), ("last", "other", 2.0), ("second", "holder", 5.0),
    ]  # fmt: skip


@in_virtual_time
async def test_who_waits_for_an_adapter_is_not_starved_by_those_who_could_go_elsewhere() -> None:
    room = Room(pool_of(replica("holder", adapters=["pirate"]), replica("other")))
    room.ask("running", seconds=1.0, model="fake:pirate")
    room.ask("other's", seconds=10.0)
    await asyncio.sleep(0.5)
    room.ask("adapted", seconds=1.0, model="fake:pirate")
    for number in range(5):
        room.ask(str(number), seconds=1.0)
    log = await room.end()
    assert ("adapted", "holder", 1.0) in log


class Umpire:
    """Plays what engines tell, and looks at each request that is let go and at the line from time to time."""

    def __init__(self, room: Room, fleet: Collection[Replica], wishes: dict[str, Wish]) -> None:
        self.pool, self.fleet, self.wishes = room.model_pool, {each.uid: each for each in fleet}, wishes
        self._room = room
        self._told: dict[str, tuple[int, int]] = {}
        """By uid: what it said is free, and up to which dispatch."""
        self._route = self.pool.router.route
        self.pool.router.route = self.route  # type: ignore[method-assign]

    def route(self, prompt: Any, *args: Any, **more: Any) -> InFlightRequest | None:
        sent = self._route(prompt, *args, **more)
        if sent is not None:
            place = (False, self.wishes[prompt.affinity].priority, int(prompt.affinity) + 1)
            ahead = (each.request.request_id for each in self.pool.queue if each.order < place)
            replica = self.fleet[sent.uid]
            assert not [name for name in ahead if self.wishes[name].may_use(replica)], "somebody is overtaken"
        return sent

    async def look(self) -> None:
        """Engines tell their loads, and a moment later nobody waits for what is free."""
        for uid, each in self.fleet.items():
            there = list(self.pool.router.in_flight.requests(uid))
            free = BLOCKS - sum(blocks(sent.work.tokens) for sent in there)
            last = max((sent.dispatch for sent in there), default=self._told.get(uid, (0, 0))[1])
            self._told[uid] = free, last
            assert each.limits is not None
            assert free >= 0 or len(there) == 1, "only who is alone may be larger than what is free"
            self._room.tell(
                uid, running=len(there), kv_blocks_free=max(0, free), kv_blocks_total=BLOCKS, seen={"gateway": last},
                max_num_seqs=each.limits.max_num_seqs,
            )  # fmt: skip
        await asyncio.sleep(0.01)
        for uid, each in self.fleet.items():
            first = next((name for name in self._line() if self.wishes[name].may_use(each)), None)
            assert first is None or not self._has_room(uid, self.wishes[first]), "there is room for one who waits"

    def _line(self) -> list[str]:
        return [each.request.request_id for each in self.pool.queue]

    def _has_room(self, uid: str, wish: Wish) -> bool:
        limits, there = self.fleet[uid].limits, list(self.pool.router.in_flight.requests(uid))
        free, last = self._told[uid]
        free -= sum(blocks(sent.work.tokens) for sent in there if sent.dispatch > last)
        assert limits is not None
        return not there or (len(there) < limits.max_num_seqs and blocks(wish.num_tokens) <= free)


@settings(max_examples=40, deadline=None)
@given(replicas=REPLICAS, requests=st.lists(WISHES, min_size=1, max_size=MOST_FITTED))
@in_virtual_time
async def test_nobody_waits_beside_room_and_nobody_is_overtaken_on_a_replica(
    replicas: list[tuple[set[str], int | None, int]], requests: list[Wish]
) -> None:
    wishes = {str(index): each for index, each in enumerate(requests)}
    fleet = [
        replica(f"r{index}", Limits(max_num_seqs=slots, max_num_queued_tokens=0, max_model_len=most), "x", adapters)
        for index, (adapters, most, slots) in enumerate(replicas)
    ]
    reader = NamingReader("x")
    reader.num_tokens = {name: wish.num_tokens for name, wish in wishes.items()}
    room = Room(pool_of(*fleet, max_queue_time=10_000.0), reader)
    umpire = Umpire(room, fleet, wishes)
    await umpire.look()
    for name, wish in wishes.items():
        await asyncio.sleep(wish.after)
        model = "fake" if wish.adapter is None else f"fake:{wish.adapter}"
        room.ask(name, seconds=wish.seconds, priority=wish.priority, model=model)
        await asyncio.sleep(0.0)
        await umpire.look()
    while len(umpire.pool.queue):
        await asyncio.sleep(0.25)
        await umpire.look()
    served = {name for name, outcome, _ in await room.end() if outcome in umpire.fleet}
    assert served == {name for name, wish in wishes.items() if any(map(wish.may_use, fleet))}


@in_virtual_time
async def test_a_look_at_a_long_line_holds_few_of_its_prompts_against_every_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of long prompts, which only some replicas take, and of many for one adapter."""
    short = [
        replica(f"short-{index}", Limits(max_num_seqs=1, max_num_queued_tokens=0, max_model_len=50), "x")
        for index in range(3)
    ]
    reader = FakeReader("x", num_tokens=100)
    room = Room(pool_of(replica("long", digest="x", adapters=["pirate"]), *short), reader)
    models = ["fake", "fake:pirate"] * 100
    tasks = [room.ask(str(index), seconds=1.0, model=model) for index, model in enumerate(models)]
    await asyncio.sleep(0.5)
    line = room.model_pool.queue
    assert len(line) == 199
    asked: list[str] = []
    for name in ("route", "usable", "misfit"):
        real = getattr(room.model_pool.router, name)
        monkeypatch.setattr(
            room.model_pool.router,
            name,
            lambda *args, name=name, real=real, **more: asked.append(name) or real(*args, **more),
        )
    room.model_pool.pump()
    assert len(asked) <= 3 * (MOST_FITTED + 1)
    for task in tasks:
        task.cancel()
    await room.end()
