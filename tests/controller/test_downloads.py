"""How far downloads are: asked of the pods, told on when there is something new to say."""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from fairlead.controller.downloads import DownloadWatch
from fairlead.controller.worker import Key
from fairlead_common.wire.downloads import DOWNLOAD_PORT, PROGRESS_PATH, DownloadProgress, DownloadStage

ADDRESS = "127.77.0.9"


def pod(address: str = ADDRESS, *, runs: bool = True) -> dict[str, Any]:
    state = {"running": {}} if runs else {"terminated": {"exitCode": 0}}
    return {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"fairlead.dev/llmdeployment": "x"}},
        "status": {"podIP": address, "initContainerStatuses": [{"name": "download", "state": state}]},
    }


class Download:
    """What the pod's container answers."""

    def __init__(self) -> None:
        self.body = b""
        self.status = 200

    def say(self, num_bytes: int, stage: str = "downloading") -> None:
        progress = DownloadProgress(source="hf://a/b", stage=DownloadStage(stage), bytes=num_bytes, total_bytes=10**9)
        self.body = msgspec.json.encode(progress)


@asynccontextmanager
async def served(download: Download) -> AsyncIterator[None]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=download.body, status=download.status)

    app = web.Application()
    app.router.add_get(PROGRESS_PATH, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, ADDRESS, DOWNLOAD_PORT).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def test_figures_that_no_download_has_end_nothing() -> None:
    """What cannot be put in words would end the watch, and the operator with it."""
    huge, download = 10**400, Download()
    watch = DownloadWatch(lambda: [pod()], lambda keys: None)
    async with served(download):
        for figures in (
            {"bytes": huge, "total_bytes": huge},
            {"bytes_per_second": 1e300},
            {"remaining_seconds": -1e300},
        ):
            download.body = json.dumps({"source": "x", "stage": "downloading", **figures}).encode()
            await watch.look()
            await watch.look()
            assert watch.known == {}


async def test_every_pod_that_downloads_is_asked_however_many_there_are() -> None:
    """Else the pods of one author would keep others from being asked."""
    asked = set[str]()
    pods = [pod(f"127.77.1.{number}") for number in range(1, 151)]

    async def ask(each: dict[str, Any]) -> None:
        asked.add(each["status"]["podIP"])

    watch = DownloadWatch(lambda: pods, lambda keys: None)
    watch._ask = ask  # type: ignore[method-assign, assignment]
    for _ in range(3):
        await watch.look()
    assert len(asked) == 150


async def test_what_a_pod_says_is_known_and_told_once() -> None:
    pods, looked_at, download = [pod()], list[list[Key]](), Download()

    def changed(keys: Iterable[Key]) -> None:
        looked_at.append(sorted(keys))

    watch = DownloadWatch(lambda: pods, changed)
    await watch.look()
    assert watch.known == {}, "it does not answer yet"
    async with served(download):
        download.say(100_000_000)
        await watch.look()
        await watch.look()
        assert watch.known["u"].bytes == 100_000_000
        download.say(200_000_000)
        await watch.look()
        assert looked_at == [[("ns", "x")], [("ns", "x")]]
        for nonsense in (b"", b"[]", b'{"source": 1}', b"\xff"):
            download.body = nonsense
            await watch.look()
        download.say(300_000_000)
        download.status = 503
        await watch.look()
        assert watch.known["u"].bytes == 200_000_000, "what it last said stays"
        pods[:] = [pod(runs=False)]
        await watch.look()
        assert watch.known == {}
    assert len(looked_at) == 2
