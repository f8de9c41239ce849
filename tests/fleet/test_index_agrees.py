"""The gateway's KV index against a real engine's cache: at equal seq both hold the same blocks, whatever happens.

The engine is real but for the model below it: core, block manager, HTTP server and mirror. Between it and two gateways'
followers is a line that loses changes, breaks, and survives the engine's restarts, as a pod's address does.
"""

import asyncio
import contextlib
import random
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import aiohttp
import msgspec
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.fleet.engine_stream import ReplicaStream, StreamTimes
from fairlead.routing.datastore import Datastore
from fairlead.routing.kv_index import SeqGap
from fairlead.routing.replica import Load, Replica
from fairlead_common.wire.blocks import BlockHash
from fairlead_common.wire.messages import HEADER_DISPATCH, PATH_KV_EVENTS
from fairlead_engine.api.served_model import ModelFiles
from fairlead_engine.api.service import Service
from fairlead_engine.config import ServerConfig
from fairlead_engine.core.messages import BlocksChanged
from fairlead_engine.host.engine_stream import Followers, KVMirror
from fairlead_engine.server.app import build_app
from fairlead_engine_testing.fake_engine import fake_config, make_fake_engine
from fairlead_engine_testing.in_process_client import InProcessClient
from fairlead_engine_testing.prompts_here import PromptsHere
from fairlead_testing.fake_engine.prompts import make_tokenizer
from fairlead_testing.http import RecordedRequest, Responder, serve_http

TIMES = StreamTimes(first_pause=0.001, last_pause=0.01, healthy=0.05)
NAME = "real"
NUM_BLOCKS = 24
BLOCK_SIZE = 4
UID = "uid-p0"

History = dict[int, list[frozenset[BlockHash]]]
"""What the cache held after each seq, once per run of the engine."""


class RecordingMirror(KVMirror):
    """The engine's own mirror, which also writes down what it held when."""

    def __init__(self, history: History, *, ring_bytes: int) -> None:
        super().__init__(ring_bytes=ring_bytes)
        self.history = history
        history[0].append(frozenset())

    def apply(self, changed: BlocksChanged) -> bytes:
        line = super().apply(changed)
        self.history[self.seq].append(self.hashes)
        return line

    @property
    def hashes(self) -> frozenset[BlockHash]:
        return frozenset(bytes.fromhex(each) for blocks in self.blocks().blocks for each in blocks.hashes)


@dataclass
class RealEngine:
    """One run of an engine, serving on a free port."""

    service: Service
    client: InProcessClient
    mirror: RecordingMirror
    url: str

    @property
    def published(self) -> frozenset[BlockHash]:
        """What the core itself could reuse; only while it is idle."""
        return frozenset(self.engine.scheduler.blocks.published())

    def __post_init__(self) -> None:
        self.engine = self.client.made


class KeepingClient(InProcessClient):
    """Keeps the engine that its thread has made, so that a test can look into it."""

    def __init__(self) -> None:
        super().__init__(
            fake_config(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_model_len=NUM_BLOCKS * BLOCK_SIZE), self._make
        )

    def _make(self, config):
        self.made = make_fake_engine(config)
        return self.made


@asynccontextmanager
async def real_engine(history: History, *, ring_bytes: int, buffer_bytes: int) -> AsyncIterator[RealEngine]:
    client = KeepingClient()
    service = Service(NAME, client, ServerConfig(), make_asked=PromptsHere)
    service.stream.mirror = mirror = RecordingMirror(history, ring_bytes=ring_bytes)
    service.stream.followers = Followers(buffer_bytes=buffer_bytes)
    service.ready(ModelFiles(make_tokenizer(), {}), await client.start())
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(build_app(service), lifespan="off", log_config=None, ws="none"))
    server.capture_signals = contextlib.nullcontext
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield RealEngine(service, client, mirror, f"http://127.0.0.1:{listener.getsockname()[1]}")
    finally:
        service.stream.end()
        server.should_exit = True
        server.force_exit = True
        await serving
        await client.close()


