"""Paths that only servers which are not ours have, through gateway and front: OpenAI's client sends a file to be
written down, vLLM's own paths are JSON, and what a server has not is answered 404 with what it has."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from fairlead.routing.replica import Replica
from fairlead_common.http.forms import Form
from fairlead_testing.fake_sglang import FakeSglang
from fairlead_testing.fake_vllm import FakeVllm
from fairlead_testing.fronts import running_front, write_tokenizer
from fairlead_testing.gateways import make_pool, running_gateway
from fairlead_testing.paged_server import PagedServer

WAVE = b"RIFF\x00\xff\r\n--" * 5000
AUDIO = "/v1/audio/transcriptions"
Serving = Callable[..., Awaitable[str]]


@pytest.fixture
async def serving(tmp_path: Path) -> AsyncIterator[Serving]:
    """`await serving(*servers)`: the address of a gateway with a front before each."""
    async with AsyncExitStack() as stack:

        async def make(*servers: PagedServer) -> str:
            folder, replicas = write_tokenizer(tmp_path), []
            for index, server in enumerate(servers):
                await stack.enter_async_context(server)
                front = await stack.enter_async_context(running_front(server, folder))
                replicas.append(Replica(f"pod-{index}", f"pod-{index}", front.host, front.port))
            pool = make_pool(replicas, aliases=("whisper",))
            _, _, url = await stack.enter_async_context(running_gateway(pool))
            return url

        yield make


async def test_a_file_is_written_down_by_whichever_server_has_room(serving: Serving) -> None:
    vllms = [FakeVllm(), FakeVllm()]
    url = await serving(*vllms)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        for _ in range(4):
            told = await client.audio.transcriptions.create(model="whisper", file=("a.wav", WAVE), language="en")
            assert told.text == "ahoy"
        with pytest.warns(DeprecationWarning):
            assert (await client.audio.translations.create(model="whisper", file=("a.wav", WAVE))).text == "ahoy"
        with pytest.raises(openai.NotFoundError, match="'other'"):
            await client.audio.transcriptions.create(model="other", file=("a.wav", WAVE))
    requests = [request for vllm in vllms for request in vllm.requests]
    assert [request.path for request in requests].count(AUDIO) == 4
    for request in requests:
        form = Form.of(request.headers["content-type"], request.body)
        assert (form.value("model"), form.value("file")) == (b"fake", WAVE)  # by the server's name
        assert not any(name.startswith("x-fairlead") for name in request.headers)


async def test_a_models_own_path_needs_no_model(serving: Serving) -> None:
    vllm = FakeVllm()
    async with httpx.AsyncClient(base_url=await serving(vllm)) as http:
        reply = await http.post(f"/default/fake{AUDIO}", files={"file": ("a.wav", WAVE)})
        assert (reply.status_code, reply.json()) == (200, {"text": "ahoy"})
        assert (await http.post(AUDIO, files={"file": ("a.wav", WAVE)})).status_code == 400
        [request] = vllm.requests
        assert Form.of(request.headers["content-type"], request.body).value("model") == b"fake"
        body: dict[str, Any] = {"model": "whisper", "input": "a", "task": "token_embed"}
        assert (await http.post("/pooling", json=body)).json() == {"object": "list", "data": []}
    assert vllm.requests[1].json() == {**body, "model": "fake"}


async def test_what_a_server_has_not_is_answered_with_what_it_has(serving: Serving) -> None:
    sglang = FakeSglang()
    async with httpx.AsyncClient(base_url=await serving(sglang)) as http:
        reply = await http.post(AUDIO, data={"model": "fake"}, files={"file": ("a.wav", WAVE)})
        assert reply.json() == {"text": "ahoy"}
        reply = await http.post("/pooling", json={"model": "fake", "input": "a"})
        assert reply.status_code == 404
        message = reply.json()["error"]["message"]
        assert "/pooling" in message and AUDIO in message and "/v1/chat/completions" in message
        reply = await http.post(AUDIO, json={"model": "fake"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_form")
        assert (await http.get(AUDIO)).status_code == 405
