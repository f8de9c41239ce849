"""The front before llama.cpp's server as it really is, with the dinghy: what the fake is held to. Needs `llama-server`;
`FAIRLEAD_REAL_LLAMA_SERVER` names it where it is not on PATH."""

import asyncio
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fairlead.manifests.foreign_servers import LLAMA_CPP
from fairlead_engine.front.front_config import FrontConfig
from fairlead_engine_testing.gguf_files import write_dinghy
from fairlead_protocol.blocks import hash_blocks, num_cacheable_blocks
from fairlead_testing.fronts import Front, front_with
from fairlead_testing.real_servers import RealServer, arguments_of_a_pod, free_port, program, running_server

SIZE = 16
BODIES: tuple[Any, ...] = ([1], {"model": "boat", "prompt": [100] * 3000, "stream": True}, {"model": "boat"})
"""That a server refuses."""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("real-llama")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dinghy(tmp_path_factory.mktemp("dinghy"))


@pytest.fixture(scope="module")
def llama(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Started with the arguments of a pod, the addresses filled in."""
    found, port = program("FAIRLEAD_REAL_LLAMA_SERVER", "llama-server"), free_port()
    words = arguments_of_a_pod(
        LLAMA_CPP, model, port=port, pod=f"real-{os.getpid()}", maxModelLen=2048, maxNumSeqs=3,
        extraArgs=["--threads", "1"],
    )  # fmt: skip
    log = tmp_path_factory.mktemp("llama") / "log"
    with running_server([found, *words], LLAMA_CPP.environment, port, log) as server:
        yield server


def front_config(llama: RealServer, model: Path, **settings: Any) -> FrontConfig:
    return FrontConfig(**{
        "engine": "llama-cpp", "upstream_host": llama.host, "upstream_port": llama.port, "model": str(model),
        "served_name": "boat", "max_num_seqs": 3, "drain_grace": 0.0, "warm_up": False, **settings,
    })  # fmt: skip


async def ask(http: aiohttp.ClientSession, front: Front, path: str = "/v1/completions", **fields: Any) -> Any:
    body = {"model": "boat", "max_tokens": 4, "temperature": 0, **fields}
    async with http.post(f"{front.url}{path}", json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def foreseen(http: aiohttp.ClientSession, front: Front, ids: list[int]) -> int:
    async with http.get(f"{front.url}/fairlead/v1/kv/blocks") as response:
        held = {each for chain in (await response.json())["blocks"] for each in chain["hashes"]}
    names = hash_blocks(ids, SIZE)[: num_cacheable_blocks(len(ids), SIZE)]
    return SIZE * next((index for index, each in enumerate(names) if each.hex() not in held), len(names))


async def test_it_says_what_it_is_and_what_its_steps_cost(llama: RealServer, model: Path) -> None:
    async with front_with(front_config(llama, model, warm_up=True), seconds=120) as front:
        described, load = front.service.model(), front.service.client.load
        assert (described.max_model_len, described.num_places, described.num_kv_blocks) == (2048, 3, 384)
        assert load.step_cost.is_known and load.waiting == load.running == 0


async def test_what_slots_hold_is_foreseen(llama: RealServer, model: Path) -> None:
    """One after another, with more beginnings than there are slots."""
    rng = random.Random(3)
    trunks = [[rng.randrange(200, 1500) for _ in range(300)] for _ in range(5)]
    seen = []
    async with front_with(front_config(llama, model)) as front, aiohttp.ClientSession() as http:
        digest = front.service.model_info().digest
        for turn in range(60):
            trunk = trunks[turn] if turn < 3 else rng.choice(trunks)
            ids = trunk[: rng.randrange(60, 300)] + [rng.randrange(200, 1500) for _ in range(rng.randrange(1, 30))]
            expected = await foreseen(http, front, ids)
            told = {"digest": digest, "prompts": [ids]}
            usage = (await ask(http, front, prompt=ids, fairlead_prompt_tokens=told))["usage"]
            if turn >= 3:  # by then every slot has one of ours
                seen.append((expected, usage["prompt_tokens_details"]["cached_tokens"]))
    assert not [each for each in seen if abs(each[1] - each[0]) > SIZE], seen
    assert sum(found for _, found in seen) > 57 * 50


async def test_answers_streams_and_prompts_are_the_servers(llama: RealServer, model: Path) -> None:
    messages = [{"role": "user", "content": "What is 3 plus 4?"}]
    async with front_with(front_config(llama, model)) as front, aiohttp.ClientSession() as http:
        told = await ask(http, front, "/v1/chat/completions", messages=messages)
        assert told["choices"][0]["message"]["content"].startswith("7")
        assert front.service.tokenizer is not None
        assert told["usage"]["prompt_tokens"] == len(front.service.tokenizer.encode_chat(messages))
        body = {"model": "boat", "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        async with http.post(f"{front.url}/v1/chat/completions", json=body) as response:
            assert response.content_type == "text/event-stream"
            text = await response.text()
        assert text.endswith("data: [DONE]\n\n") and '"cached_tokens"' in text


async def test_what_it_refuses_is_refused_in_its_words(llama: RealServer, model: Path) -> None:
    async with front_with(front_config(llama, model)) as front, aiohttp.ClientSession() as http:
        for body in BODIES:
            told = []
            for url in (llama.url, front.url):
                async with http.post(f"{url}/v1/completions", json=body) as response:
                    told.append((response.status, "message" in json.loads(await response.text())["error"]))
            assert all(each[1] and each[0] >= 400 for each in told), (body, told)


async def test_whoever_leaves_takes_the_request_along(llama: RealServer, model: Path) -> None:
    async with front_with(front_config(llama, model)) as front, aiohttp.ClientSession() as http:
        body = {"model": "boat", "prompt": "ahoy", "max_tokens": 1900, "ignore_eos": True, "stream": True}
        async with http.post(f"{front.url}/v1/completions", json=body) as response:
            await response.content.readany()
            assert front.service.client.load.running == 1
            response.close()
        async with asyncio.timeout(10):
            while front.service.client.load.running or await num_running(llama):
                await asyncio.sleep(0.1)


async def num_running(llama: RealServer) -> float:
    return await asyncio.to_thread(llama.metric, "llamacpp:requests_processing")


async def test_a_drain_lets_an_answer_end(llama: RealServer, model: Path) -> None:
    async with front_with(front_config(llama, model)) as front, aiohttp.ClientSession() as http:
        running = asyncio.create_task(ask(http, front, prompt="ahoy", max_tokens=300, ignore_eos=True))
        while not front.service.client.load.running:
            await asyncio.sleep(0.01)
        async with http.post(f"{front.url}/fairlead/v1/drain") as response:
            assert response.status == 202
        assert (await running)["usage"]["completion_tokens"] == 300
        await front.service.lifecycle.stopped.wait()
