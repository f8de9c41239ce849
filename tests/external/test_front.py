"""A front before a fake vLLM, over HTTP and ZMQ: what a gateway hears of it, and what becomes of requests."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead_common.wire.messages import StepCost
from fairlead_testing.fake_vllm import Encoding
from fairlead_testing.fake_vllm.vllm_api import DEFAULT_LIMITS
from fairlead_testing.fronts import Front, num_foreseen, running_front, tokens_field

Start = Callable[..., Awaitable[Any]]


@pytest.mark.parametrize(
    ("encoding", "hashes_are_bytes"), list(zip(Encoding, (False, True, True, False, False), strict=True))
)
async def test_what_is_listed_is_what_the_server_finds(
    start: Start, encoding: Encoding, hashes_are_bytes: bool
) -> None:
    rng = random.Random(7)
    pair = await start(events=True, num_kv_blocks=30, encoding=encoding, hashes_are_bytes=hashes_are_bytes)
    trunks = ["".join(rng.choices("abc ", k=150)) for _ in range(3)]
    wrong = []
    for _ in range(24):
        prompt = rng.choice(trunks)[: rng.randrange(40, 150)] + "".join(rng.choices("xyz", k=rng.randrange(30)))
        salt = rng.choice([None, None, "blue"]) if encoding is not Encoding.ARRAYS else None  # which lacks it
        await pair.published()
        expected = await pair.num_held(prompt, salt)
        found = await pair.complete(prompt, **({"cache_salt": salt} if salt else {}))
        wrong += [(prompt, expected, found)] if expected != found else []
    assert not wrong


async def test_missed_messages_are_asked_for_again(start: Start) -> None:
    pair = await start(events=True)
    pair.server.publisher.num_to_drop = 2
    for letter in "abc":  # the third shows that two are missing
        await pair.complete(letter * 100)
    await pair.published()
    assert [await pair.num_held(letter * 100) for letter in "abc"] == [96] * 3
    assert pair.front.service.client.is_exact


async def test_a_gap_that_is_not_kept_leaves_an_approximation(start: Start) -> None:
    pair = await start(events=True)
    await pair.complete("a" * 100)
    await pair.published()
    pair.server.publisher.num_to_drop = 2
    for letter in "bc":
        await pair.complete(letter * 100)
    pair.server.publisher._kept.clear()
    await pair.complete("d" * 100)
    await pair.front.until_exact(False)
    await pair.published()
    assert await pair.num_held("a" * 100) == 96
    assert await pair.num_held("d" * 100) == 96


async def test_a_cut_stream_is_approximated_by_what_was_computed_and_mended_when_it_is_back(start: Start) -> None:
    pair = await start(events=True, num_kv_blocks=20)
    await pair.complete("a" * 100)
    pair.server.publisher.close()
    await pair.front.until_exact(False)
    for letter in "bcdefg":  # evicts what was there before
        assert await pair.complete(letter * 100, **tokens_field(letter * 100)) == 0
    assert await pair.num_held("g" * 100) == 96
    pair.server.publisher.open()
    async with asyncio.timeout(20):
        await pair.front.until_exact()
    await pair.published()
    held = await pair.front.held(pair.http)
    for letter in "abcdefg":
        if await pair.num_held(letter * 100) == 96:
            assert await pair.complete(letter * 100) == 96
    assert len(held) <= 20


async def test_without_events_the_prompts_that_were_computed_are_approximated(start: Start) -> None:
    pair = await start()
    await pair.complete("a" * 100, **tokens_field("a" * 100))
    assert await pair.num_held("a" * 100) == 96
    assert await pair.complete("a" * 100) == 96


async def test_a_front_that_comes_late_hears_of_what_was_before(start: Start, folder: Path) -> None:
    pair = await start(events=True)
    await pair.complete("a" * 100)
    async with running_front(pair.server, folder) as late:
        await late.until_exact()
        assert num_foreseen(await late.held(pair.http), "a" * 100) == 96


async def test_a_server_that_starts_anew_has_an_empty_cache(start: Start) -> None:
    pair = await start(events=True)
    await pair.complete("a" * 100)
    await pair.published()
    await pair.server.restart()
    async with asyncio.timeout(20):
        await pair.front.until_exact(False)
        await pair.front.until_exact()
    assert await pair.front.held(pair.http) == set()
    async with asyncio.timeout(20):
        while pair.front.service.readiness_problem() is not None:
            await asyncio.sleep(0.05)
    assert await pair.complete("a" * 100) == 0


async def test_garbage_among_the_events_ends_nothing(start: Start) -> None:
    pair = await start(events=True)
    for payload in ([], [["BlockStored"]], ["BlockStored", 3], [{"type": "BlockStored", "block_hashes": [1]}], [7]):
        pair.server.publisher.publish(payload)
    socket = pair.server.publisher._socket
    assert socket is not None
    for frames in (
        [b"x"],
        [b"", b"1", b""],
        [b"", b"\xff" * 8, b"\xc1"],
        [b"t", (10**6).to_bytes(8, "big"), b"\x91" * 9999],
    ):
        await socket.send_multipart(frames)
    await pair.complete("a" * 100)
    await pair.front.until_exact(False)
    assert await pair.complete("a" * 100) == 96


async def test_what_belongs_to_gateways_is_not_passed_on(start: Start) -> None:
    pair = await start()
    body = {"model": "fake", "prompt": "ahoy", "seed": 3, **tokens_field("ahoy")}
    headers = {"x-fairlead-dispatch": "gw:1", "authorization": "Bearer secret", "x-request-id": "r1"}
    async with pair.post(json=body, headers=headers) as response:
        assert response.status == 200 and response.headers["x-request-id"] == "r1"
    sent = pair.server.requests[-1]
    assert sent.json() == {"model": "fake", "prompt": "ahoy", "seed": 3}
    assert sent.headers["x-request-id"] == "r1"
    assert not [name for name in sent.headers if name.startswith("x-fairlead") or name == "authorization"]


async def test_the_load_counts_a_request_from_its_dispatch_on(start: Start) -> None:
    pair = await start()
    pair.server.core.gate.clear()
    pair.server.core.step_cost = StepCost(base=0.01)
    body = {"model": "fake", "prompt": "a" * 100, "stream": True, **tokens_field("a" * 100)}
    headers = {"x-fairlead-dispatch": "gw:7"}
    request = asyncio.create_task(pair.post(json=body, headers=headers))
    load = await pair.load_where(lambda load: load["running"] + load["waiting"] == 1)
    assert load["queued_prefill_tokens"] == 100 and load["seen"] == {"gw": 7}
    assert load["kv_blocks_total"] == 1024 and load["max_num_seqs"] == 8
    (await request).close()
    load = await pair.load_where(lambda load: load["running"] + load["waiting"] == 0)
    assert load["queued_prefill_tokens"] == 0
    async with asyncio.timeout(10):
        while not pair.server.num_cancelled:
            await asyncio.sleep(0.01)


async def test_a_full_queue_is_refused_as_ours_refuses(start: Start) -> None:
    pair = await start(front={"max_num_queued_tokens": 150})
    pair.server.core.step_cost = StepCost(base=0.01)  # nothing is computed
    first = asyncio.create_task(pair.complete("a" * 100, **tokens_field("a" * 100)))
    await pair.load_where(lambda load: load["running"] + load["waiting"] == 1)
    body = {"model": "fake", "prompt": "b" * 100, **tokens_field("b" * 100)}
    async with pair.post(json=body) as response:
        assert response.status == 429 and response.headers["x-fairlead-reason"] == "engine-full"
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_a_stream_passes_as_it_is_and_a_broken_one_ends_with_an_error(start: Start) -> None:
    pair = await start(tokens=("Ahoy", " there"))
    body = {"model": "fake", "prompt": "hi", "stream": True, "stream_options": {"include_usage": True}}
    async with pair.post(json=body) as response:
        text = await response.text()
        assert response.content_type == "text/event-stream"
        assert '"Ahoy"' in text and '"cached_tokens"' in text and text.endswith("data: [DONE]\n\n")
    pair.server.core.step_cost = StepCost(base=0.01)
    async with pair.post(json=body) as response:
        await pair.load_where(lambda load: load["running"] + load["waiting"] == 1)
        pair.server.kill()
        assert '"engine_dead"' in await response.text()


async def test_errors_of_the_server_are_its_own(start: Start) -> None:
    pair = await start()
    async with pair.post(json={"model": "fake", "prompt": "a" * 5000}) as response:
        assert response.status == 400 and "context" in (await response.json())["error"]["message"]
    async with pair.post(data=b"[1]") as response:
        assert response.status == 400
    async with pair.post("/sleep") as response:
        assert response.status == 404
    async with pair.get("/metrics") as response:
        assert "vllm:num_requests_running" in await response.text()


async def test_a_drain_finishes_what_runs_and_then_ends(start: Start) -> None:
    cost = StepCost(base=0.03)
    pair = await start(step_cost=cost, front={"drain_grace": 0.2})
    running = asyncio.create_task(pair.complete("a" * 50, max_tokens=30))
    await pair.load_where(lambda load: load["running"] == 1)
    drained = asyncio.create_task(pair.front.service.lifecycle.stopped.wait())
    async with pair.post("/fairlead/v1/drain") as response:
        assert response.status == 202
    async with pair.get("/ready") as response:
        assert response.status == 503 and response.headers["x-fairlead-reason"] == "draining"
    await asyncio.sleep(0.3)
    async with pair.post(json={"model": "fake", "prompt": "b"}) as response:
        assert response.status == 503 and response.headers["x-fairlead-reason"] == "draining"
    assert not drained.done() and not running.done()
    await running
    assert await drained


async def test_what_steps_cost_is_known_before_the_first_request(start: Start) -> None:
    cost = StepCost(base=0.03, prefill_token=0.0003, decode_seq=0.003)
    limits = replace(DEFAULT_LIMITS, max_num_seqs=16)
    pair = await start(step_cost=cost, limits=limits, token_budget=4096, front={"warm_up": True})
    told = pair.front.service.client.load.step_cost
    assert told.is_known
    prefill = (
        told.base + told.prefill_step + told.decode_seq + 1000 * told.prefill_token + 499500 * told.prefill_context
    )
    assert prefill == pytest.approx(0.33, rel=0.5)
    assert told.base + 8 * told.decode_seq == pytest.approx(0.054, rel=0.6)


async def until_serving(front: Front, is_serving: bool = True) -> None:
    async with asyncio.timeout(20):
        while (front.service.client.model is not None) is not is_serving:
            await asyncio.sleep(0.02)


async def test_a_server_that_does_not_answer_for_a_while_still_has_its_blocks(start: Start) -> None:
    pair = await start(events=True)
    await pair.complete("a" * 100)
    await pair.published()
    pair.server.is_loaded = False
    await until_serving(pair.front, False)
    pair.server.is_loaded = True
    await until_serving(pair.front)
    assert pair.front.service.client.is_exact and await pair.num_held("a" * 100) == 96
    assert await pair.complete("a" * 100) == 96


@pytest.mark.parametrize("has_events", [True, False])
async def test_a_server_that_starts_anew_and_does_not_tell_of_the_past_has_an_empty_cache(
    start: Start, has_events: bool
) -> None:
    pair = await start(events=has_events, replay=None)
    for letter in "abc":
        await pair.complete(letter * 100, **tokens_field(letter * 100))
    async with asyncio.timeout(20):
        while not pair.front.service.client._num_tokens:  # until it was looked at
            await asyncio.sleep(0.01)
    assert await pair.num_held("a" * 100) == 96
    await pair.server.restart()
    pair.server.counts = dict.fromkeys(pair.server.counts, 0)
    async with asyncio.timeout(20):
        while await pair.front.held(pair.http):
            await asyncio.sleep(0.02)
    await until_serving(pair.front)
    async with asyncio.timeout(20):
        while await pair.num_held("d" * 100) != 96:  # it may hear of the new run only now
            await pair.complete("d" * 100, **tokens_field("d" * 100))
            await asyncio.sleep(0.02)


async def test_a_prompt_is_not_queued_until_its_whole_answer_is_there(start: Start) -> None:
    """Of a request that is not streamed only that comes."""
    pair = await start(step_cost=StepCost(base=0.02), front={"max_num_queued_tokens": 150})
    asked = {**tokens_field("a" * 100), "max_tokens": 3000}
    running = asyncio.create_task(pair.complete("a" * 100, **asked))
    load = await pair.load_where(lambda load: load["running"] == 1 and not load["queued_prefill_tokens"])
    assert load["kv_tokens"] == 100
    asked = {**tokens_field("b" * 100), "max_tokens": 2}
    await pair.complete("b" * 100, **asked)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_body_with_an_image_counts_as_no_more_than_a_prompt(start: Start) -> None:
    pair = await start()
    pair.server.core.step_cost = StepCost(base=0.01)  # nothing is computed
    body = {"model": "fake", "prompt": "ahoy", "stream": True, "image": "x" * 1_000_000}
    async with pair.post(json=body) as response:
        load = await pair.load_where(lambda load: load["running"] + load["waiting"] == 1)
        assert load["queued_prefill_tokens"] == 4096
        response.close()


async def test_a_server_without_a_cache_for_prompts_has_no_blocks(start: Start) -> None:
    pair = await start(front={"enable_prefix_caching": False})
    await pair.complete("a" * 100, **tokens_field("a" * 100))
    assert await pair.front.held(pair.http) == set()
