"""The front before vLLM, SGLang and llama.cpp as they really are, with the dinghy: what their fakes are held to. Each
needs its server on this machine; `FAIRLEAD_REAL_VLLM`, `FAIRLEAD_REAL_SGLANG` and `FAIRLEAD_REAL_LLAMA_SERVER` name
their programs where these are not on PATH.
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
from fairlead.manifests.foreign_servers import EVENTS, LLAMA_CPP, SGLANG, VLLM, ForeignServer
from fairlead_engine.external.front_config import FrontConfig
from fairlead_engine_testing.gguf_files import write_dinghy
from fairlead_testing.fronts import Front, front_with, num_foreseen
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
    command: str = ""
    """Name of the program where the pod's container has none of its own."""
    flags: tuple[str, ...]
    """For a cache of `NUM_BLOCKS` where it has one."""
    block: int = BLOCK
    max_num_seqs: int = 16
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
REAL_LLAMA = Kind(
    server=LLAMA_CPP,
    variable="FAIRLEAD_REAL_LLAMA_SERVER",
    command="llama-server",
    flags=("--threads", "1"),
    block=16,
    max_num_seqs=3,
    running="llamacpp:requests_processing",
    bodies=([1], {"model": "boat", "prompt": [100] * 3000, "stream": True}, {"model": "boat"}),
)
KINDS = (REAL_VLLM, REAL_SGLANG, REAL_LLAMA)
paged_only = pytest.mark.parametrize("kind", KINDS[:2], ids=("vllm", "sglang"), indirect=True)
llama_only = pytest.mark.parametrize("kind", KINDS[2:], ids=("llama",), indirect=True)


