"""The front before vLLM as it really is, with the dinghy: what the fake is held to. Needs vLLM on this machine;
`FAIRLEAD_REAL_VLLM` names its program where that is not on PATH."""

import asyncio
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import fairlead_engine.demo
from fairlead.manifests.foreign_pod import EVENTS
from fairlead.manifests.vllm import VLLM
from fairlead_engine.front.front_config import FrontConfig
from fairlead_protocol.blocks import extra_bytes, hash_blocks, num_cacheable_blocks
from fairlead_testing.fronts import Front, front_with
from fairlead_testing.real_servers import RealServer, arguments_of_a_pod, free_port, program, running_server

DINGHY = Path(fairlead_engine.demo.__file__).parent / "dinghy"
BLOCK = 32
"""Attention on CPUs takes multiples of it."""
NUM_BLOCKS = 100
POD = f"real-{os.getpid()}"
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
BODIES: tuple[Any, ...] = (
    [1],
    {"model": "other", "prompt": "a"},
    {"model": "boat", "prompt": "a", "max_tokens": -1},
    {"model": "boat", "prompt": "a", "temperature": "hot"},
    {"model": "boat"},
    {"model": "boat", "prompt": [100] * 3000, "stream": True},
)
"""That a server refuses."""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("real-vllm")]


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Started with the arguments of a pod, the addresses filled in."""
    found, port = program("FAIRLEAD_REAL_VLLM", "vllm"), free_port()
    words = arguments_of_a_pod(
        VLLM, DINGHY, port=port, pod=POD, maxModelLen=2048, maxNumSeqs=16, kvCache={"blockSize": BLOCK},
        extraArgs=["--enforce-eager", "--num-gpu-blocks-override", str(NUM_BLOCKS)],
    )  # fmt: skip
    log = tmp_path_factory.mktemp("vllm") / "log"
    with running_server([found, *words], {**VLLM.environment, **ENVIRONMENT}, port, log) as server:
        yield server


def front_config(vllm: RealServer, **settings: Any) -> FrontConfig:
    events = EVENTS.replace("$(POD_NAME)", POD)
    return FrontConfig(**{
        "upstream_host": vllm.host, "upstream_port": vllm.port, "model": str(DINGHY), "served_name": "boat",
        "events": events, "replay": f"{events}-replay", "max_num_seqs": 16, "drain_grace": 0.0, **settings,
    })  # fmt: skip


async def ask(http: aiohttp.ClientSession, url: str, path: str = "/v1/completions", **fields: Any) -> Any:
    body = {"model": "boat", "max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields}
    async with http.post(f"{url}{path}", json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def held(http: aiohttp.ClientSession, front: Front) -> set[str]:
    async with http.get(f"{front.url}/fairlead/v1/kv/blocks") as response:
        return {each for chain in (await response.json())["blocks"] for each in chain["hashes"]}


async def heard(front: Front) -> None:
    """Until nothing new has come of it for a while: vLLM says nowhere what it has published last."""
    subscription = front.service.client.engine._subscription  # type: ignore[attr-defined]
    last = -1
    while last != subscription._next:
        last = subscription._next
        await asyncio.sleep(0.5)


def foreseen(blocks: set[str], ids: list[int], salt: str | None) -> int:
    names = hash_blocks(ids, BLOCK, extra=extra_bytes(cache_salt=salt))[: num_cacheable_blocks(len(ids), BLOCK)]
    return BLOCK * next((index for index, each in enumerate(names) if each.hex() not in blocks), len(names))


async def test_it_says_what_it_is_and_what_its_steps_cost(vllm: RealServer) -> None:
    async with front_with(front_config(vllm), seconds=120) as front:
        model, load = front.service.client.model, front.service.client.load
        assert model is not None and (model.max_model_len, model.block_size) == (2048, BLOCK)
        assert model.num_kv_blocks == NUM_BLOCKS and model.version
        assert load.step_cost.is_known and load.waiting == load.running == 0
        assert front.service.client.is_exact


async def test_cached_tokens_are_as_foreseen(vllm: RealServer) -> None:
    """Common beginnings and salts, on a cache that is too small for all of them."""
    rng = random.Random(5)
    trunks = [[rng.randrange(200, 1500) for _ in range(300)] for _ in range(8)]
    wrong, num_found = [], 0
    async with front_with(front_config(vllm, warm_up=False)) as front, aiohttp.ClientSession() as http:
        async with asyncio.timeout(30):
            await front.until_exact()
        for _ in range(60):
            trunk = rng.choice(trunks)
            ids = trunk[: rng.randrange(60, 300)] + [rng.randrange(200, 1500) for _ in range(rng.randrange(30))]
            salt = rng.choice([None, None, "blue"])
            await heard(front)
            expected = foreseen(await held(http, front), ids, salt)
            answer = await ask(http, front.url, prompt=ids, **({"cache_salt": salt} if salt else {}))
            found = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            wrong += [(len(ids), salt, expected, found)] if expected != found else []
            num_found += found
    assert not wrong
    assert num_found > 60 * 50


async def test_a_front_that_comes_late_hears_of_what_was_before(vllm: RealServer) -> None:
    ids = [700 + index for index in range(100)]
    async with aiohttp.ClientSession() as http:
        await ask(http, vllm.url, prompt=ids)
        async with front_with(front_config(vllm, warm_up=False)) as front, asyncio.timeout(30):
            await front.until_exact()
            await heard(front)
            assert foreseen(await held(http, front), ids, None) == 96


async def test_answers_and_streams_are_as_without_a_front(vllm: RealServer) -> None:
    async with front_with(front_config(vllm, warm_up=False)) as front, aiohttp.ClientSession() as http:
        messages = [{"role": "user", "content": "What is 3 plus 4?"}]
        told = [
            (await ask(http, url, "/v1/chat/completions", messages=messages))["choices"][0]["message"]["content"]
            for url in (vllm.url, front.url)
        ]
        assert told[0] == told[1] and told[0].startswith("7")
        body = {"model": "boat", "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        async with http.post(f"{front.url}/v1/chat/completions", json=body) as response:
            assert response.content_type == "text/event-stream"
            text = await response.text()
        assert text.endswith("data: [DONE]\n\n") and '"cached_tokens"' in text
        ids = front.service.tokenizer.encode_chat(messages)  # type: ignore[union-attr]
        document = await ask(http, front.url, "/tokenize", messages=messages)
        assert document["tokens"] == ids


async def test_what_it_refuses_is_refused_in_its_words(vllm: RealServer) -> None:
    async with front_with(front_config(vllm, warm_up=False)) as front, aiohttp.ClientSession() as http:
        for body in BODIES:
            told = []
            for url in (vllm.url, front.url):
                async with http.post(f"{url}/v1/completions", json=body) as response:
                    told.append((response.status, "message" in json.loads(await response.text())["error"]))
            assert told[0] == told[1] and told[0][0] in (400, 404), (body, told)


async def num_running(vllm: RealServer) -> float:
    return await asyncio.to_thread(vllm.metric, "vllm:num_requests_running")


async def test_whoever_leaves_takes_the_request_along(vllm: RealServer) -> None:
    async with front_with(front_config(vllm, warm_up=False)) as front, aiohttp.ClientSession() as http:
        body = {"model": "boat", "prompt": "ahoy", "max_tokens": 1900, "ignore_eos": True, "stream": True}
        async with http.post(f"{front.url}/v1/completions", json=body) as response:
            await response.content.readany()
            assert front.service.client.load.running == 1
            assert await num_running(vllm) == 1
            response.close()
        async with asyncio.timeout(10):
            while front.service.client.load.running or await num_running(vllm):
                await asyncio.sleep(0.1)


async def test_a_drain_lets_an_answer_end_before_the_server_is_told(vllm: RealServer) -> None:
    async with front_with(front_config(vllm, warm_up=False)) as front, aiohttp.ClientSession() as http:
        running = asyncio.create_task(ask(http, front.url, prompt="ahoy", max_tokens=300))
        while not front.service.client.load.running:
            await asyncio.sleep(0.01)
        hook = asyncio.create_task(http.get(f"{front.url}/fairlead/v1/drained"))
        async with http.post(f"{front.url}/fairlead/v1/drain") as response:
            assert response.status == 202
        assert (await running)["usage"]["completion_tokens"] == 300
        assert (await (await hook).json())["status"] == "drained"
