"""Images that are unpacked beside the server: within limits of time and memory, and only while somebody waits."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fairlead_engine.images.decoded_image import DecodedImage, ImageError
from fairlead_engine.images.image_decoding import decode
from fairlead_engine.images.image_header import read_header
from fairlead_engine.server.image_workers import ImageWorkers, NotQuick, is_quick
from fairlead_engine_testing.hostile_images import encoded, gif_with_comments, picture, progressive_jpeg
from fairlead_protocol.models.image_settings import ImageSettings

SETTINGS = ImageSettings(
    image_token_id=1, patch_size=14, merge_size=2, temporal_patch_size=2, min_pixels=56 * 56, max_pixels=1280 * 784,
    mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0),
)  # fmt: skip
SMALL = encoded(picture(300, 200), "JPEG")
LARGE = progressive_jpeg(4000, 4000, 60, is_whole=True)
"""Takes more processor time than any limit here."""


@pytest.fixture
async def workers() -> AsyncIterator[ImageWorkers]:
    found = ImageWorkers(60.0, 512 * 2**20, num_servers=1000)
    yield found
    found.close()


async def decoded(workers: ImageWorkers, content: bytes) -> DecodedImage:
    header = read_header(content, None)
    return await workers.decoded(content, header, SETTINGS, among_small=is_quick(content, header))


async def started(lanes: Any, other_than: int = 0) -> int:
    """The process of the first of them, once it has one."""
    while (process := lanes.all[0]._process) is None or process.pid == other_than:
        await asyncio.sleep(0.01)
    return int(process.pid)


async def test_pixels_are_the_same_as_here(workers: ImageWorkers) -> None:
    for content in (SMALL, encoded(picture(64, 64)), encoded(picture(640, 480), "WEBP")):
        expected = decode(content, read_header(content, None), SETTINGS, 2**29)
        assert await decoded(workers, content) == expected
    with pytest.raises(ImageError, match="truncated or broken"):
        await decoded(workers, SMALL[:-500])
    assert workers.long.all[0]._process is None, "nobody needed it"


async def test_what_takes_too_long_is_refused_by_the_limits_name() -> None:
    workers = ImageWorkers(0.02, 512 * 2**20)
    with pytest.raises(ImageError, match=r"more than 0.02 s of processor time, which is this server's image-timeout"):
        await decoded(workers, LARGE)
    workers.close()


async def test_what_takes_longer_than_its_size_tells_is_told(
    workers: ImageWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead_engine.server.image_workers._SLICE_SECONDS", 0.02)
    header = read_header(LARGE, None)
    with pytest.raises(NotQuick):
        await workers.decoded(LARGE, header, SETTINGS, among_small=True)
    assert (await workers.decoded(LARGE, header, SETTINGS, among_small=False)).rows > 0


@pytest.mark.parametrize(
    ("content", "is_small"),
    [
        (encoded(picture(1024, 1024), "JPEG"), True), (encoded(picture(1024, 1024), "JPEG", progressive=True), True),
        (encoded(picture(1024, 1024)), True), (encoded(picture(2000, 2000), "JPEG"), True),
        (encoded(picture(3000, 3000), "JPEG"), False), (progressive_jpeg(1000, 1000, 200), False),
        (encoded(picture(60, 40)) + bytes(8 * 2**20), False), (gif_with_comments(30_000), False),
    ],
)  # fmt: skip
def test_which_images_are_small(content: bytes, is_small: bool) -> None:
    """Neither many pixels, nor many passes over them, nor many bytes that are none."""
    assert is_quick(content, read_header(content, None)) is is_small


async def test_what_would_take_too_much_memory_is_refused_by_the_limits_name() -> None:
    workers = ImageWorkers(60.0, 16 * 2**20)
    with pytest.raises(ImageError, match="16 MiB of this server's image-memory"):
        await decoded(workers, encoded(picture(3000, 2000), "WEBP"))
    assert (await decoded(workers, SMALL)).rows > 0
    workers.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody says what a process has")
async def test_a_process_gets_no_more_memory_than_an_image_may_take() -> None:
    """Whatever a decoder was made to want."""
    workers = ImageWorkers(60.0, 64 * 2**20, num_servers=1000)
    assert (await decoded(workers, SMALL)).rows > 0
    limits = Path(f"/proc/{await started(workers.quick)}/limits").read_text()
    most = next(int(line.split()[3]) for line in limits.splitlines() if line.startswith("Max address space"))
    assert 0 < most < (64 + 200 + 200) * 2**20, "of which it has less than 200 MiB of addresses to begin with"
    workers.close()


async def test_who_leaves_frees_the_process(workers: ImageWorkers) -> None:
    for content, lanes in ((SMALL, workers.quick), (LARGE, workers.long)):
        asked = asyncio.create_task(decoded(workers, content))
        stopped = await started(lanes)
        os.kill(stopped, signal.SIGSTOP)  # it takes for ever
        waiting = asyncio.create_task(decoded(workers, content))
        await asyncio.sleep(0.05)
        waiting.cancel()  # it had not begun
        asked.cancel()
        await asyncio.wait([asked, waiting])
        assert (await decoded(workers, content)).rows > 0
        assert await started(lanes, stopped) != stopped
        assert not Path(f"/proc/{stopped}").exists()


async def test_large_ones_keep_no_small_one_waiting(workers: ImageWorkers) -> None:
    asked = asyncio.create_task(decoded(workers, LARGE))
    os.kill(await started(workers.long), signal.SIGSTOP)
    for _ in range(5):
        assert (await decoded(workers, SMALL)).rows > 0
    assert not asked.done()
    asked.cancel()
    await asyncio.wait([asked])


async def test_a_process_that_crashes_is_told_and_followed_by_another(workers: ImageWorkers) -> None:
    asked = asyncio.create_task(decoded(workers, LARGE))
    os.kill(await started(workers.long), signal.SIGSEGV)
    with pytest.raises(ImageError, match=r"did not survive it .*Segmentation fault"):
        await asked
    assert (await decoded(workers, LARGE)).rows > 0
    os.kill(idle := await started(workers.long), signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, idle, os.WEXITED | os.WNOWAIT)
    assert (await decoded(workers, LARGE)).rows > 0, "nobody's image was to blame"


async def test_the_end_of_the_server_ends_what_is_unpacked() -> None:
    workers = ImageWorkers(600.0, 512 * 2**20)
    asked = asyncio.create_task(decoded(workers, LARGE))
    stopped = await started(workers.long)
    os.kill(stopped, signal.SIGSTOP)
    workers.close()
    assert not Path(f"/proc/{stopped}").exists()
    with pytest.raises(ImageError, match="did not survive"):
        await asked