@pytest.fixture(scope="module", params=KINDS, ids=("vllm", "sglang", "llama"))
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture(scope="module")
def model(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dinghy(tmp_path_factory.mktemp("dinghy")) if kind is REAL_LLAMA else DINGHY


@pytest.fixture(scope="module")
def server(kind: Kind, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Started with the arguments of a pod, the addresses filled in."""
    found, port = program(kind.variable, kind.command or kind.server.command[0]), free_port()
    cache = {} if kind is REAL_LLAMA else {"kvCache": {"blockSize": kind.block}}
    words = arguments_of_a_pod(
        kind.server, model, port=port, pod=POD, maxModelLen=2048, maxNumSeqs=kind.max_num_seqs,
        extraArgs=[*kind.flags], **cache,
    )  # fmt: skip
    log = tmp_path_factory.mktemp(kind.server.kind) / "log"
    with running_server([found, *words], {**kind.server.environment, **kind.environment}, port, log) as made:
        yield made


def front_config(kind: Kind, server: RealServer, model: Path, *, warm_up: bool = False) -> FrontConfig:
    events = EVENTS.replace("$(POD_NAME)", POD)
    paged = {} if kind is REAL_LLAMA else {"events": events, "replay": f"{events}-replay"}
    return FrontConfig(**{
        "engine": kind.server.kind, "upstream_host": server.host, "upstream_port": server.port, "model": str(model),
        "served_name": "boat", "max_num_seqs": kind.max_num_seqs, "drain_grace": 0.0, "warm_up": warm_up, **paged,
    })  # fmt: skip


async def ask(http: aiohttp.ClientSession, url: str, path: str = "/v1/completions", **fields: Any) -> Any:
    body = {"model": "boat", "max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields}
    async with http.post(f"{url}{path}", json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def heard(front: Front) -> None:
    """Until nothing new has come of it for a while: servers say nowhere what they have published last."""
    subscription = front.service.client.engine._subscription  # type: ignore[attr-defined]
    last = -1
    while last != subscription._next:
        last = subscription._next
        await asyncio.sleep(0.5)


async def test_it_says_what_it_is_and_what_its_steps_cost(kind: Kind, server: RealServer, model: Path) -> None:
    async with front_with(front_config(kind, server, model, warm_up=True), seconds=120) as front:
        described, load = front.service.client.model, front.service.client.load
        assert described is not None and described.max_model_len == 2048
        assert load.step_cost.is_known and load.waiting == load.running == 0
        if kind is REAL_LLAMA:
            told = front.service.model()
            assert (told.max_model_len, told.num_places, told.num_kv_blocks) == (2048, 3, 384)
        else:
            assert (described.block_size, described.num_kv_blocks) == (BLOCK, NUM_BLOCKS) and described.version
            assert front.service.client.is_exact


@paged_only
async def test_cached_tokens_are_as_foreseen(kind: Kind, server: RealServer, model: Path) -> None:
    """Common beginnings and salts, on a cache that is too small for all of them."""
    rng = random.Random(5)
    trunks = [[rng.randrange(200, 1500) for _ in range(300)] for _ in range(8)]
    wrong, num_found = [], 0
    async with front_with(front_config(kind, server, model)) as front, aiohttp.ClientSession() as http:
        async with asyncio.timeout(30):
            await front.until_exact()
        for _ in range(60):
            trunk = rng.choice(trunks)
            ids = trunk[: rng.randrange(60, 300)] + [rng.randrange(200, 1500) for _ in range(rng.randrange(30))]
            salt = rng.choice([None, None, "blue"])
            await heard(front)
            expected = num_foreseen(await front.held(http), ids, size=kind.block, salt=salt)
            answer = await ask(http, front.url, prompt=ids, **({"cache_salt": salt} if salt else {}))
            found = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            wrong += [(len(ids), salt, expected, found)] if expected != found else []
            num_found += found
    assert not wrong
    assert num_found > 60 * 50


@llama_only
async def test_what_slots_hold_is_foreseen(kind: Kind, server: RealServer, model: Path) -> None:
    """One after another, with more beginnings than there are slots."""
    rng = random.Random(3)
    trunks = [[rng.randrange(200, 1500) for _ in range(300)] for _ in range(5)]
    seen = []
    async with front_with(front_config(kind, server, model)) as front, aiohttp.ClientSession() as http:
        digest = front.service.model_info().digest
        for turn in range(60):
            trunk = trunks[turn] if turn < 3 else rng.choice(trunks)
            ids = trunk[: rng.randrange(60, 300)] + [rng.randrange(200, 1500) for _ in range(rng.randrange(1, 30))]
            expected = num_foreseen(await front.held(http), ids, size=kind.block)
            told = {"digest": digest, "prompts": [ids]}
            usage = (await ask(http, front.url, prompt=ids, fairlead_prompt_tokens=told))["usage"]
            if turn >= 3:  # by then every slot has one of ours
                seen.append((expected, usage["prompt_tokens_details"]["cached_tokens"]))
    assert not [each for each in seen if abs(each[1] - each[0]) > kind.block], seen
    assert sum(found for _, found in seen) > 57 * 50


@paged_only
async def test_a_front_that_comes_late_hears_of_what_was_before(kind: Kind, server: RealServer, model: Path) -> None:
    ids = [700 + index for index in range(100)]
    async with aiohttp.ClientSession() as http:
        await ask(http, server.url, prompt=ids)
        async with front_with(front_config(kind, server, model)) as front, asyncio.timeout(30):
            await front.until_exact()
            await heard(front)
            assert num_foreseen(await front.held(http), ids, size=kind.block) == 96


async def test_answers_and_streams_are_as_without_a_front(kind: Kind, server: RealServer, model: Path) -> None:
    async with front_with(front_config(kind, server, model)) as front, aiohttp.ClientSession() as http:
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
        assert (await ask(http, front.url, "/v1/chat/completions", messages=messages))["usage"]["prompt_tokens"] == len(
            ids
        )
        if kind is not REAL_LLAMA:
            assert (await ask(http, front.url, "/tokenize", messages=messages))["tokens"] == ids


async def test_what_it_refuses_is_refused_in_its_words(kind: Kind, server: RealServer, model: Path) -> None:
    async with front_with(front_config(kind, server, model)) as front, aiohttp.ClientSession() as http:
        for body in kind.bodies:
            told = []
            for url in (server.url, front.url):
                async with http.post(f"{url}/v1/completions", json=body) as response:
                    document = json.loads(await response.text())
                    told.append((response.status, document.get("error", document)["message"]))
                    assert url == server.url or "error" in document
            assert all(status >= 400 and message for status, message in told), (body, told)
            assert kind is REAL_LLAMA or told[0][0] == told[1][0] in (400, 404), (body, told)


async def num_running(kind: Kind, server: RealServer) -> float:
    return await asyncio.to_thread(server.metric, kind.running)


async def test_whoever_leaves_takes_the_request_along(kind: Kind, server: RealServer, model: Path) -> None:
    async with front_with(front_config(kind, server, model)) as front, aiohttp.ClientSession() as http:
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


async def test_a_drain_lets_an_answer_end(kind: Kind, server: RealServer, model: Path) -> None:
    async with front_with(front_config(kind, server, model)) as front, aiohttp.ClientSession() as http:
        running = asyncio.create_task(ask(http, front.url, prompt="ahoy", max_tokens=300))
        while not front.service.client.load.running:
            await asyncio.sleep(0.01)
        async with http.post(f"{front.url}/fairlead/v1/drain") as response:
            assert response.status == 202
        assert (await running)["usage"]["completion_tokens"] == 300
        await front.service.lifecycle.stopped.wait()
