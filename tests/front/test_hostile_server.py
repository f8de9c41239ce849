"""A front whose server answers anything: it waits, says so, and serves once the server is well."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from fairlead_engine.front.foreign_engine import NotServing
from fairlead_engine.front.front_config import FrontConfig
from fairlead_engine.front.vllm_metrics import read_cache, read_gauges
from fairlead_testing.fronts import front_with

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
        read_cache(METRICS.replace('"100"', f'"{blocks}"'))


@pytest.mark.parametrize(("told", "waiting"), [("-5", 0), ("3.0", 3), ("1e300", 2**40)])
def test_numbers_of_any_kind_are_made_into_such_as_there_may_be(told: str, waiting: int) -> None:
    assert read_gauges(METRICS.replace("waiting 0", f"waiting {told}")).waiting == waiting
