"""Clients that leave at any moment, while engines restart and streams break, leave nothing behind in any book."""

import asyncio
import random

import aiohttp
import pytest

from fairlead.routing.replica import Limits
from fairlead_common.wire.messages import StepCost
from fairlead_testing.fake_engine import FakeEngine

LIMITS = Limits(max_num_seqs=4, max_num_queued_tokens=1024, max_model_len=4096)
COST = StepCost(base=0.004, prefill_token=2e-5, decode_seq=1e-4)
PATIENCE = (None, 0.0005, 0.002, 0.005, 0.01, 0.03, 0.1)
"""Seconds after which a client leaves: while it is read, waits, is sent, computed, answered, or not at all."""


async def ask(http: aiohttp.ClientSession, url: str, dice: random.Random) -> str:
    """What became of one request."""
    content = f"{'x' * dice.choice([50, 500])} {dice.randrange(4)} {'y' * dice.choice([10, 200])}"
    body = {"model": "fake", "messages": [{"role": "user", "content": content}], "stream": dice.random() < 0.7}
    wanted = {"max_tokens": dice.choice([1, 8, 40]), "ignore_eos": True}
    try:
        async with asyncio.timeout(dice.choice(PATIENCE)):
            async with http.post(f"{url}/v1/chat/completions", json=body | wanted) as response:
                await response.read()
                return str(response.status)
    except TimeoutError:
        return "left"


@pytest.mark.parametrize("seed", [1, 2])
async def test_clients_that_leave_at_any_moment_leave_nothing_behind(start, seed: int) -> None:
    dice = random.Random(seed)
    engines = [FakeEngine(name, limits=LIMITS, step_cost=COST) for name in ("a", "b")]
    setup = await start(engines=engines, follow=True)
    asking = []
    for number in range(150):
        asking.append(asyncio.create_task(ask(setup.http, setup.url, dice)))
        await asyncio.sleep(dice.choice([0, 0.001, 0.01]))
        if number % 50 == 25:
            dice.choice(engines).restart()
        if number % 50 == 45:
            dice.choice(engines).stream.cut_followers()
    outcomes = await asyncio.gather(*asking)
    assert {"200", "left"} <= set(outcomes)

    pool, datastore = setup.gateway.pools.find("fake", None), setup.gateway.datastore
    await setup.until(lambda: pool.router.in_flight.total == 0)
    await setup.until(lambda: all(engine.num_running == 0 for engine in engines))
    await setup.until(lambda: all(datastore.index.hashes(engine.name) == engine.hashes for engine in engines))
    await setup.until(lambda: not datastore._computed)  # until the next load line
    pool.router.in_flight.check()
    datastore.index.check()
    pool.queue.check()
    assert not pool.router.in_flight._requests
    assert not datastore.index._open
    assert not len(pool.queue)
