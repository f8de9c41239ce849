"""What images take of an engine's memory: counted while it is the body, and given up when the core has them."""

import asyncio
import base64
import copy
import gc
import io
import weakref
from typing import Any

import msgspec
import pytest
from PIL import Image

from fairlead_common.models.image_settings import ImageSettings
from fairlead_common.workers.root import WorkerRoot
from fairlead_engine.api.generate_endpoints import ChatEndpoint
from fairlead_engine.api.image_loader import MOST_AT_ONCE, ImageLoader
from fairlead_engine.api.image_workers import ImageLane, ImageWorkers, NotQuick
from fairlead_engine.config import ServerConfig
from fairlead_engine.errors import RequestError
from fairlead_engine.images.image import DecodedImage
from fairlead_engine_testing.scripted_engine import scripted_info

_SETTINGS = ImageSettings(
    image_token_id=5, patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=64, max_pixels=64 * 64,
    mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5),
)  # fmt: skip
INFO = msgspec.structs.replace(
    scripted_info(), max_model_len=160, task=msgspec.structs.replace(scripted_info().task, images=_SETTINGS)
)
"""Its images have up to 64 tokens."""


def picture(width: int, height: int, keep: int | None = None) -> dict[str, Any]:
    """A part of a chat; `keep`: its first bytes alone."""
    written = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(written, "PNG")
    content = base64.b64encode(written.getvalue()[:keep]).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{content}"}}


async def test_images_too_large_for_the_context_are_refused_before_any_is_unpacked(monkeypatch: Any) -> None:
    """Their first bytes say how many tokens they become; nothing else of them has to be there."""
    unpacked: list[int] = []

    async def decoded(self: Any, content: bytes, *_: Any, **__: Any) -> None:
        unpacked.append(len(content))

    monkeypatch.setattr(ImageWorkers, "decoded", decoded)
    loader = ImageLoader(WorkerRoot([]), ServerConfig())
    try:
        for each, num_tokens in ((picture(64, 64), 192), (picture(4000, 3000, keep=60), 162)):
            with pytest.raises(RequestError, match=f"at least {num_tokens};") as error:
                await loader.load([{"role": "user", "content": [copy.deepcopy(each) for _ in range(3)]}], INFO)
            assert (error.value.field, error.value.code) == ("messages", "context_length_exceeded")
            assert not unpacked
        chat = [{"role": "user", "content": [picture(64, 64), picture(64, 64)]}]
        assert len(await loader.load(chat, INFO)) == len(unpacked) == 2
    finally:
        loader.close()


async def test_a_body_counts_until_its_images_are_unpacked_and_they_go_to_the_core(
    start_app: Any, monkeypatch: Any
) -> None:
    class Pixels:
        pass

    app, seen = start_app(), {}

    async def images(self: Any, request: Any, model: Any) -> list[Any]:
        seen["held while unpacked"] = app.service.bodies.num_bytes
        found = [Pixels()]
        seen["pixels"] = weakref.ref(found[0])
        return found

    send = ChatEndpoint.send

    async def sent(self: Any, *args: Any) -> None:
        gc.collect()
        seen["held"], seen["left"] = app.service.bodies.num_bytes, seen["pixels"]()
        await send(self, *args)

    monkeypatch.setattr(ChatEndpoint, "images", images)
    monkeypatch.setattr(ChatEndpoint, "send", sent)
    assert (await app.chat()).status_code == 200
    assert seen["held while unpacked"] > 0
    assert (seen["held"], seen["left"]) == (0, None)


@pytest.mark.parametrize("sides", [(64, 64), (4000, 3000)])
async def test_few_requests_have_their_images_unpacked_at_once(sides: tuple[int, int], monkeypatch: Any) -> None:
    """A picture of one colour is a thousand times as large unpacked."""
    at_once: list[int] = []
    under_way = 0

    async def decoded(self: Any, *_: Any, **__: Any) -> DecodedImage:
        nonlocal under_way
        under_way += 1
        at_once.append(under_way)
        await asyncio.sleep(0.001)
        under_way -= 1
        return DecodedImage(1, 1, b"pixels", b"")

    monkeypatch.setattr(ImageWorkers, "decoded", decoded)
    loader = ImageLoader(WorkerRoot([]), ServerConfig())
    image = picture(*sides, keep=60)
    chats = [[{"role": "user", "content": [copy.deepcopy(image) for _ in range(2)]}] for _ in range(3 * MOST_AT_ONCE)]
    found = await asyncio.gather(*(loader.load(chat, INFO) for chat in chats))
    loader.close()
    assert [len(each) for each in found] == [2] * 3 * MOST_AT_ONCE
    assert max(at_once) == MOST_AT_ONCE


@pytest.mark.parametrize("sides", [(4000, 3000), (64, 63)])
async def test_what_takes_long_keeps_no_small_image_waiting(sides: tuple[int, int], monkeypatch: Any) -> None:
    """Neither what is large nor what takes longer than its size tells, however many of them there are."""
    began, never = asyncio.Semaphore(0), asyncio.Event()

    async def decoded(self: Any, content: bytes, header: Any, settings: Any, place: ImageLane) -> DecodedImage:
        if place.is_quick and (header.width, header.height) == sides:
            raise NotQuick
        if not place.is_quick:
            began.release()
            await never.wait()
        return DecodedImage(1, 1, b"pixels", b"")

    monkeypatch.setattr(ImageWorkers, "decoded", decoded)
    loader = ImageLoader(WorkerRoot([]), ServerConfig())

    def chat(part: dict[str, Any]) -> Any:
        return loader.load([{"role": "user", "content": [copy.deepcopy(part)]}], INFO)

    slow = picture(*sides, keep=60)
    waiting = [asyncio.create_task(chat(slow)) for _ in range(3 * MOST_AT_ONCE)]
    for _ in range(MOST_AT_ONCE):
        await began.acquire()
    assert len(await chat(picture(64, 64))) == 1
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
    loader.close()


async def test_what_is_fetched_for_one_chat_is_bounded_together(monkeypatch: Any) -> None:
    """It counts as no body."""
    allowed: list[int] = []

    async def fetch(self: Any, url: str, most_bytes: int) -> bytes:
        allowed.append(most_bytes)
        return base64.b64decode(picture(8, 8)["image_url"]["url"].partition(",")[2]).ljust(10 * 2**20, b"\0")

    async def decoded(self: Any, *_: Any, **__: Any) -> DecodedImage:
        return DecodedImage(1, 1, b"pixels", b"")

    monkeypatch.setattr("fairlead_engine.api.image_loader.MediaFetcher.fetch", fetch)
    monkeypatch.setattr(ImageWorkers, "decoded", decoded)
    loader = ImageLoader(WorkerRoot([]), ServerConfig())
    parts = [{"type": "image_url", "image_url": {"url": "http://a/b.png"}} for _ in range(3)]
    await loader.load([{"role": "user", "content": [parts[0], picture(8, 8), *parts[1:]]}], INFO)
    loader.close()
    assert allowed == [16 * 2**20, 14 * 2**20, 4 * 2**20]
