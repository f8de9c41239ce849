"""Followers of engines' streams: what they tell is what the engine holds, whatever happens on the way."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from fairlead.fleet.engine_stream import ReplicaStream, StreamTimes
from fairlead.routing.replica import Limits, Replica
from fairlead_common.http import loop_shares
from fairlead_common.wire.messages import HEADER_DISPATCH
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.http import RecordedRequest, Responder, serve_http
from fairlead_testing.listeners import MirrorListener

QUICK = StreamTimes(first_pause=0.001, last_pause=0.02, healthy=0.05, too_old=0.01)
SMALL = Limits(max_num_seqs=4, max_num_queued_tokens=1000, block_size=4, max_model_len=1000)


@asynccontextmanager
async def following(engine: FakeEngine, times: StreamTimes = QUICK) -> AsyncIterator[MirrorListener]:
    """A listener that hears of this engine, and has begun to."""
    listener = MirrorListener()
    task = asyncio.create_task(ReplicaStream(engine.replica(), listener, times=times).run())
    try:
        if engine.stream.is_known:
            await listener.until(lambda: listener.loads)
        yield listener
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Client:
    """Sends an engine prompts that share prefixes."""

    def __init__(self, engine: FakeEngine, http: aiohttp.ClientSession) -> None:
        self.engine = engine
        self.http = http
        self.num_sent = 0

    async def send(self, prompt: str, **body: Any) -> None:
        self.num_sent += 1
        headers = {HEADER_DISPATCH: f"me:{self.num_sent}"}
        body = {"model": "fake", "prompt": prompt, **body}
        async with self.http.post(f"{self.engine.url}/v1/completions", json=body, headers=headers) as response:
            await response.read()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def prompts(seed: int = 0) -> Iterator[str]:
    """Prompts of 1 to 60 tokens that begin alike."""
    drawn = random.Random(seed)
    while True:
        yield "".join(drawn.choice("ab") for _ in range(drawn.randrange(1, 60)))


async def agree(listener: MirrorListener, engine: FakeEngine) -> None:
    """Waits until the listener has heard of the engine's last change; it must then know what the engine holds."""
    await listener.until(lambda: listener.seqs.get(engine.name) == engine.stream.seq)
    assert listener.mistakes == []
    assert listener.blocks[engine.name] == engine.hashes


async def test_what_is_told_is_what_the_engine_holds_at_every_change(http: aiohttp.ClientSession) -> None:
    async with FakeEngine(limits=SMALL, num_kv_blocks=40) as engine, following(engine) as listener:
        client = Client(engine, http)
        for prompt, _ in zip(prompts(), range(60), strict=False):
            await client.send(prompt)
            await agree(listener, engine)
        assert engine.stream.seq > 30, "blocks came and went"
        assert listener.num_listed == 1
        engine.core.cache.check()


async def test_blocks_that_were_there_before_are_listed(http: aiohttp.ClientSession) -> None:
    async with FakeEngine(limits=SMALL) as engine:
        await Client(engine, http).send("a" * 100)
        assert len(engine.hashes) == 25
        async with following(engine) as listener:
            await agree(listener, engine)


async def test_a_restarted_engine_is_listed_anew(http: aiohttp.ClientSession) -> None:
    async with FakeEngine(limits=SMALL) as engine, following(engine) as listener:
        client = Client(engine, http)
        await client.send("a" * 40)
        await agree(listener, engine)
        engine.restart()
        await client.send("b" * 80)
        await listener.until(lambda: listener.num_listed == 2)
        await agree(listener, engine)
        assert listener.lost_uids == ["engine-0"]


async def test_a_missed_change_leads_to_another_listing_and_nothing_is_lost(http: aiohttp.ClientSession) -> None:
    async with FakeEngine(limits=SMALL) as engine, following(engine) as listener:
        client = Client(engine, http)
        await client.send("a" * 40)
        await agree(listener, engine)
        engine.stream.num_to_drop = 1
        await client.send("b" * 40)
        await client.send("c" * 40)
        await listener.until(lambda: listener.num_listed == 2)
        await agree(listener, engine)
        assert listener.lost_uids == []


async def test_a_missed_change_is_noticed_by_the_loads_that_follow_it(http: aiohttp.ClientSession) -> None:
    async with FakeEngine(limits=SMALL) as engine, following(engine) as listener:
        engine.stream.num_to_drop = 1
        engine.gate.clear()  # busy, so that loads come often
        sending = asyncio.create_task(Client(engine, http).send("a" * 40))
        await listener.until(lambda: listener.num_listed == 2)
        await agree(listener, engine)
        engine.gate.set()
        await sending


async def test_an_engine_that_has_forgotten_our_place_is_listed_again(http: aiohttp.ClientSession) -> None:
    async with FakeEngine(limits=SMALL) as engine, following(engine) as listener:
        engine.stream.ring_size = 0
        engine.stream.cut_followers()
        await Client(engine, http).send("a" * 40)
        await agree(listener, engine)


@pytest.mark.parametrize("seed", range(4))
async def test_agreement_outlives_gaps_restarts_and_cuts_for_two_followers(
    http: aiohttp.ClientSession, seed: int
) -> None:
    drawn = random.Random(seed)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(FakeEngine(limits=SMALL, num_kv_blocks=30))
        listeners = [await stack.enter_async_context(following(engine)) for _ in range(2)]
        client = Client(engine, http)
        for prompt, _ in zip(prompts(seed), range(80), strict=False):
            accident = drawn.random()
            if accident < 0.1:
                engine.stream.num_to_drop = drawn.randrange(3)
            elif accident < 0.15:
                engine.restart()
            elif accident < 0.2:
                engine.stream.cut_followers()
            elif accident < 0.25:
                engine.core.cache.forget_all()
            await client.send(prompt)
        engine.stream.num_to_drop = 0
        await client.send("the last one, which nobody has seen before")
        for listener in listeners:
            await agree(listener, engine)