class Line:
    """What followers connect to: an address that stays while engines behind it come and go, and that loses things."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.http = http
        self.engine: RealEngine | None = None
        self.num_to_lose = 0
        """So many of the next change lines do not arrive."""
        self._open: set[Responder] = set()

    def cut(self) -> None:
        """Breaks every stream."""
        for responder in self._open:
            responder.abort()

    async def answer(self, request: RecordedRequest, responder: Responder) -> None:
        if self.engine is None:
            await responder.json(503, {})
            return
        async with self.http.get(self.engine.url + request.path) as response:
            if response.status != 200 or not request.path.startswith(PATH_KV_EVENTS):
                await responder.whole(response.status, await response.read())
                return
            await responder.start(200, {})
            self._open.add(responder)
            try:
                async for line in response.content:
                    if self.num_to_lose and msgspec.json.decode(line).get("seq"):
                        self.num_to_lose -= 1
                    else:
                        await responder.chunk(line)
                await responder.end()
            finally:
                self._open.discard(responder)


class Gateway:
    """A gateway as far as this matters: its datastore, which is held to the engine's history at every step."""

    max_blocks = 1_000_000

    def __init__(self, history: History) -> None:
        self.datastore = Datastore()
        self.history = history
        self.num_compared = 0
        self.disagreements: list[str] = []
        """Kept, since a follower survives whatever its listener raises."""
        self.num_listed = 0
        self.news = asyncio.Event()

    def listed(self, uid: str, seq: int, hashes: Iterable[BlockHash]) -> None:
        self.datastore.listed(uid, seq, hashes)
        self.num_listed += 1
        self._compare()

    def changed(self, uid: str, seq: int, stored: Iterable[BlockHash], removed: Iterable[BlockHash]) -> None:
        try:
            self.datastore.changed(uid, seq, stored, removed)
        except SeqGap as error:
            self.disagreements.append(str(error))
        self._compare()

    def num_blocks(self, uid: str) -> int:
        return self.datastore.index.num_blocks(uid)

    def loaded(self, uid: str, load: Load) -> None:
        self.datastore.loaded(uid, load)
        self.news.set()

    def lost(self, uid: str) -> None:
        self.datastore.lost(uid)

    def distrusted(self, uid: str, max_blocks: int) -> None:
        self.disagreements.append(f"{uid} told of more than {max_blocks} blocks")

    def forget(self, uid: str) -> None:
        self.datastore.forget(uid)

    def _compare(self) -> None:
        index = self.datastore.index
        seq, held = index.seq(UID), index.hashes(UID)
        if frozenset(held) not in self.history[seq]:
            self.disagreements.append(
                f"at seq {seq}: {len(held)} blocks, not {[len(each) for each in self.history[seq]]}"
            )
        self.num_compared += 1
        self.news.set()


class World:
    """An engine, a line to it, two gateways, and clients."""

    def __init__(
        self, stack: AsyncExitStack, http: aiohttp.ClientSession, *, ring_bytes: int, buffer_bytes: int
    ) -> None:
        self.history: History = defaultdict(list)
        self.gateways = [Gateway(self.history) for _ in range(2)]
        self.line = Line(http)
        self.sizes = {"ring_bytes": ring_bytes, "buffer_bytes": buffer_bytes}
        self._stack = stack
        self._http = http
        self._engine_stack = AsyncExitStack()
        self._requests: list[asyncio.Task[None]] = []
        self._num_checks = 0

    @property
    def engine(self) -> RealEngine:
        assert self.line.engine is not None
        return self.line.engine

    async def start(self) -> None:
        """Engine, line and followers."""
        await self.restart()
        server = await serve_http(self.line.answer)
        self._stack.callback(server.close)
        replica = Replica(UID, "p0", "127.0.0.1", server.sockets[0].getsockname()[1])
        for gateway in self.gateways:
            following = asyncio.create_task(ReplicaStream(replica, gateway, times=TIMES).run())
            self._stack.push_async_callback(_cancelled, following)

    async def restart(self) -> None:
        """Another run of the engine, with an empty cache and another epoch."""
        await self.settle()
        self.line.engine = None
        self.line.cut()
        await self._engine_stack.aclose()
        self._engine_stack = AsyncExitStack()
        self.line.engine = await self._engine_stack.enter_async_context(real_engine(self.history, **self.sizes))

    async def stop(self) -> None:
        await self.settle()
        await self._engine_stack.aclose()

    def send(self, prompt: list[int], max_tokens: int, *, leave: bool) -> None:
        """A request in the background; with `leave` its client goes away after the first token."""
        self._requests.append(asyncio.create_task(self._send(prompt, max_tokens, leave)))

    async def settle(self) -> None:
        """All requests are over."""
        await asyncio.gather(*self._requests)
        self._requests.clear()

    async def check(self) -> None:
        """Both gateways know exactly what the idle engine's cache holds, once they have heard of its last change."""
        await self.settle()
        self.line.num_to_lose = 0
        self._num_checks += 1
        self.send([63, self._num_checks] * 5, 1, leave=False)  # a change, so that a loss before it is noticed at once
        await self.settle()
        engine = self.engine
        async with asyncio.timeout(30):
            while engine.client.load.running or engine.client.load.waiting:  # somebody left
                await asyncio.sleep(0.001)
        for gateway in self.gateways:
            index = gateway.datastore.index
            async with asyncio.timeout(30):
                while index.seq(UID) != engine.mirror.seq or index.hashes(UID) != engine.mirror.hashes:
                    assert gateway.disagreements == []
                    gateway.news.clear()
                    await gateway.news.wait()
            assert gateway.disagreements == []
            assert index.hashes(UID) == engine.published
            index.check()

    async def _send(self, prompt: list[int], max_tokens: int, leave: bool) -> None:
        body = {"model": NAME, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True}
        url = f"{self.engine.url}/v1/completions"
        async with self._http.post(url, json=body, headers={HEADER_DISPATCH: "g:1"}) as response:
            assert response.status in (200, 429), await response.text()
            if leave:
                await response.content.readany()
                response.close()
            else:
                await response.read()


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def world(*, ring_bytes: int = 2**20, buffer_bytes: int = 2**20) -> AsyncIterator[World]:
    async with aiohttp.ClientSession() as http, AsyncExitStack() as stack:
        made = World(stack, http, ring_bytes=ring_bytes, buffer_bytes=buffer_bytes)
        stack.push_async_callback(made.stop)
        await made.start()
        yield made


