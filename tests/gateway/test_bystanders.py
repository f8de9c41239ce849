"""Who is told that replicas died of a request, where pills come again and again among many others. In virtual time."""

import asyncio
import random
from collections import Counter
from types import SimpleNamespace

import pytest

from fairlead.gateway.director import Director
from fairlead.gateway.dispatch.proxy import ReplicaFailed
from fairlead.gateway.openai.errors import OpenAIError, upstream_failed
from fairlead.routing.books import Failure
from fairlead.routing.replica import Limits
from fairlead_testing.clock import in_virtual_time, run_in_virtual_time
from fairlead_testing.model_pools import Room, pool_of, replica, request

LIMITS = Limits(max_num_seqs=8, max_num_queued_tokens=0)
DOWN_SECONDS = 1.0
NAMES = ("r0", "r1", "r2")


class Unseen:
    """An Observation that notes nothing."""

    def __getattr__(self, name: str):
        return lambda *args, **kwargs: None


class Replicas:
    """In the proxy's place: replicas that answer in a second or so, and those that die of pills."""

    def __init__(self, random: random.Random) -> None:
        self._random = random
        self._up_at = dict.fromkeys(NAMES, 0.0)
        self._held: dict[str, set[asyncio.Future[None]]] = {name: set() for name in NAMES}
        self._computing: dict[str, set[asyncio.Future[None]]] = {name: set() for name in NAMES}
        self._last: dict[str, int] = {}

    async def stream(self, attempt, request, served_name, client, seen) -> None:
        uid, now = attempt.decision.replica.uid, asyncio.get_running_loop().time()
        if now < self._up_at[uid]:
            raise ReplicaFailed(Failure.UNREACHABLE, upstream_failed("refused", status=503), retryable=True)
        died = asyncio.get_running_loop().create_future()
        self._held[uid].add(died)
        self._computing[uid].add(died)
        self._last[uid] = attempt.decision.dispatch
        try:
            begun = await self._answer(attempt, request, died)
        finally:
            self._held[uid].discard(died)
            self._computing[uid].discard(died)
        if died.done():
            error = upstream_failed("died", status=502 if begun else 503)
            raise ReplicaFailed(Failure.DIED, error, retryable=not begun)
        attempt.accepted()

    async def _answer(self, attempt, request, died: asyncio.Future[None]) -> bool:
        """Whether the client has got a part of it."""
        uid = attempt.decision.replica.uid
        await asyncio.wait((died,), timeout=self._random.uniform(0.05, 0.4))
        if died.done():
            return False
        if request.request_id == "pill":
            self._up_at[uid] = asyncio.get_running_loop().time() + DOWN_SECONDS
            for each in self._held[uid]:
                each.set_result(None)
            return False
        self._computing[uid].discard(died)
        if request.stream:
            attempt.first_token()
        await asyncio.wait((died,), timeout=self._random.uniform(0.4, 1.6))
        return request.stream

    async def tell(self, room: Room) -> None:
        """Load lines."""
        while True:
            await asyncio.sleep(0.1)
            for uid in NAMES:
                figures = {"running": len(self._held[uid]), "queued_prefill_tokens": len(self._computing[uid])}
                room.tell(uid, **figures, kv_blocks_free=99, max_num_seqs=8, seen={"gateway": self._last.get(uid, 0)})


async def answers(seed: int, *, seconds: float, rate: float, pill_gap: float) -> Counter[tuple[str, str]]:
    """Requests by kind and answer."""
    rng, counts = random.Random(seed), Counter()
    room = Room(pool_of(*(replica(name, LIMITS) for name in NAMES)))
    replicas = Replicas(rng)
    director = Director(SimpleNamespace(find=lambda model, chosen: room.model_pool), replicas, max_attempts=3)

    async def ask(kind: str) -> None:
        asked = request(kind)
        asked.stream = rng.random() < 0.7
        try:
            await director.handle(asked, None, Unseen())
            counts[kind, "served"] += 1
        except OpenAIError as error:
            is_blamed = (b"x-should-retry", b"false") in error.headers
            counts[kind, "blamed" if is_blamed else "cut" if error.status == 502 else "send again"] += 1

    async def come(kind: str, gap: float) -> None:
        async with asyncio.TaskGroup() as group:
            while room.model_pool.now() < seconds:
                await asyncio.sleep(rng.expovariate(1 / gap))
                group.create_task(ask(kind))

    telling = asyncio.create_task(replicas.tell(room))
    await asyncio.gather(come("other", 1 / rate), come("pill", pill_gap))
    telling.cancel()
    await room.end()
    return counts


@pytest.mark.parametrize(("rate", "pill_gap"), [(8.0, 4.0), (14.0, 1.5)])
def test_pills_are_told_so_and_who_came_to_be_beside_two_of_them_is_not(rate: float, pill_gap: float) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for seed in range(3):
        counts += run_in_virtual_time(answers(seed, seconds=40.0, rate=rate, pill_gap=pill_gap))
    num_pills = sum(number for (kind, _), number in counts.items() if kind == "pill")
    num_others = sum(number for (kind, _), number in counts.items() if kind == "other")
    assert counts["other", "blamed"] == 0, counts
    assert counts["pill", "served"] == 0
    assert counts["pill", "blamed"] > 0.6 * num_pills > 10, counts
    assert counts["other", "served"] > 0.7 * num_others, counts


@in_virtual_time
async def test_who_was_on_a_replica_that_died_for_its_own_reasons_is_served() -> None:
    room = Room(pool_of(*(replica(name, LIMITS) for name in NAMES)))
    replicas = Replicas(random.Random(1))
    director = Director(SimpleNamespace(find=lambda model, chosen: room.model_pool), replicas, max_attempts=3)
    asked = [request(str(number)) for number in range(20)]
    answering = [asyncio.create_task(director.handle(each, None, Unseen())) for each in asked]
    await asyncio.sleep(0.01)
    for each in replicas._held["r0"]:
        each.set_result(None)
    await asyncio.gather(*answering)
    assert asyncio.get_running_loop().time() < 25.0
    await room.end()
