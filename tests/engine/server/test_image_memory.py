"""What images take of an engine's memory: counted while it is the body, and given up when the core has them."""

import gc
import weakref
from typing import Any

from fairlead_engine.server.generate_endpoints import ChatEndpoint


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
