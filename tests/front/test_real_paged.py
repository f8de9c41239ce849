"""The front before vLLM and SGLang as they really are, with the dinghy: what their fakes are held to. Each needs its
server on this machine; `FAIRLEAD_REAL_VLLM` and `FAIRLEAD_REAL_SGLANG` name their programs where these are not on PATH.
"""

import asyncio
import json
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import fairlead_engine.demo
from fairlead.manifests.foreign_servers import EVENTS, SGLANG, VLLM, ForeignServer
from fairlead_engine.front.front_config import FrontConfig
from fairlead_protocol.blocks import extra_bytes, hash_blocks, num_cacheable_blocks
from fairlead_testing.fronts import Front, front_with
from fairlead_testing.real_servers import RealServer, arguments_of_a_pod, free_port, program, running_server

DINGHY = Path(fairlead_engine.demo.__file__).parent / "dinghy"
BLOCK = 32
"""Attention on CPUs takes multiples of it."""
NUM_BLOCKS = 100
POD = f"real-{os.getpid()}"
BODIES: tuple[Any, ...] = (
    [1],
    {"model": "boat", "prompt": "a", "max_tokens": -1},
    {"model": "boat", "prompt": "a", "temperature": "hot"},
    {"model": "boat"},
    {"model": "boat", "prompt": [100] * 3000, "stream": True},
)
"""That a server refuses."""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("real-paged")]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of server, and what is told here of it."""

    server: ForeignServer
    variable: str
    flags: tuple[str, ...]
    """For a cache of `NUM_BLOCKS`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    running: str
    """The metric of how many sequences run,"""
    told_of_one: float = 1
    """and the sum over its series while one does."""
    idle_seconds: float = 10
    """After which it says that none does."""
    bodies: tuple[Any, ...] = BODIES


