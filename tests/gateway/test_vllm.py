"""vLLM behind the gateway: fakes of its server with fronts before them, which the gateway takes for engines."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fairlead.gateway.server import Gateway
from fairlead.gateway.signals_stream import model_signals
from fairlead.routing.replica import Replica
from fairlead_common.wire.messages import StepCost
from fairlead_testing.fake_vllm import FakeVllm
from fairlead_testing.fake_vllm.vllm_api import DEFAULT_LIMITS
from fairlead_testing.fronts import Front, running_front, write_tokenizer
from fairlead_testing.gateways import make_pool, running_gateway

COST = StepCost(base=0.002, prefill_token=0.00002, decode_seq=0.0001)
LIMITS = replace(DEFAULT_LIMITS, max_num_seqs=16)
NUM_REQUESTS = 200


@dataclass
class Fleet:
    """Two servers, their fronts, and a gateway."""

    vllms: list[FakeVllm]
    fronts: list[Front]
    gateway: Gateway
    url: str
    http: aiohttp.ClientSession

    async def ask(self, content: str, **fields: Any) -> tuple[int, int, int]:
        """(status, cached tokens as predicted, as they were)"""
        messages = [{"role": "user", "content": content}]
        body = {"model": "fake", "messages": messages, "max_tokens": 4, **fields}
        async with self.http.post(f"{self.url}/v1/chat/completions", json=body) as response:
            document = await response.json()
            if response.status != 200:
                return response.status, 0, 0
            actual = document["usage"]["prompt_tokens_details"]["cached_tokens"]
            return 200, int(response.headers["x-fairlead-predicted-cached-tokens"]), actual


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        folder, vllms, fronts = write_tokenizer(tmp_path), [], []
        for index in range(2):
            name = f"ipc://@fairlead-gateway-{os.getpid()}-{index}"
            vllm = FakeVllm(step_cost=COST, limits=LIMITS, num_kv_blocks=200, events=name, replay=f"{name}-replay")
            vllms.append(await stack.enter_async_context(vllm))
            fronts.append(await stack.enter_async_context(running_front(vllm, folder, warm_up=True)))
        replicas = [Replica(f"pod-{index}", f"pod-{index}", each.host, each.port) for index, each in enumerate(fronts)]
        running = running_gateway(make_pool(replicas), follow=True)
        gateway, _, url = await stack.enter_async_context(running)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        made = Fleet(vllms, fronts, gateway, url, http)
        async with asyncio.timeout(30):
            while not all(gateway.datastore.index.seq(each.uid) is not None for each in replicas):
                await asyncio.sleep(0.02)
            while (await made.ask("hello"))[0] != 200:
                await asyncio.sleep(0.02)
        yield made


@pytest.mark.slow
async def test_cached_tokens_are_as_predicted(fleet: Fleet) -> None:
    """Conversations that grow, of a few common beginnings, on caches that are too small for all."""
    rng = random.Random(3)
    trunks = ["".join(rng.choices("abcdefgh ", k=400)) for _ in range(6)]
    turns = asyncio.Semaphore(4)

    async def one() -> tuple[int, int, int]:
        content = rng.choice(trunks)[: rng.randrange(100, 400)] + "".join(rng.choices("xyz", k=rng.randrange(40)))
        async with turns:
            return await fleet.ask(content)

    seen = await asyncio.gather(*(one() for _ in range(NUM_REQUESTS)))
    assert {status for status, _, _ in seen} == {200}
    right = sum(abs(predicted - actual) <= LIMITS.block_size for _, predicted, actual in seen)
    assert right >= 0.95 * NUM_REQUESTS, [each for each in seen if abs(each[1] - each[2]) > LIMITS.block_size]
    assert sum(actual for _, _, actual in seen) > 100 * NUM_REQUESTS, "most of what is asked for is cached somewhere"


@pytest.mark.slow
async def test_a_cut_event_stream_fails_no_request_and_is_made_good(fleet: Fleet) -> None:
    for vllm in fleet.vllms:
        vllm.publisher.close()
    for front in fleet.fronts:
        await front.until_exact(False)
    trunk = "what all of them begin with, and what is worth to be kept. " * 5
    for index in range(12):
        status, predicted, actual = await fleet.ask(f"{trunk}{index}")
        assert status == 200
        assert index == 0 or (abs(predicted - actual) <= LIMITS.block_size and actual > 200)
    for vllm in fleet.vllms:
        vllm.publisher.open()
    async with asyncio.timeout(30):
        for front in fleet.fronts:
            await front.until_exact()
    status, predicted, actual = await fleet.ask(f"{trunk} and at last")
    assert status == 200 and abs(predicted - actual) <= LIMITS.block_size and actual > 200


async def test_first_tokens_are_foreseen_and_the_autoscaler_is_told_what_steps_cost(fleet: Fleet) -> None:
    pool = next(iter(fleet.gateway.pools))
    signals = model_signals(pool, asyncio.get_running_loop().time())
    assert len(signals.replicas) == 2
    assert all(each.step_cost.is_known and each.kv_blocks_total == 200 for each in signals.replicas.values())
    body = {"model": "fake", "messages": [{"role": "user", "content": "x" * 1500}], "max_tokens": 2, "stream": True}
    async with fleet.http.post(f"{fleet.url}/v1/chat/completions", json=body) as response:
        assert float(response.headers["x-fairlead-predicted-ttft-ms"]) > 10.0
        assert (await response.text()).endswith("data: [DONE]\n\n")


async def test_a_server_that_dies_is_made_good_by_another(fleet: Fleet) -> None:
    fleet.vllms[0].kill()
    assert {(await fleet.ask(f"question {index}"))[0] for index in range(8)} == {200}


async def test_what_one_server_is_asked_for_the_client_need_not_know(fleet: Fleet) -> None:
    """Priorities, salts and images pass; a model that is not there is the gateway's to refuse."""
    assert (await fleet.ask("hello", cache_salt="blue", priority=3))[0] == 200
    assert fleet.vllms[0].requests or fleet.vllms[1].requests
    async with fleet.http.post(f"{fleet.url}/v1/completions", json={"model": "other", "prompt": "x"}) as response:
        assert response.status == 404