def prompt(drawn: random.Random) -> list[int]:
    """3 to 60 tokens; few beginnings, so that prompts share blocks."""
    family = [drawn.randrange(3)] * drawn.randrange(2, 40)
    return [each + 1 for each in family] + [drawn.randrange(1, 60) for _ in range(drawn.randrange(1, 20))]


ACTIONS = st.lists(
    st.sampled_from(["traffic", "traffic", "traffic", "lose", "cut", "check", "restart"]), min_size=3, max_size=12
)


@settings(max_examples=12, deadline=None)
@given(ACTIONS, st.integers(0, 2**32), st.sampled_from([200, 2000, 2**20]), st.sampled_from([100, 400, 2**20]))
def test_index_and_cache_agree_through_gaps_breaks_restarts_and_slowness(
    actions: list[str], seed: int, ring_bytes: int, buffer_bytes: int
) -> None:
    """`ring_bytes` and `buffer_bytes`: small ones forget a follower's place, and cut off followers that are slow."""
    asyncio.run(_live_through(actions, seed, ring_bytes, buffer_bytes))


async def _live_through(actions: list[str], seed: int, ring_bytes: int, buffer_bytes: int) -> None:
    drawn = random.Random(seed)
    async with world(ring_bytes=ring_bytes, buffer_bytes=buffer_bytes) as there:
        for action in actions:
            if action == "traffic":
                for _ in range(drawn.randrange(1, 12)):
                    there.send(prompt(drawn), drawn.randrange(1, 30), leave=drawn.random() < 0.2)
                await asyncio.sleep(drawn.random() * 0.02)
            elif action == "lose":
                there.line.num_to_lose += drawn.randrange(1, 4)
            elif action == "cut":
                there.line.cut()
            elif action == "restart":
                await there.restart()
            else:
                await there.check()
        await there.check()
        assert all(gateway.num_compared for gateway in there.gateways)


async def test_every_change_of_undisturbed_traffic_is_compared_and_nothing_is_listed_twice() -> None:
    drawn = random.Random(1)
    async with world() as there:
        await there.check()
        for _ in range(60):
            there.send(prompt(drawn), drawn.randrange(1, 30), leave=False)
            await asyncio.sleep(0.001)
        await there.check()
        assert there.engine.mirror.seq > 30, "changes, of which one may hold those of several steps"
        for gateway in there.gateways:
            assert gateway.num_listed == 1
            assert gateway.num_compared >= there.engine.mirror.seq - 2
        ever = frozenset().union(*(held for states in there.history.values() for held in states))
        assert len(ever) > 2 * NUM_BLOCKS, "blocks were evicted"


async def test_a_follower_that_was_cut_off_for_slowness_agrees_in_the_end() -> None:
    drawn = random.Random(2)
    async with world(buffer_bytes=100) as there:  # any change is one too many
        await there.check()
        for _ in range(60):
            there.send(prompt(drawn), drawn.randrange(1, 30), leave=False)
        await there.check()
        assert there.engine.service.stream.followers.num_cut_off > 0