async def test_a_slow_follower_is_cut_off_and_comes_back(http: aiohttp.ClientSession) -> None:
    async with FakeEngine(limits=SMALL) as engine, following(engine) as listener:
        client = Client(engine, http)
        await client.send("a" * 40)
        await agree(listener, engine)
        engine.stream.buffer_size = 0
        await client.send("b" * 40)
        await listener.until(lambda: listener.lost_uids)
        engine.stream.buffer_size = 100
        await agree(listener, engine)


async def test_loads_are_told_with_what_they_include(http: aiohttp.ClientSession) -> None:
    async with FakeEngine(limits=SMALL) as engine, following(engine) as listener:
        client = Client(engine, http)
        engine.gate.clear()
        sending = asyncio.create_task(client.send("a" * 40))
        await listener.until(lambda: listener.loads and listener.loads["engine-0"].running == 1)
        load = listener.loads["engine-0"]
        assert (load.seen, load.waiting, load.kv_tokens, load.max_num_seqs) == ({"me": 1}, 0, 40, 4)
        assert (load.kv_blocks_total, load.kv_blocks_free, load.seq) == (1024, 1014, engine.stream.seq)
        assert not load.draining
        engine.gate.set()
        await sending
        engine.drain()
        await listener.until(lambda: listener.loads["engine-0"].draining)


async def test_a_silent_stream_is_lost_and_found_again() -> None:
    times = StreamTimes(first_pause=0.001, last_pause=0.01, silence=0.2)
    async with FakeEngine(limits=SMALL) as engine, following(engine, times) as listener:
        engine.stream.is_silent = True
        await listener.until(lambda: listener.lost_uids)
        assert not listener.loads
        engine.stream.is_silent = False
        await listener.until(lambda: listener.loads)


async def test_an_engine_that_died_is_lost_and_not_asked_in_a_busy_loop(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeEngine(limits=SMALL) as engine, following(engine) as listener:
        engine.kill()
        await listener.until(lambda: listener.lost_uids)
        await asyncio.sleep(0.1)
        assert listener.lost_uids == ["engine-0"], "nothing was known that could have been lost again"
        assert len([record for record in caplog.records if "broke" in record.message]) == 1


async def test_an_engine_without_a_stream_is_mentioned_once_and_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with FakeEngine(limits=SMALL) as engine:
        engine.stream.is_known = False
        async with following(engine) as listener:
            while engine.stream.num_unknown < 3:
                await asyncio.sleep(0.01)
            assert len([record for record in caplog.records if "used without" in record.message]) == 1
            assert not listener.loads
            engine.stream.is_known = True  # it was upgraded in place
            await listener.until(lambda: listener.loads)


async def test_lines_that_make_no_sense_break_the_stream_and_no_more() -> None:
    answers = iter([b"{nonsense\n", b'{"seq":"x"}\n', b'{"seq":1,"stored":[{"parent":null,"hashes":["zz"]}]}\n'])
    listener = MirrorListener()
    done = asyncio.Event()

    async def answer(request: RecordedRequest, responder: Responder) -> None:
        if "blocks" in request.path:
            await responder.json(200, {"epoch": "e", "seq": 0, "block_size": 4, "blocks": [], "new_field": 1})
            return
        line = next(answers, None)
        if line is None:
            done.set()
            await asyncio.Event().wait()
        await responder.start(200, {})
        await responder.chunk(line)
        await asyncio.Event().wait()

    server = await serve_http(answer)
    port = server.sockets[0].getsockname()[1]
    replica = Replica("u", "p", "127.0.0.1", port)
    task = asyncio.create_task(ReplicaStream(replica, listener, times=QUICK).run())
    async with asyncio.timeout(30):
        await done.wait()
    assert listener.lost_uids == ["u"] * 3
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    server.close()


async def test_a_long_listing_lets_others_go_on_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_shares, "PIECE_SECONDS", 0.0)  # a fast machine does much in one piece
    num_chains = 4000
    chains = [
        {"parent": None, "hashes": [f"{16 * chain + index:032x}" for index in range(16)]} for chain in range(num_chains)
    ]
    body = msgspec.json.encode({"epoch": "e", "seq": 3, "block_size": 4, "blocks": chains})
    listener = MirrorListener()
    turns: list[int] = []

    async def answer(request: RecordedRequest, responder: Responder) -> None:
        await responder.whole(200, body)

    async def watch_the_listing() -> None:
        """Once per turn of the loop, how much the listener knows."""
        while listener.seqs.get("u") != 3:
            turns.append(len(listener.blocks.get("u", ())))
            await asyncio.sleep(0)

    server = await serve_http(answer)
    port = server.sockets[0].getsockname()[1]
    replica = Replica("u", "p", "127.0.0.1", port)
    task = asyncio.create_task(ReplicaStream(replica, listener, times=QUICK).run())
    async with asyncio.timeout(30):
        await watch_the_listing()
    assert len(listener.blocks["u"]) == 16 * num_chains
    assert len(set(turns)) > 6, "the loop turned between slices"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    server.close()
