"""Images that are unpacked beside the server: within limits of time and memory, and only while somebody waits."""

import asyncio
import functools
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from fairlead_common.models.image_settings import ImageSettings
from fairlead_common.workers.branch import Branch
from fairlead_common.workers.root import WorkerRoot
from fairlead_engine.api.image_workers import ImageLane, ImageWorkers, NotQuick, place_of, work_of
from fairlead_engine.host.workers import prompt_root
from fairlead_engine.images.image import DecodedImage, ImageError, read_header
from fairlead_engine.images.image_decoding import decode
from fairlead_engine_testing.hostile_images import (
    encoded,
    gif_with_comments,
    picture,
    png_chunk,
    png_of_empty_pieces,
    png_with,
    progressive_jpeg,
)

SETTINGS = ImageSettings(
    image_token_id=1, patch_size=14, merge_size=2, temporal_patch_size=2, min_pixels=56 * 56, max_pixels=1280 * 784,
    mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0),
)  # fmt: skip
SMALL = encoded(picture(300, 200), "JPEG")
MEDIUM = encoded(picture(1200, 900), "JPEG")
LARGE = functools.cache(lambda: progressive_jpeg(4000, 4000, 60, is_whole=True))
"""Takes more processor time than any limit here."""


@pytest.fixture
async def root() -> AsyncIterator[WorkerRoot]:
    found = prompt_root()
    yield found
    found.close()


@pytest.fixture
async def make(root: WorkerRoot) -> AsyncIterator[Callable[..., ImageWorkers]]:
    made: list[ImageWorkers] = []

    def make(timeout_seconds: float = 60.0, most_bytes: int = 512 * 2**20) -> ImageWorkers:
        made.append(ImageWorkers(root, timeout_seconds, most_bytes, num_servers=1000))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
async def workers(make: Callable[..., ImageWorkers]) -> ImageWorkers:
    return make()


async def decoded(workers: ImageWorkers, content: bytes, place: ImageLane | None = None) -> DecodedImage:
    header = read_header(content)
    return await workers.decoded(content, header, SETTINGS, place or place_of(work_of(content, header)))


async def at_work(workers: ImageWorkers, *, is_quick: bool = False) -> Branch:
    """The process that unpacks something, once there is one."""
    while True:
        pool = workers.all[0]
        for branch in [pool._quick] if is_quick else pool._alone:
            if branch is not None and branch.num_asked and not branch.has_ended:
                return branch
        await asyncio.sleep(0.001)


async def test_pixels_are_the_same_as_here(workers: ImageWorkers) -> None:
    for content in (SMALL, encoded(picture(64, 64)), encoded(picture(640, 480), "WEBP")):
        expected = decode(content, read_header(content), SETTINGS, 2**29)
        assert await decoded(workers, content) == expected
    with pytest.raises(ImageError, match="truncated or broken"):
        await decoded(workers, SMALL[:-500])


async def test_what_takes_too_long_is_refused_by_the_limits_name(make: Callable[..., ImageWorkers]) -> None:
    with pytest.raises(ImageError, match=r"more than 0.02 s of processor time, which is this server's image-timeout"):
        await decoded(make(0.02), LARGE())


