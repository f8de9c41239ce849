"""Large answers and streams without end: what one model's engines send neither fills the gateway nor stops others."""

import asyncio
from typing import Any

import pytest

from fairlead.gateway.dispatch import proxy
from fairlead.gateway.dispatch.proxy import LARGE_BYTES, MAX_BYTES, ReplyRoom
from fairlead.gateway.openai.sse import UsageFilter
from fairlead.routing.replica import Replica
from fairlead_common.http.loop_shares import LoopShare
from fairlead_testing.gateways import make_pool
from fairlead_testing.http import Handler, RecordedRequest, Responder, serve_http


async def in_front_of(answer: Handler, start: Any) -> tuple[asyncio.Server, Any]:
    """A gateway, and the only server behind it, which answers in this way."""
    server = await serve_http(answer)
    port = server.sockets[0].getsockname()[1]
    return server, await start(0, pools=lambda _: [make_pool([Replica("hostile", "hostile", "127.0.0.1", port)])])


async def test_large_answers_of_a_model_are_read_in_turn() -> None:
    room, read = ReplyRoom(), list[str]()

    async def grow(name: str) -> None:
        await room.grow(name, LARGE_BYTES + 1)
        await room.grow(name, MAX_BYTES)
        read.append(name)

    growing = [asyncio.create_task(grow(name)) for name in ("first", "second", "third")]
    await asyncio.sleep(0)
    assert read == ["first"]
    room.leave("first")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert read == ["first", "second"]
    room.leave("second")
    await asyncio.gather(*growing)
    room.leave("third")


async def test_of_many_large_answers_only_a_few_are_held(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "MAX_BYTES", 4 * LARGE_BYTES)
    held, most = dict[object, int](), 0
    grow, leave = ReplyRoom.grow, ReplyRoom.leave

    async def growing(self: ReplyRoom, holder: object, num_bytes: int) -> None:
        nonlocal most
        held[holder] = num_bytes
        most = max(most, sum(held.values()))
        await grow(self, holder, num_bytes)

    def leaving(self: ReplyRoom, holder: object) -> None:
        held.pop(holder, None)
        leave(self, holder)

    monkeypatch.setattr(ReplyRoom, "grow", growing)
    monkeypatch.setattr(ReplyRoom, "leave", leaving)
    body = b'{"choices": ["' + b"x" * (4 * LARGE_BYTES) + b'"]}'

    async def answer(request: RecordedRequest, responder: Responder) -> None:
        await responder.whole(200, body)

    server, setup = await in_front_of(answer, start)
    chat = {"model": "fake", "messages": [{"role": "user", "content": "ahoy"}]}
    answers = await asyncio.gather(*(setup.post(chat) for _ in range(12)))
    server.close()
    assert [status for status, _, _ in answers] == [200] * 12
    assert most < 12 * (LARGE_BYTES + 2**19) + 4 * LARGE_BYTES < 12 * len(body)


async def test_a_stream_that_comes_in_large_pieces_leaves_others_their_turns(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, rests, most = 0, 0, 0
    feed, rest = UsageFilter.feed, LoopShare.rest

    def feeding(self: UsageFilter, data: bytes) -> bytes:
        nonlocal fed, most
        fed, most = fed + 1, max(most, len(data))
        return feed(self, data)

    async def resting(self: LoopShare) -> None:
        nonlocal rests
        rests += 1
        await rest(self)

    monkeypatch.setattr(UsageFilter, "feed", feeding)
    monkeypatch.setattr(LoopShare, "rest", resting)
    event = b'data: {"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n'

    async def answer(request: RecordedRequest, responder: Responder) -> None:
        await responder.start(200, {"content-type": "text/event-stream"})
        await responder.chunk(event * 10_000)
        await responder.chunk(b"data: [DONE]\n\n")
        await responder.end()

    server, setup = await in_front_of(answer, start)
    told = await setup.stream()
    server.close()
    assert told.count(b"data: {") == 10_000 and b"usage" not in told
    assert most <= proxy.PIECE_BYTES and rests > 10
