"""A front before a fake SGLang: what differs from one before vLLM."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from fairlead_common.wire.messages import StepCost
from fairlead_engine.external.event_subscription import decode_events
from fairlead_engine.external.foreign_engine import NotServing, Stored
from fairlead_engine.external.front_config import FrontConfig
from fairlead_engine.external.zmq_servers import SglangServer
from fairlead_testing.fake_sglang import VERSION, FakeSglang

Start = Callable[..., Awaitable[Any]]
STORED = {"type": "BlockStored", "block_hashes": [-5], "parent_block_hash": None, "token_ids": [1, 2], "block_size": 2,
          "lora_id": None, "medium": "GPU"}  # fmt: skip


async def test_it_says_what_it_is(start: Start) -> None:
    service = (await start(FakeSglang, events=True, num_kv_blocks=100)).front.service
    model = service.model()
    assert (model.version, model.max_model_len, model.block_size) == (VERSION, 4096, 16)
    assert (model.num_kv_blocks, model.num_places) == (100, None)
    assert service.model_info().engine_version == f"SGLang {VERSION}"


async def test_cached_tokens_are_as_foreseen(start: Start) -> None:
    """Common beginnings and salts, on a cache that is too small for all of them; events are missed meanwhile."""
    rng = random.Random(5)
    trunks = [[rng.randrange(40, 90) for _ in range(150)] for _ in range(4)]
    seen = []
    pair = await start(FakeSglang, events=True, num_kv_blocks=80)
    for index in range(40):
        ids = rng.choice(trunks)[: rng.randrange(40, 150)] + rng.choices(range(40, 90), k=rng.randrange(1, 30))
        salt = rng.choice([None, "blue", "red"])
        pair.server.publisher.num_to_drop = 1 if index % 10 == 5 else 0
        if index % 10 != 6:  # of what was missed, the next message tells
            await pair.published()
            expected = await pair.num_held(ids, salt)
        found = await pair.complete(ids, **({"cache_salt": salt} if salt else {}))
        seen += [(expected, found)] if index % 10 != 6 else []
    assert pair.front.service.client.is_exact
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


async def test_its_errors_get_the_envelope_that_clients_know(start: Start) -> None:
    pair = await start(FakeSglang)
    body = {"model": "fake", "prompt": [50] * 5000}
    async with pair.http.post(f"{pair.server.url}/v1/completions", json=body) as response:
        assert "context" in (await response.json())["message"]
    async with pair.post(json=body) as response:
        assert response.status == 400
        error = (await response.json())["error"]
    assert "context" in error["message"] and error["type"] == "BadRequestError"


async def test_whoever_leaves_takes_the_request_along_and_a_drain_ends_none(start: Start) -> None:
    pair = await start(FakeSglang, step_cost=StepCost(base=0.01))
    client = pair.front.service.client
    async with pair.post(json={"model": "fake", "prompt": "ahoy", "max_tokens": 3000, "stream": True}) as response:
        await response.content.readany()
        response.close()
    async with asyncio.timeout(10):
        while not pair.server.num_cancelled or client.load.running:
            await asyncio.sleep(0.01)
    running = asyncio.create_task(pair.complete([50] * 20, max_tokens=30))
    while not client.load.running:
        await asyncio.sleep(0.01)
    async with pair.post("/fairlead/v1/drain") as response:
        assert response.status == 202
    await pair.front.service.lifecycle.stopped.wait()
    assert running.done() and await running == 0
