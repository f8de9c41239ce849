"""A front before a fake vLLM, over HTTP and ZMQ: what a gateway hears of it, and what becomes of requests."""

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fairlead_common.blocks import extra_bytes, hash_blocks, num_cacheable_blocks
from fairlead_common.messages import StepCost
from fairlead_testing.fake_engine.prompts import make_tokenizer
from fairlead_testing.fake_vllm import Encoding, FakeVllm
from fairlead_testing.fake_vllm.vllm_api import DEFAULT_LIMITS
from fairlead_testing.fronts import Front, running_front

Addresses = Callable[[], dict[str, str]]
SIZE = DEFAULT_LIMITS.block_size


async def complete(http: aiohttp.ClientSession, url: str, prompt: Any, **fields: Any) -> tuple[int, int]:
    """(prompt tokens found in the cache, as the server says; as the front's header says)"""
    body = {"model": "fake", "prompt": prompt, "max_tokens": 2, **fields}
    async with http.post(f"{url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        usage = (await response.json())["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"], int(response.headers["x-fairlead-cached-tokens"])


async def listed(http: aiohttp.ClientSession, front: Front) -> set[str]:
    async with http.get(f"{front.url}/fairlead/v1/kv/blocks") as response:
        return {each for chain in (await response.json())["blocks"] for each in chain["hashes"]}


def num_held(held: set[str], prompt: str, salt: str | None = None) -> int:
    """Tokens of a prompt that a gateway takes to be cached."""
    ids = make_tokenizer().encode(prompt)
    names = hash_blocks(ids, SIZE, extra=extra_bytes(cache_salt=salt))[: num_cacheable_blocks(len(ids), SIZE)]
    return SIZE * next((index for index, each in enumerate(names) if each.hex() not in held), len(names))


@pytest.mark.parametrize(
    ("encoding", "hashes_are_bytes"), list(zip(Encoding, (False, True, True, False, False), strict=True))
)
async def test_what_is_listed_is_what_the_server_finds(
    encoding: Encoding, hashes_are_bytes: bool, folder: Path, addresses: Addresses, http: aiohttp.ClientSession
) -> None:
    rng = random.Random(7)
    async with (
        FakeVllm(num_kv_blocks=30, encoding=encoding, hashes_are_bytes=hashes_are_bytes, **addresses()) as vllm,
        running_front(vllm, folder) as front,
    ):
        await front.until_exact()
        trunks = ["".join(rng.choices("abc ", k=150)) for _ in range(3)]
        wrong = []
        for _ in range(24):
            prompt = rng.choice(trunks)[: rng.randrange(40, 150)] + "".join(rng.choices("xyz", k=rng.randrange(30)))
            salt = rng.choice([None, None, "blue"]) if encoding is not Encoding.ARRAYS else None  # which lacks it
            await published(front, vllm)
            expected = num_held(await listed(http, front), prompt, salt)
            found, told = await complete(http, front.url, prompt, **({"cache_salt": salt} if salt else {}))
            assert found == told
            wrong += [(prompt, expected, found)] if expected != found else []
        assert not wrong


async def published(front: Front, vllm: FakeVllm) -> None:
    """Until the front has heard everything that was published."""
    async with asyncio.timeout(10):
        while front.service.client.engine._subscription._next <= vllm.publisher.seq:  # type: ignore[attr-defined]
            await asyncio.sleep(0.005)


async def test_missed_messages_are_asked_for_again(
    folder: Path, addresses: Addresses, http: aiohttp.ClientSession
) -> None:
    async with FakeVllm(**addresses()) as vllm, running_front(vllm, folder) as front:
        await front.until_exact()
        vllm.publisher.num_to_drop = 2
        for letter in "abc":  # the third shows that two are missing
            await complete(http, front.url, letter * 100)
        await published(front, vllm)
        held = await listed(http, front)
        assert all(num_held(held, letter * 100) == 96 for letter in "abc")
        assert front.service.client.is_exact


async def test_a_gap_that_is_not_kept_leaves_an_approximation(
    folder: Path, addresses: Addresses, http: aiohttp.ClientSession
) -> None:
    async with FakeVllm(**addresses()) as vllm, running_front(vllm, folder) as front:
        await front.until_exact()
        await complete(http, front.url, "a" * 100)
        await published(front, vllm)
        vllm.publisher.num_to_drop = 2
        for letter in "bc":
            await complete(http, front.url, letter * 100)
        vllm.publisher._kept.clear()
        await complete(http, front.url, "d" * 100)
        await front.until_exact(False)
        await published(front, vllm)
        assert num_held(await listed(http, front), "a" * 100) == 96
        assert num_held(await listed(http, front), "d" * 100) == 96


async def test_a_cut_stream_is_approximated_by_what_was_computed_and_mended_when_it_is_back(
    folder: Path, addresses: Addresses, http: aiohttp.ClientSession
) -> None:
    async with FakeVllm(num_kv_blocks=20, **addresses()) as vllm, running_front(vllm, folder) as front:
        await front.until_exact()
        await complete(http, front.url, "a" * 100)
        vllm.publisher.close()
        await front.until_exact(False)
        for letter in "bcdefg":  # evicts what was there before
            found, _ = await complete(http, front.url, letter * 100, fairlead_prompt_tokens=tokens(letter * 100))
            assert found == 0
        assert num_held(await listed(http, front), "g" * 100) == 96
        vllm.publisher.open()
        async with asyncio.timeout(20):
            await front.until_exact()
        await published(front, vllm)
        held = await listed(http, front)
        for letter in "abcdefg":
            expected = num_held(await listed(http, front), letter * 100)
            if expected == 96:
                assert (await complete(http, front.url, letter * 100))[0] == 96
        assert len(held) <= 20


def tokens(prompt: str) -> dict[str, Any]:
    """As gateways send them."""
    return {"digest": make_tokenizer().digest, "prompts": [make_tokenizer().encode(prompt)]}


async def test_without_events_the_prompts_that_were_computed_are_approximated(
    folder: Path, http: aiohttp.ClientSession
) -> None:
    async with FakeVllm() as vllm, running_front(vllm, folder) as front:
        await complete(http, front.url, "a" * 100, fairlead_prompt_tokens=tokens("a" * 100))
        assert num_held(await listed(http, front), "a" * 100) == 96
        assert (await complete(http, front.url, "a" * 100))[0] == 96


async def test_a_front_that_comes_late_hears_of_what_was_before(
    folder: Path, addresses: Addresses, http: aiohttp.ClientSession
) -> None:
    async with FakeVllm(**addresses()) as vllm:
        await vllm_complete(http, vllm, "a" * 100)
        async with running_front(vllm, folder) as front:
            await front.until_exact()
            assert num_held(await listed(http, front), "a" * 100) == 96


async def vllm_complete(http: aiohttp.ClientSession, vllm: FakeVllm, prompt: str) -> None:
    async with http.post(f"{vllm.url}/v1/completions", json={"model": "fake", "prompt": prompt}) as response:
        assert response.status == 200


async def test_a_server_that_starts_anew_has_an_empty_cache(
    folder: Path, addresses: Addresses, http: aiohttp.ClientSession
) -> None:
    async with FakeVllm(**addresses()) as vllm, running_front(vllm, folder) as front:
        await front.until_exact()
        await complete(http, front.url, "a" * 100)
        await published(front, vllm)
        await vllm.restart()
        async with asyncio.timeout(20):
            await front.until_exact(False)
            await front.until_exact()
        assert await listed(http, front) == set()
        async with asyncio.timeout(20):
            while front.service.readiness_problem() is not None:
                await asyncio.sleep(0.05)
        assert (await complete(http, front.url, "a" * 100))[0] == 0


async def test_garbage_among_the_events_ends_nothing(
    folder: Path, addresses: Addresses, http: aiohttp.ClientSession
) -> None:
    async with FakeVllm(**addresses()) as vllm, running_front(vllm, folder) as front:
        await front.until_exact()
        for payload in ([], [["BlockStored"]], ["BlockStored", 3], [{"type": "BlockStored", "block_hashes": [1]}], [7]):
            vllm.publisher.publish(payload)
        socket = vllm.publisher._socket
        assert socket is not None
        for frames in (
            [b"x"],
            [b"", b"1", b""],
            [b"", b"\xff" * 8, b"\xc1"],
            [b"t", (10**6).to_bytes(8, "big"), b"\x91" * 9999],
        ):
            await socket.send_multipart(frames)
        await complete(http, front.url, "a" * 100)
        await front.until_exact(False)
        assert (await complete(http, front.url, "a" * 100))[0] == 96


async def test_what_belongs_to_gateways_is_not_passed_on(folder: Path, http: aiohttp.ClientSession) -> None:
    async with FakeVllm() as vllm, running_front(vllm, folder) as front:
        body = {"model": "fake", "prompt": "ahoy", "seed": 3, "fairlead_prompt_tokens": tokens("ahoy")}
        headers = {"x-fairlead-dispatch": "gw:1", "authorization": "Bearer secret", "x-request-id": "r1"}
        async with http.post(f"{front.url}/v1/completions", json=body, headers=headers) as response:
            assert response.status == 200 and response.headers["x-request-id"] == "r1"
        sent = vllm.requests[-1]
        assert sent.json() == {"model": "fake", "prompt": "ahoy", "seed": 3}
        assert sent.headers["x-request-id"] == "r1"
        assert not [name for name in sent.headers if name.startswith("x-fairlead") or name == "authorization"]


async def test_the_load_counts_a_request_from_its_dispatch_on(folder: Path, http: aiohttp.ClientSession) -> None:
    async with FakeVllm() as vllm, running_front(vllm, folder) as front:
        vllm.core.gate.clear()
        vllm.core.step_cost = StepCost(base=0.01)
        body = {"model": "fake", "prompt": "a" * 100, "stream": True, "fairlead_prompt_tokens": tokens("a" * 100)}
        headers = {"x-fairlead-dispatch": "gw:7"}
        request = asyncio.create_task(http.post(f"{front.url}/v1/completions", json=body, headers=headers))
        load = await load_where(http, front, lambda load: load["running"] + load["waiting"] == 1)
        assert load["queued_prefill_tokens"] == 100 and load["seen"] == {"gw": 7}
        assert load["kv_blocks_total"] == 1024 and load["max_num_seqs"] == 8
        (await request).close()
        load = await load_where(http, front, lambda load: load["running"] + load["waiting"] == 0)
        assert load["queued_prefill_tokens"] == 0
        async with asyncio.timeout(10):
            while not vllm.num_cancelled:
                await asyncio.sleep(0.01)


async def load_where(
    http: aiohttp.ClientSession, front: Front, holds: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """The first load line of which that is true."""
    async with http.get(f"{front.url}/fairlead/v1/kv/blocks") as response:
        place = await response.json()
    query = {"epoch": place["epoch"], "seq": str(place["seq"])}
    async with asyncio.timeout(20), http.get(f"{front.url}/fairlead/v1/kv/events", params=query) as response:
        async for line in response.content:
            load: dict[str, Any] | None = json.loads(line).get("load")
            if load is not None and holds(load):
                return load
    raise AssertionError("the stream ended")


async def test_a_full_queue_is_refused_as_ours_refuses(folder: Path, http: aiohttp.ClientSession) -> None:
    async with FakeVllm() as vllm, running_front(vllm, folder, max_num_queued_tokens=150) as front:
        vllm.core.step_cost = StepCost(base=0.01)  # nothing is computed
        first = asyncio.create_task(complete(http, front.url, "a" * 100, fairlead_prompt_tokens=tokens("a" * 100)))
        await load_where(http, front, lambda load: load["running"] + load["waiting"] == 1)
        body = {"model": "fake", "prompt": "b" * 100, "fairlead_prompt_tokens": tokens("b" * 100)}
        async with http.post(f"{front.url}/v1/completions", json=body) as response:
            assert response.status == 429 and response.headers["x-fairlead-reason"] == "engine-full"
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_a_stream_passes_as_it_is_and_a_broken_one_ends_with_an_error(
    folder: Path, http: aiohttp.ClientSession
) -> None:
    async with FakeVllm(tokens=("Ahoy", " there")) as vllm, running_front(vllm, folder) as front:
        body = {"model": "fake", "prompt": "hi", "stream": True, "stream_options": {"include_usage": True}}
        async with http.post(f"{front.url}/v1/completions", json=body) as response:
            text = await response.text()
            assert response.content_type == "text/event-stream"
            assert '"Ahoy"' in text and '"cached_tokens"' in text and text.endswith("data: [DONE]\n\n")
        vllm.core.step_cost = StepCost(base=0.01)
        async with http.post(f"{front.url}/v1/completions", json=body) as response:
            await load_where(http, front, lambda load: load["running"] + load["waiting"] == 1)
            vllm.kill()
            assert '"engine_dead"' in await response.text()


async def test_errors_of_the_server_are_its_own(folder: Path, http: aiohttp.ClientSession) -> None:
    async with FakeVllm() as vllm, running_front(vllm, folder) as front:
        async with http.post(f"{front.url}/v1/completions", json={"model": "fake", "prompt": "a" * 5000}) as response:
            assert response.status == 400 and "context" in (await response.json())["error"]["message"]
        async with http.post(f"{front.url}/v1/completions", data=b"[1]") as response:
            assert response.status == 400
        async with http.post(f"{front.url}/sleep") as response:
            assert response.status == 404
        async with http.get(f"{front.url}/metrics") as response:
            assert "vllm:num_requests_running" in await response.text()


async def test_a_drain_finishes_what_runs_and_then_ends(folder: Path, http: aiohttp.ClientSession) -> None:
    cost = StepCost(base=0.03)
    async with FakeVllm(step_cost=cost) as vllm, running_front(vllm, folder, drain_grace=0.2) as front:
        running = asyncio.create_task(complete(http, front.url, "a" * 50, max_tokens=30))
        await load_where(http, front, lambda load: load["running"] == 1)
        drained = asyncio.create_task(front.service.lifecycle.stopped.wait())
        async with http.post(f"{front.url}/fairlead/v1/drain") as response:
            assert response.status == 202
        async with http.get(f"{front.url}/ready") as response:
            assert response.status == 503 and response.headers["x-fairlead-reason"] == "draining"
        await asyncio.sleep(0.3)
        async with http.post(f"{front.url}/v1/completions", json={"model": "fake", "prompt": "b"}) as response:
            assert response.status == 503 and response.headers["x-fairlead-reason"] == "draining"
        assert not drained.done() and not running.done()
        await running
        assert await drained


async def test_what_steps_cost_is_known_before_the_first_request(folder: Path, http: aiohttp.ClientSession) -> None:
    cost = StepCost(base=0.03, prefill_token=0.0003, decode_seq=0.003)
    limits = replace(DEFAULT_LIMITS, max_num_seqs=16)
    async with (
        FakeVllm(step_cost=cost, limits=limits, token_budget=4096) as vllm,
        running_front(vllm, folder, warm_up=True) as front,
    ):
        told = front.service.client.load.step_cost
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


async def test_a_server_that_does_not_answer_for_a_while_still_has_its_blocks(
    folder: Path, addresses: Addresses, http: aiohttp.ClientSession
) -> None:
    async with FakeVllm(**addresses()) as vllm, running_front(vllm, folder) as front:
        await front.until_exact()
        await complete(http, front.url, "a" * 100)
        await published(front, vllm)
        vllm.is_loaded = False
        await until_serving(front, False)
        vllm.is_loaded = True
        await until_serving(front)
        assert front.service.client.is_exact and num_held(await listed(http, front), "a" * 100) == 96
        assert (await complete(http, front.url, "a" * 100))[0] == 96


@pytest.mark.parametrize("has_events", [True, False])
async def test_a_server_that_starts_anew_and_does_not_tell_of_the_past_has_an_empty_cache(
    has_events: bool, folder: Path, addresses: Addresses, http: aiohttp.ClientSession
) -> None:
    where = {**addresses(), "replay": None} if has_events else {}
    async with FakeVllm(**where) as vllm, running_front(vllm, folder) as front:
        for letter in "abc":
            await complete(http, front.url, letter * 100, fairlead_prompt_tokens=tokens(letter * 100))
        async with asyncio.timeout(20):
            while not front.service.client._num_tokens:  # until it was looked at
                await asyncio.sleep(0.01)
        assert num_held(await listed(http, front), "a" * 100) == 96
        await vllm.restart()
        vllm.counts = dict.fromkeys(vllm.counts, 0)
        async with asyncio.timeout(20):
            while await listed(http, front):
                await asyncio.sleep(0.02)
        await until_serving(front)
        async with asyncio.timeout(20):
            while num_held(await listed(http, front), "d" * 100) != 96:  # it may hear of the new run only now
                await complete(http, front.url, "d" * 100, fairlead_prompt_tokens=tokens("d" * 100))
                await asyncio.sleep(0.02)


async def test_a_prompt_is_not_queued_until_its_whole_answer_is_there(
    folder: Path, http: aiohttp.ClientSession
) -> None:
    """Of a request that is not streamed only that comes."""
    async with (
        FakeVllm(step_cost=StepCost(base=0.02)) as vllm,
        running_front(vllm, folder, max_num_queued_tokens=150) as front,
    ):
        asked = {"fairlead_prompt_tokens": tokens("a" * 100), "max_tokens": 3000}
        running = asyncio.create_task(complete(http, front.url, "a" * 100, **asked))
        load = await load_where(http, front, lambda load: load["running"] == 1 and not load["queued_prefill_tokens"])
        assert load["kv_tokens"] == 100
        asked = {"fairlead_prompt_tokens": tokens("b" * 100), "max_tokens": 2}
        await complete(http, front.url, "b" * 100, **asked)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_body_with_an_image_counts_as_no_more_than_a_prompt(folder: Path, http: aiohttp.ClientSession) -> None:
    async with FakeVllm() as vllm, running_front(vllm, folder) as front:
        vllm.core.step_cost = StepCost(base=0.01)  # nothing is computed
        body = {"model": "fake", "prompt": "ahoy", "stream": True, "image": "x" * 1_000_000}
        async with http.post(f"{front.url}/v1/completions", json=body) as response:
            load = await load_where(http, front, lambda load: load["running"] + load["waiting"] == 1)
            assert load["queued_prefill_tokens"] == 4096
            response.close()


async def test_a_server_without_a_cache_for_prompts_has_no_blocks(folder: Path, http: aiohttp.ClientSession) -> None:
    async with FakeVllm() as vllm, running_front(vllm, folder, enable_prefix_caching=False) as front:
        await complete(http, front.url, "a" * 100, fairlead_prompt_tokens=tokens("a" * 100))
        assert await listed(http, front) == set()
