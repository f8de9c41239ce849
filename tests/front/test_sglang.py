"""A front before a fake SGLang: what differs from one before vLLM."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from fairlead_common.blocks import extra_bytes, hash_blocks, num_cacheable_blocks
from fairlead_common.messages import StepCost
from fairlead_engine.front.event_subscription import decode_events
from fairlead_engine.front.foreign_engine import NotServing, Stored
from fairlead_engine.front.front_config import FrontConfig
from fairlead_engine.front.zmq_servers import SglangServer
from fairlead_testing.fake_sglang import VERSION, FakeSglang
from fairlead_testing.fronts import Front, running_front

Addresses = Callable[[], dict[str, str]]
SIZE = 16
STORED = {"type": "BlockStored", "block_hashes": [-5], "parent_block_hash": None, "token_ids": [1, 2], "block_size": 2,
          "lora_id": None, "medium": "GPU"}  # fmt: skip


async def ask(http: aiohttp.ClientSession, front: Front, ids: list[int], **fields: Any) -> int:
    """Cached tokens."""
    body = {"model": "fake", "prompt": ids, "max_tokens": 2, **fields}
    async with http.post(f"{front.url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        return int((await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"])


async def foreseen(http: aiohttp.ClientSession, front: Front, ids: list[int], salt: str | None) -> int:
    async with http.get(f"{front.url}/fairlead/v1/kv/blocks") as response:
        held = {each for chain in (await response.json())["blocks"] for each in chain["hashes"]}
    names = hash_blocks(ids, SIZE, extra=extra_bytes(cache_salt=salt))[: num_cacheable_blocks(len(ids), SIZE)]
    return SIZE * next((index for index, each in enumerate(names) if each.hex() not in held), len(names))


async def published(front: Front, sglang: FakeSglang) -> None:
    """Until the front has heard everything that was published."""
    async with asyncio.timeout(10):
        while front.service.client.engine._subscription._next <= sglang.publisher.seq:  # type: ignore[attr-defined]
            await asyncio.sleep(0.005)


async def test_it_says_what_it_is(folder: Path, addresses: Addresses) -> None:
    async with FakeSglang(num_kv_blocks=100, **addresses()) as sglang, running_front(sglang, folder) as front:
        model = front.service.model()
        assert (model.version, model.max_model_len, model.block_size) == (VERSION, 4096, SIZE)
        assert (model.num_kv_blocks, model.num_places) == (100, None)
        assert front.service.model_info().engine_version == f"SGLang {VERSION}"


async def test_cached_tokens_are_as_foreseen(folder: Path, addresses: Addresses, http: aiohttp.ClientSession) -> None:
    """Common beginnings and salts, on a cache that is too small for all of them; events are missed meanwhile."""
    rng = random.Random(5)
    trunks = [[rng.randrange(40, 90) for _ in range(150)] for _ in range(4)]
    seen = []
    async with FakeSglang(num_kv_blocks=80, **addresses()) as sglang, running_front(sglang, folder) as front:
        await front.until_exact()
        for index in range(40):
            ids = rng.choice(trunks)[: rng.randrange(40, 150)] + rng.choices(range(40, 90), k=rng.randrange(1, 30))
            salt = rng.choice([None, "blue", "red"])
            sglang.publisher.num_to_drop = 1 if index % 10 == 5 else 0
            if index % 10 != 6:  # of what was missed, the next message tells
                await published(front, sglang)
                expected = await foreseen(http, front, ids, salt)
            found = await ask(http, front, ids, **({"cache_salt": salt} if salt else {}))
            seen += [(expected, found)] if index % 10 != 6 else []
        assert front.service.client.is_exact
    assert not [each for each in seen if each[0] != each[1]]
    assert sum(found for _, found in seen) > 40 * 20, seen


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        ({}, ()),
        ({"cache_salt": "blue", "session_id": "s"}, (("blue",),)),
        ({"cache_salt": "blue", "parent_block_hash": 7}, ()),  # as of the block before
        ({"cache_salt": ""}, ()),
    ],
)
def test_a_salt_is_told_beside_the_blocks(fields: dict[str, Any], keys: tuple[tuple[str, ...], ...]) -> None:
    (event,) = decode_events(msgspec.msgpack.encode([1.5, [{**STORED, **fields}], 0]))
    assert isinstance(event, Stored) and event.extra_keys == keys and event.hashes == (-5,)


def config(sglang: FakeSglang, name: str) -> FrontConfig:
    return FrontConfig(upstream_host=sglang.host, upstream_port=sglang.port, model="/model", served_name=name)


async def test_one_that_warms_up_or_tells_no_metrics_or_serves_another_is_waited_for() -> None:
    async with FakeSglang() as sglang:
        kind = SglangServer(config(sglang, "fake"))
        sglang.is_warm = False
        with pytest.raises(NotServing, match="/health answers HTTP 503"):
            await kind.describe()
        sglang.is_warm, sglang.has_metrics = True, False
        with pytest.raises(NotServing, match="--enable-metrics"):
            await kind.describe()
        sglang.has_metrics = True
        assert (await kind.describe()).version == VERSION
        with pytest.raises(NotServing, match="it serves no model 'other', but fake"):
            await SglangServer(config(sglang, "other")).describe()


def test_what_waits_is_not_counted_twice() -> None:
    """Once for all, and once for each priority."""
    text = (
        'sglang:max_total_num_tokens{a="b"} 1600.0\nsglang:num_queue_reqs{priority=""} 5.0\n'
        'sglang:num_queue_reqs{priority="0"} 3.0\nsglang:num_queue_reqs{priority="7"} 2.0\n'
        'sglang:token_usage{a="b"} 0.25\nsglang:realtime_tokens_total{mode="decode"} 7.0\n'
    )
    gauges = SglangServer.read_gauges(text)
    assert (gauges.waiting, gauges.kv_usage_ratio, gauges.num_tokens) == (5, 0.25, 7)
    assert SglangServer.read_gauges("sglang:max_total_num_tokens 1600.0\n").waiting == 0  # before its first step


async def test_its_errors_get_the_envelope_that_clients_know(folder: Path, http: aiohttp.ClientSession) -> None:
    async with FakeSglang() as sglang, running_front(sglang, folder) as front:
        body = {"model": "fake", "prompt": [50] * 5000}
        async with http.post(f"{sglang.url}/v1/completions", json=body) as response:
            assert "context" in (await response.json())["message"]
        async with http.post(f"{front.url}/v1/completions", json=body) as response:
            assert response.status == 400
            error = (await response.json())["error"]
        assert "context" in error["message"] and error["type"] == "BadRequestError"


async def test_whoever_leaves_takes_the_request_along_and_a_drain_ends_none(
    folder: Path, http: aiohttp.ClientSession
) -> None:
    async with FakeSglang(step_cost=StepCost(base=0.01)) as sglang, running_front(sglang, folder) as front:
        body = {"model": "fake", "prompt": "ahoy", "max_tokens": 3000, "stream": True}
        async with http.post(f"{front.url}/v1/completions", json=body) as response:
            await response.content.readany()
            response.close()
        async with asyncio.timeout(10):
            while not sglang.num_cancelled or front.service.client.load.running:
                await asyncio.sleep(0.01)
        running = asyncio.create_task(ask(http, front, [50] * 20, max_tokens=30))
        while not front.service.client.load.running:
            await asyncio.sleep(0.01)
        async with http.post(f"{front.url}/fairlead/v1/drain") as response:
            assert response.status == 202
        await front.service.lifecycle.stopped.wait()
        assert running.done() and await running == 0