REAL_VLLM = Kind(
    server=VLLM,
    variable="FAIRLEAD_REAL_VLLM",
    flags=("--enforce-eager", "--num-gpu-blocks-override", str(NUM_BLOCKS)),
    environment={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
    running="vllm:num_requests_running",
    bodies=(*BODIES, {"model": "other", "prompt": "a"}),
)
REAL_SGLANG = Kind(
    server=SGLANG,
    variable="FAIRLEAD_REAL_SGLANG",
    flags=("--max-total-tokens", str(NUM_BLOCKS * BLOCK)),
    running="sglang:num_running_reqs",
    told_of_one=2,  # for all of them, and for their priority
    idle_seconds=60,
)


@pytest.fixture(scope="module", params=(REAL_VLLM, REAL_SGLANG), ids=("vllm", "sglang"))
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture(scope="module")
def server(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Started with the arguments of a pod, the addresses filled in."""
    found, port = program(kind.variable, kind.server.command[0]), free_port()
    words = arguments_of_a_pod(
        kind.server, DINGHY, port=port, pod=POD, maxModelLen=2048, maxNumSeqs=16,
        kvCache={"blockSize": BLOCK}, extraArgs=[*kind.flags],
    )  # fmt: skip
    log = tmp_path_factory.mktemp(kind.server.kind) / "log"
    with running_server([found, *words], {**kind.server.environment, **kind.environment}, port, log) as made:
        yield made


def front_config(kind: Kind, server: RealServer, **settings: Any) -> FrontConfig:
    events = EVENTS.replace("$(POD_NAME)", POD)
    return FrontConfig(**{
        "engine": kind.server.kind, "upstream_host": server.host, "upstream_port": server.port, "model": str(DINGHY),
        "served_name": "boat", "events": events, "replay": f"{events}-replay", "max_num_seqs": 16, "drain_grace": 0.0,
        **settings,
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
    """Until nothing new has come of it for a while: servers say nowhere what they have published last."""
    subscription = front.service.client.engine._subscription  # type: ignore[attr-defined]
    last = -1
    while last != subscription._next:
        last = subscription._next
        await asyncio.sleep(0.5)


def foreseen(blocks: set[str], ids: list[int], salt: str | None) -> int:
    names = hash_blocks(ids, BLOCK, extra=extra_bytes(cache_salt=salt))[: num_cacheable_blocks(len(ids), BLOCK)]
    return BLOCK * next((index for index, each in enumerate(names) if each.hex() not in blocks), len(names))


async def test_it_says_what_it_is_and_what_its_steps_cost(kind: Kind, server: RealServer) -> None:
    async with front_with(front_config(kind, server), seconds=120) as front:
        model, load = front.service.client.model, front.service.client.load
        assert model is not None and (model.max_model_len, model.block_size) == (2048, BLOCK)
        assert model.num_kv_blocks == NUM_BLOCKS and model.version
        assert load.step_cost.is_known and load.waiting == load.running == 0
        assert front.service.client.is_exact


async def test_cached_tokens_are_as_foreseen(kind: Kind, server: RealServer) -> None:
    """Common beginnings and salts, on a cache that is too small for all of them."""
    rng = random.Random(5)
    trunks = [[rng.randrange(200, 1500) for _ in range(300)] for _ in range(8)]
    wrong, num_found = [], 0
    async with front_with(front_config(kind, server, warm_up=False)) as front, aiohttp.ClientSession() as http:
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


async def test_a_front_that_comes_late_hears_of_what_was_before(kind: Kind, server: RealServer) -> None:
    ids = [700 + index for index in range(100)]
    async with aiohttp.ClientSession() as http:
        await ask(http, server.url, prompt=ids)
        async with front_with(front_config(kind, server, warm_up=False)) as front, asyncio.timeout(30):
            await front.until_exact()
            await heard(front)
            assert foreseen(await held(http, front), ids, None) == 96


async def test_answers_and_streams_are_as_without_a_front(kind: Kind, server: RealServer) -> None:
    async with front_with(front_config(kind, server, warm_up=False)) as front, aiohttp.ClientSession() as http:
        messages = [{"role": "user", "content": "What is 3 plus 4?"}]
        told = [
            (await ask(http, url, "/v1/chat/completions", messages=messages))["choices"][0]["message"]["content"]
            for url in (server.url, front.url)
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


async def test_what_it_refuses_is_refused_in_its_words(kind: Kind, server: RealServer) -> None:
    async with front_with(front_config(kind, server, warm_up=False)) as front, aiohttp.ClientSession() as http:
        for body in kind.bodies:
            told = []
            for url in (server.url, front.url):
                async with http.post(f"{url}/v1/completions", json=body) as response:
                    document = json.loads(await response.text())
                    told.append((response.status, document.get("error", document)["message"]))
                    assert url == server.url or "error" in document
            assert told[0][0] == told[1][0] in (400, 404) and all(message for _, message in told), (body, told)


async def num_running(kind: Kind, server: RealServer) -> float:
    return await asyncio.to_thread(server.metric, kind.running)


async def test_whoever_leaves_takes_the_request_along(kind: Kind, server: RealServer) -> None:
    async with front_with(front_config(kind, server, warm_up=False)) as front, aiohttp.ClientSession() as http:
        body = {"model": "boat", "prompt": "ahoy", "max_tokens": 1900, "ignore_eos": True, "stream": True}
        async with http.post(f"{front.url}/v1/completions", json=body) as response:
            await response.content.readany()
            assert front.service.client.load.running == 1
            async with asyncio.timeout(10):
                while not (num := await num_running(kind, server)):
                    await asyncio.sleep(0.1)
            assert num == kind.told_of_one
            response.close()
        async with asyncio.timeout(kind.idle_seconds):
            while front.service.client.load.running or await num_running(kind, server):
                await asyncio.sleep(0.1)


async def test_a_drain_lets_an_answer_end(kind: Kind, server: RealServer) -> None:
    async with front_with(front_config(kind, server, warm_up=False)) as front, aiohttp.ClientSession() as http:
        running = asyncio.create_task(ask(http, front.url, prompt="ahoy", max_tokens=300))
        while not front.service.client.load.running:
            await asyncio.sleep(0.01)
        async with http.post(f"{front.url}/fairlead/v1/drain") as response:
            assert response.status == 202
        assert (await running)["usage"]["completion_tokens"] == 300
        await front.service.lifecycle.stopped.wait()
