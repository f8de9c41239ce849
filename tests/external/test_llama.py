"""A front before a fake of llama.cpp's server: a cache that is told of by nobody, in slots."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_common.http.client import TimeLimits
from fairlead_engine.external import server_questions
from fairlead_engine.external.foreign_blocks import SequencePlace, SequencePlaces
from fairlead_engine.external.foreign_engine import NotServing
from fairlead_engine.external.front_config import FrontConfig
from fairlead_engine.external.llama_server import LlamaServer, read_gauges
from fairlead_testing.fake_llama import BUILD, FakeLlama
from fairlead_testing.fronts import Front, front_with, num_foreseen, tokens_field

SIZE = 16


def config(llama: FakeLlama, folder: Path, **settings: Any) -> FrontConfig:
    return FrontConfig(**{
        "engine": "llama-cpp", "upstream_host": llama.host, "upstream_port": llama.port, "model": str(folder),
        "served_name": "fake", "max_num_seqs": 4, "drain_grace": 0.0, "drain_timeout": 5.0, "warm_up": False,
        **settings,
    })  # fmt: skip


async def ask(http: aiohttp.ClientSession, front: Front, ids: list[int], **fields: Any) -> int:
    """Cached tokens."""
    body = {"model": "fake", "prompt": ids, "max_tokens": 2, **tokens_field(ids), **fields}
    async with http.post(f"{front.url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        return int((await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"])


async def test_it_says_what_it_is(folder: Path) -> None:
    async with FakeLlama(num_slots=3, slot_context=1024) as llama, front_with(config(llama, folder)) as front:
        model = front.service.model()
        assert (model.version, model.max_model_len, model.block_size) == (BUILD, 1024, SIZE)
        assert (model.num_kv_blocks, model.num_places) == (192, 3)
        assert front.service.model_info().engine_version == f"llama.cpp {BUILD}"


async def test_what_slots_hold_is_foreseen(folder: Path, http: aiohttp.ClientSession) -> None:
    """One after another, with more beginnings than there are slots."""
    rng = random.Random(3)
    trunks = [[rng.randrange(40, 90) for _ in range(150)] for _ in range(5)]
    async with FakeLlama(num_slots=3) as llama, front_with(config(llama, folder)) as front:
        seen = []
        for _ in range(60):
            ids = rng.choice(trunks)[: rng.randrange(40, 150)] + rng.choices(range(40, 90), k=rng.randrange(1, 30))
            expected = num_foreseen(await front.held(http), ids)
            seen.append((expected, await ask(http, front, ids)))
    assert not [each for each in seen if not 0 <= each[1] - each[0] < SIZE]
    assert sum(found for _, found in seen) > 60 * 20


async def test_what_computes_serves_nobody_else_until_it_is_over(folder: Path, http: aiohttp.ClientSession) -> None:
    ids = list(range(40, 90)) * 2
    async with FakeLlama(num_slots=2, step_seconds=0.05) as llama, front_with(config(llama, folder)) as front:
        await ask(http, front, ids)
        assert num_foreseen(await front.held(http), ids) == 96
        running = asyncio.create_task(ask(http, front, ids, max_tokens=40))
        while not front.service.client.load.running:
            await asyncio.sleep(0.01)
        assert num_foreseen(await front.held(http), ids) == 0
        assert await ask(http, front, ids) == 0
        assert await running >= 96
        assert num_foreseen(await front.held(http), ids) == 96


async def test_a_long_step_is_not_taken_for_its_death(
    folder: Path, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = TimeLimits(connect=0.2, first_byte=0.2, silence=0.2, whole=0.2)
    monkeypatch.setattr(server_questions, "_LIMITS", limits)
    async with FakeLlama() as llama, front_with(config(llama, folder)) as front:
        kind = front.service.client.engine
        before = await kind.gauges()
        llama.is_stuck = True
        assert await kind.gauges() == before
        assert await ask(http, front, list(range(40, 90))) == 0
        llama.is_loaded = False
        with pytest.raises(NotServing):
            await kind.gauges()
        llama.is_stuck, llama.is_loaded = False, True


async def test_a_server_that_loads_or_serves_another_is_waited_for() -> None:
    async with FakeLlama() as llama:
        llama.is_loaded = False
        with pytest.raises(NotServing, match="503"):
            await LlamaServer(config(llama, Path("/model"))).describe()
        llama.is_loaded = True
        with pytest.raises(NotServing, match="it serves no model 'other', but fake"):
            await LlamaServer(config(llama, Path("/model"), served_name="other")).describe()


async def test_a_stream_passes_and_whoever_leaves_takes_the_request_along(
    folder: Path, http: aiohttp.ClientSession
) -> None:
    body = {"model": "fake", "prompt": "ahoy", "stream": True, "stream_options": {"include_usage": True}}
    async with FakeLlama(step_seconds=0.01) as llama, front_with(config(llama, folder)) as front:
        async with http.post(f"{front.url}/v1/completions", json=body) as response:
            text = await response.text()
        assert text.endswith("data: [DONE]\n\n") and '"cached_tokens"' in text
        async with http.post(f"{front.url}/v1/completions", json={**body, "max_tokens": 3000}) as response:
            await response.content.readany()
            response.close()
        async with asyncio.timeout(10):
            while not llama.num_cancelled or front.service.client.load.running:
                await asyncio.sleep(0.01)
        async with http.post(f"{front.url}/v1/completions", json={**body, "prompt": [50] * 5000}) as response:
            assert response.status == 400
            assert json.loads(await response.text())["error"]["type"] == "exceed_context_size_error"


async def test_a_connection_that_ends_with_its_stream_is_not_used_again(
    folder: Path, http: aiohttp.ClientSession
) -> None:
    body = {"model": "fake", "prompt": "ahoy", "stream": True}
    async with FakeLlama(step_seconds=0.002) as llama, front_with(config(llama, folder, warm_up=True)) as front:
        assert front.service.client.load.step_cost.is_known
        for _ in range(4):
            async with http.post(f"{front.url}/v1/completions", json=body) as response:
                assert (await response.text()).endswith("data: [DONE]\n\n")


def test_gauges_are_read_from_its_metrics() -> None:
    text = "llamacpp:requests_deferred 3\nllamacpp:requests_processing 2\nllamacpp:prompt_tokens_total 1e3\n"
    gauges = read_gauges(f"{text}llamacpp:tokens_predicted_total 7\n", 4)
    assert (gauges.waiting, gauges.kv_usage_ratio, gauges.num_tokens) == (3, 0.5, 1007)
    with pytest.raises(NotServing, match="--metrics"):
        read_gauges("", 4)
    text = "llamacpp:requests_deferred 1e308\n" * 2 + 'llamacpp:requests_processing{a="b"} -1e308\n' * 2
    gauges = read_gauges(text, 4)
    assert (gauges.waiting, gauges.kv_usage_ratio) == (2**40, 0)


@given(st.lists(st.tuples(st.lists(st.binary(min_size=1, max_size=1), max_size=6), st.booleans()), max_size=30))
def test_no_place_is_taken_twice_and_none_holds_what_nobody_computed(turns: list[tuple[list[bytes], bool]]) -> None:
    places = SequencePlaces(3)
    busy: list[SequencePlace] = []
    computed: set[tuple[bytes, ...]] = {()}
    for names, ends_one in turns:
        if ends_one and busy:
            places.left(busy.pop(0))
        place = places.take(names)
        assert (place is None) == (len(busy) == 3)
        if place is not None:
            assert place not in busy
            busy.append(place)
            places.computed(place, names)
            computed |= {tuple(names[:end]) for end in range(len(names) + 1)}
        assert {tuple(each) for each in places.held()} <= computed
        assert len(list(places.held())) == 3 - len(busy)
