import asyncio
import itertools
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fairlead_testing.fake_vllm import FakeVllm
from fairlead_testing.fronts import Front, num_foreseen, running_front, write_tokenizer

_serial = itertools.count()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder, with the fakes' tokenizer."""
    return write_tokenizer(tmp_path)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@dataclass
class Pair:
    """A fake server and its front, which is asked over HTTP."""

    server: Any
    front: Front
    http: aiohttp.ClientSession

    def post(self, path: str = "/v1/completions", **more: Any) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self.http.post(f"{self.front.url}{path}", **more)

    def get(self, path: str, **more: Any) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self.http.get(f"{self.front.url}{path}", **more)

    async def complete(self, prompt: Any, **fields: Any) -> int:
        """Prompt tokens found in the cache, as the server says, and the front's header as well."""
        body = {"model": "fake", "prompt": prompt, "max_tokens": 2, **fields}
        async with self.post(json=body) as response:
            assert response.status == 200, await response.text()
            found = int((await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"])
            assert int(response.headers["x-fairlead-cached-tokens"]) == found
            return found

    async def num_held(self, prompt: str | list[int], salt: str | None = None) -> int:
        """Tokens of a prompt that a gateway takes to be cached."""
        return num_foreseen(await self.front.held(self.http), prompt, salt=salt)

    async def published(self) -> None:
        """Until the front has heard everything that was published."""
        async with asyncio.timeout(10):
            while self.front.service.client.engine._subscription._next <= self.server.publisher.seq:  # type: ignore[attr-defined]
                await asyncio.sleep(0.005)

    async def load_where(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first load line of which that is true."""
        async with self.get("/fairlead/v1/kv/blocks") as response:
            place = await response.json()
        query = {"epoch": place["epoch"], "seq": str(place["seq"])}
        async with asyncio.timeout(20), self.get("/fairlead/v1/kv/events", params=query) as response:
            async for line in response.content:
                load: dict[str, Any] | None = json.loads(line).get("load")
                if load is not None and holds(load):
                    return load
        raise AssertionError("the stream ended")


Start = Callable[..., Awaitable[Pair]]


@pytest.fixture
async def start(folder: Path, http: aiohttp.ClientSession) -> AsyncIterator[Start]:
    """`await start(kind, events=True)`: a fake server that publishes its events, and its front, which has heard of them
    all; `front` has fields of the front's configuration, the rest are the fake's."""
    async with AsyncExitStack() as stack:

        async def make(
            kind: Callable[..., Any] = FakeVllm,
            *,
            events: bool = False,
            front: dict[str, Any] | None = None,
            **settings: Any,
        ) -> Pair:
            name = f"ipc://@fairlead-test-{os.getpid()}-{next(_serial)}"
            where = {"events": name, "replay": f"{name}-replay"} if events else {}
            server = await stack.enter_async_context(kind(**{**where, **settings}))
            running = await stack.enter_async_context(running_front(server, folder, **(front or {})))
            if events and settings.get("replay", name):
                await running.until_exact()
            return Pair(server, running, http)

        yield make
