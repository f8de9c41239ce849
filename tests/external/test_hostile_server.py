"""A front whose server answers anything: it waits, says so, and serves once the server is well."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from fairlead_engine.external import front_proxy
from fairlead_engine.external.foreign_engine import NotServing
from fairlead_engine.external.front_config import FrontConfig
from fairlead_engine.external.zmq_servers import VllmServer
from fairlead_testing.fronts import Front, front_with, tokens_field
from fairlead_testing.http import listening

METRICS = (
    'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
    "vllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n"
)
WELL = {
    "/version": b'{"version": "1"}',
    "/v1/models": b'{"data": [{"id": "fake", "max_model_len": 1000}]}',
    "/metrics": METRICS.encode(),
}
ODD = [
    {"/version": b'{"version": "\xff\xfe"}'},
    {"/version": b"\xff\xfe{"},
    {"/v1/models": b"[" * 100_000},
    {"/v1/models": b'{"a": ' * 50_000},
    {"/v1/models": b'{"data": [{"id": "fake", "max_model_len": -5}]}'},
    {"/metrics": METRICS.replace('"100"', f'"{10**400}"').encode()},
    {"/metrics": METRICS.replace("waiting 0", "waiting NaN").encode()},
]


@asynccontextmanager
async def server(answers: dict[str, bytes]) -> AsyncIterator[int]:
    """Its port. What `answers` has counts from the next request on."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
        body = answers.get(path, b"{}")
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with running:
        yield running.sockets[0].getsockname()[1]


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
async def test_a_server_that_answers_anything_is_waited_for(
    odd: dict[str, bytes], folder: Path, http: aiohttp.ClientSession
) -> None:
    answers = {**WELL, **odd}
    async with server(answers) as port:
        config = FrontConfig(
            upstream_host="127.0.0.1", upstream_port=port, model=str(folder), served_name="fake", warm_up=False, port=1
        )

        async def mend() -> None:
            await asyncio.sleep(0.5)  # some questions were answered so
            answers.update(WELL)

        mending = asyncio.create_task(mend())
        async with front_with(config) as front, http.get(f"{front.url}/ready") as response:
            assert response.status == 200
        await mending


@pytest.mark.parametrize("blocks", ["0", "-1", str(2**63), str(10**400), "many"])
def test_a_cache_of_any_size_is_none(blocks: str) -> None:
    with pytest.raises(NotServing):
        VllmServer.read_cache(METRICS.replace('"100"', f'"{blocks}"'))


@pytest.mark.parametrize(("told", "waiting"), [("-5", 0), ("3.0", 3), ("1e300", 2**40)])
def test_numbers_of_any_kind_are_made_into_such_as_there_may_be(told: str, waiting: int) -> None:
    assert VllmServer.read_gauges(METRICS.replace("waiting 0", f"waiting {told}")).waiting == waiting


STREAM = (
    b'data: {"choices":[{"text":"data: [DONE]"}]}\n\n: well\n\n'
    b'data: {"choices":[{"text":"data: {\\"error\\": 1}\\n\\n"}]}\n\ndata: [DONE]\n\n'
)
"""What a model may write, too."""
ASKED = {"model": "fake", "prompt": "a" * 400, "stream": True}


@asynccontextmanager
async def answering(answer: Callable[[], bytes], folder: Path) -> AsyncIterator[Front]:
    """A front whose server answers completions with these bytes, and then closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ")[1].decode()
        if path != "/v1/completions":
            body = WELL.get(path, b"{}")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
            return
        (length,) = re.findall(rb"content-length: (\d+)", head)
        await reader.readexactly(int(length))
        writer.write(answer())

    async with listening(serve) as port:
        config = FrontConfig(
            upstream_host="127.0.0.1", upstream_port=port, model=str(folder), served_name="fake", warm_up=False
        )
        async with front_with(config) as front:
            yield front


async def test_a_stream_that_is_cut_anywhere_ends_with_an_error_after_whole_events(
    folder: Path, http: aiohttp.ClientSession
) -> None:
    head, cut = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n", 0
    whole = [each + b"\n\n" for each in STREAM.split(b"\n\n")[:-1]]

    def answer() -> bytes:
        return head + b"".join(b"1\r\n%c\r\n" % byte for byte in STREAM[:cut])

    async with answering(answer, folder) as front:
        for cut in range(len(STREAM) + 1):  # `answer` reads it
            async with http.post(f"{front.url}/v1/completions", json=ASKED) as response:
                events = [each + b"\n\n" for each in (await response.read()).split(b"\n\n")[:-1]]
            if cut == len(STREAM):
                assert events == whole
            else:
                assert events[:-1] == whole[: STREAM[:cut].count(b"\n\n")], cut
                assert json.loads(events[-1].removeprefix(b"data: "))["error"]["code"] == "engine_dead", cut


async def test_an_event_without_an_end_is_not_kept_for_ever(
    folder: Path, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_proxy, "MAX_EVENT_BYTES", 1000)
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: " + b"x" * 2000
    async with (
        answering(lambda: answer, folder) as front,
        http.post(f"{front.url}/v1/completions", json=ASKED) as response,
    ):
        assert "an event of more than 1000 bytes" in await response.text()


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("status", [302, 400, 500, 503])
async def test_a_refusal_teaches_nothing_and_caches_nothing(
    status: int, kind: str, folder: Path, http: aiohttp.ClientSession
) -> None:
    body = b'{"error": {"message": "no"}}'
    answer = f"HTTP/1.1 {status} No\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    async with answering(lambda: answer, folder) as front:
        for _ in range(32):
            asked = {**ASKED, **tokens_field([50] * 400)}
            async with http.post(f"{front.url}/v1/completions", json=asked, allow_redirects=False) as response:
                assert response.status == status and await response.read() == body
        assert not front.service.client.load.step_cost.is_known
        assert await front.held(http) == set()
