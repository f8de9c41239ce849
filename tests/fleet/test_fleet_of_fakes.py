"""Engines that stream, followers, index and router together: a gateway foresees what each engine will find cached."""

import asyncio
import random
from contextlib import AsyncExitStack

import aiohttp

from fairlead.routing.replica import Limits
from fairlead_common.wire.messages import HEADER_CACHED_TOKENS, HEADER_PREDICTED_CACHED_TOKENS, StepCost
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.gateways import make_pool, running_gateway

LIMITS = Limits(max_num_seqs=4, max_num_queued_tokens=1000, max_model_len=1000)
COST = StepCost(base=0.002, prefill_token=2e-5, decode_seq=1e-5)


async def test_predicted_cached_tokens_are_the_actual_ones_though_blocks_are_evicted() -> None:
    drawn = random.Random(1)
    prefixes = ["".join(drawn.choice("abcd ") for _ in range(320)) for _ in range(6)]
    errors: list[int] = []

    async def ask(http: aiohttp.ClientSession, url: str, question: str) -> None:
        body = {"model": "fake", "messages": [{"role": "user", "content": question}], "stream": True}
        async with http.post(f"{url}/v1/chat/completions", json=body) as response:
            await response.read()
            assert response.status == 200
            predicted, actual = (
                int(response.headers[name]) for name in (HEADER_PREDICTED_CACHED_TOKENS, HEADER_CACHED_TOKENS)
            )
            errors.append(abs(predicted - actual))

    async with AsyncExitStack() as stack:
        engines = [FakeEngine(f"e{index}", limits=LIMITS, num_kv_blocks=100, step_cost=COST) for index in range(3)]
        for engine in engines:
            await stack.enter_async_context(engine)
        pool = make_pool([engine.replica(with_limits=False) for engine in engines])
        gateway, _, url = await stack.enter_async_context(running_gateway(pool, follow=True))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        async with asyncio.timeout(60):
            while not all(gateway.datastore.index.seq(engine.name) is not None for engine in engines):
                await asyncio.sleep(0.01)
        asking = []
        for number in range(120):
            asking.append(asyncio.create_task(ask(http, url, f"{drawn.choice(prefixes)} {number}")))
            await asyncio.sleep(0.004)
        await asyncio.gather(*asking)
        assert sum(engine.num_finished for engine in engines) == 120
        for engine in engines:
            assert engine.stream.num_listed == 1
            engine.core.cache.check()
    assert sum(error <= LIMITS.block_size for error in errors) >= 0.95 * len(errors)
