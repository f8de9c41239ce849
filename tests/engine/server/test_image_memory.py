"""What images take of an engine's memory: counted while it is the body, and given up when the core has them."""

import asyncio
import gc
import weakref
from typing import Any

from fairlead_engine.config import ServerConfig
from fairlead_engine.images.decoded_image import DecodedImage
from fairlead_engine.server.generate_endpoints import ChatEndpoint
from fairlead_engine.server.image_loader import MOST_AT_ONCE, ImageLoader


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


async def test_few_requests_have_their_images_unpacked_at_once(monkeypatch: Any) -> None:
    """A picture of one colour is a thousand times as large unpacked."""
    at_once: list[int] = []
    under_way = 0

    async def load(self: Any, part: Any, settings: Any) -> DecodedImage:
        nonlocal under_way
        under_way += 1
        at_once.append(under_way)
        await asyncio.sleep(0.001)
        under_way -= 1
        return DecodedImage(1, 1, b"pixels", b"")

    monkeypatch.setattr(ImageLoader, "_load", load)
    loader = ImageLoader(ServerConfig())
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    chat = [{"role": "user", "content": [image, image]}]
    settings: Any = object()
    found = await asyncio.gather(*(loader.load(chat, settings) for _ in range(3 * MOST_AT_ONCE)))
    loader.close()
    assert [len(each) for each in found] == [2] * 3 * MOST_AT_ONCE
    assert max(at_once) == MOST_AT_ONCE