async def test_what_takes_longer_than_its_size_tells_is_told(
    workers: ImageWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And keeps no other waiting for longer than its size tells."""
    monkeypatch.setattr("fairlead_engine.api.image_workers._WORK_SECONDS", 1e-12)
    content = png_of_empty_pieces(1_000_000)
    with pytest.raises(NotQuick):
        await decoded(workers, content, ImageLane(True, 0.0))
    assert (await decoded(workers, content, ImageLane(False, 0.0))).rows > 0


async def test_who_has_less_to_unpack_goes_first(workers: ImageWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many came before it with more, among the small ones and among the large ones."""
    monkeypatch.setattr("fairlead_engine.api.image_workers._SLICE_SECONDS", 10.0)  # a busy machine is no matter here
    done: list[str] = []

    async def ask(name: str, content: bytes, place: ImageLane) -> None:
        await decoded(workers, content, place)
        done.append(name)

    for is_quick in (True, False):
        done.clear()
        asking = [
            asyncio.create_task(ask("more", MEDIUM, place_of(2**20)._replace(is_quick=is_quick))) for _ in "abcde"
        ]
        await at_work(workers, is_quick=is_quick)
        asking.append(asyncio.create_task(ask("less", SMALL, place_of(0)._replace(is_quick=is_quick))))
        await asyncio.gather(*asking)
        assert done == ["more", "less", "more", "more", "more", "more"]


@pytest.mark.parametrize(
    ("content", "is_small"),
    [
        (encoded(picture(1024, 1024), "JPEG"), True), (encoded(picture(1024, 1024), "JPEG", progressive=True), True),
        (encoded(picture(1024, 1024)), True), (encoded(picture(2000, 2000), "JPEG"), True),
        (encoded(picture(3000, 3000), "JPEG"), False), (progressive_jpeg(1000, 1000, 200), False),
        (encoded(picture(60, 40)) + bytes(8 * 2**20), False), (gif_with_comments(30_000), False),
        (png_of_empty_pieces(100_000), False), (png_with(png_chunk(b"eXIf", b"") * 100_000), False),
    ],
)  # fmt: skip
async def test_which_images_are_small(content: bytes, is_small: bool) -> None:
    """Neither many pixels, nor many passes over them, nor many bytes that are none, nor many chunks."""
    assert place_of(work_of(content, read_header(content))).is_quick is is_small


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody says what a process has")
async def test_a_process_gets_no_more_memory_than_an_image_may_take(make: Callable[..., ImageWorkers]) -> None:
    """Whatever a decoder was made to want."""
    workers = make(60.0, 256 * 2**20)
    asked = asyncio.create_task(decoded(workers, LARGE()))
    limits = Path(f"/proc/{(await at_work(workers)).pid}/limits").read_text()
    most = next(int(line.split()[3]) for line in limits.splitlines() if line.startswith("Max address space"))
    assert 0 < most < (256 + 200 + 400) * 2**20, "of which it has less than 400 MiB of addresses to begin with"
    assert (await asked).rows > 0


async def test_who_leaves_frees_the_process(workers: ImageWorkers) -> None:
    asked = asyncio.create_task(decoded(workers, LARGE()))
    stopped = (await at_work(workers)).pid
    os.kill(stopped, signal.SIGSTOP)  # it takes for ever
    waiting = asyncio.create_task(decoded(workers, LARGE()))
    await asyncio.sleep(0.05)
    waiting.cancel()  # it had not begun
    asked.cancel()
    await asyncio.wait([asked, waiting])
    assert (await decoded(workers, LARGE())).rows > 0
    await gone(stopped)


async def test_who_leaves_has_a_small_one_unpacked_by_the_same_process(
    workers: ImageWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that leave again and again make nobody wait for others' processes to start."""
    monkeypatch.setattr("fairlead_engine.api.image_workers._SLICE_SECONDS", 10.0)
    for _ in range(5):
        asked = asyncio.create_task(decoded(workers, MEDIUM, ImageLane(True, 0.0)))
        process = await at_work(workers, is_quick=True)
        asked.cancel()
        await asyncio.wait([asked])
        assert (await decoded(workers, SMALL)).rows > 0
        assert workers.all[0]._quick is process


async def test_a_process_that_crashes_is_told_and_followed_by_another(workers: ImageWorkers) -> None:
    asked = asyncio.create_task(decoded(workers, LARGE()))
    os.kill((await at_work(workers)).pid, signal.SIGSEGV)
    with pytest.raises(ImageError, match=r"did not survive it .*died"):
        await asked
    assert (await decoded(workers, LARGE())).rows > 0
    assert (await decoded(workers, SMALL)).rows > 0
    idle = workers.all[0]._quick
    assert idle is not None
    os.kill(idle.pid, signal.SIGKILL)
    while not idle.has_ended:
        await asyncio.sleep(0.001)
    assert (await decoded(workers, SMALL)).rows > 0, "nobody's image was to blame"


async def gone(pid: int) -> None:
    while Path(f"/proc/{pid}").exists():
        await asyncio.sleep(0.001)
