"""List and watch on a scripted engine: changes, loads, what ends a watch, and which dispatches are seen."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fairlead_common.wire.blocks import hash_blocks
from fairlead_common.wire.messages import PATH_KV_BLOCKS, PATH_KV_EVENTS, LoadLine, StepCost, StreamLine
from fairlead_engine.host.engine_stream import Followers
from fairlead_engine.server.app import build_app

A, B, C = hash_blocks(range(12), 4)


class Watch:
    """A follower's connection at ASGI level."""

    def __init__(self, app: Any, epoch: str, seq: int | str, method: str = "GET") -> None:
        self.status: int | None = None
        self.headers: dict[bytes, bytes] = {}
        self.raw: list[bytes] = []
        self.is_complete = False
        self.may_send = asyncio.Event()
        self.may_send.set()
        self._came = asyncio.Event()
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        query = f"epoch={epoch}&seq={seq}".encode()
        scope = {"type": "http", "method": method, "path": PATH_KV_EVENTS, "query_string": query, "headers": []}
        self.served = asyncio.ensure_future(app({**scope, "root_path": ""}, self._incoming.get, self._send))

    async def _send(self, message: dict[str, Any]) -> None:
        await self.may_send.wait()  # as a server does whose client does not read
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.raw += message["body"].splitlines(keepends=True)
            self.is_complete = not message.get("more_body", False)
        self._came.set()

    def leave(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    @property
    def lines(self) -> list[StreamLine]:
        return [msgspec.json.decode(line, type=StreamLine) for line in self.raw]

    @property
    def changes(self) -> list[StreamLine]:
        return [line for line in self.lines if line.load is None]

    @property
    def loads(self) -> list[LoadLine]:
        return [line.load for line in self.lines if line.load is not None]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns when `condition()` holds."""
        async with asyncio.timeout(20):
            while not condition():
                self._came.clear()
                await self._came.wait()


@pytest.fixture
def watch(start_app: Any) -> Any:
    """Makes watches on one app, from its newest change on."""

    def start(app: Any, seq: int | None = None) -> Watch:
        mirror = app.service.stream.mirror
        return Watch(build_app(app.service), mirror.epoch, mirror.seq if seq is None else seq)

    return start


async def test_a_watch_begins_with_the_load_and_goes_on_from_the_list(start_app: Any, watch: Any) -> None:
    app = start_app()
    app.engine.change_blocks([A])
    app.engine.change_blocks([B], parent=A)
    follower = watch(app, seq=1)
    await follower.until(lambda: len(follower.raw) == 2)
    assert follower.status == 200
    assert follower.headers[b"content-type"] == b"application/x-ndjson"
    assert follower.lines[0].load is not None
    app.engine.change_blocks(removed=[B])
    await follower.until(lambda: len(follower.changes) == 2)
    assert [(line.seq, line.removed) for line in follower.changes] == [(2, []), (3, [B.hex()])]


async def test_two_followers_get_identical_lines(start_app: Any, watch: Any) -> None:
    app = start_app()
    one, two = watch(app), watch(app)
    await asyncio.gather(one.until(lambda: bool(one.raw)), two.until(lambda: bool(two.raw)))
    for number in range(5):
        app.engine.change_blocks(hash_blocks([number] * 4, 4))
        app.engine.change_load(running=number)
    app.engine.change_load(running=8)
    await asyncio.gather(one.until(lambda: len(one.raw) >= 7), two.until(lambda: len(two.raw) >= 7))
    assert one.raw[1:7] == two.raw[1:7]
    assert [line.seq for line in one.changes] == [1, 2, 3, 4, 5]


async def test_a_load_line_says_all_there_is_to_say(start_app: Any, watch: Any) -> None:
    app = start_app()
    app.engine.step_age_seconds = 0.25
    of_engine: dict[str, Any] = {
        "waiting": 1,
        "running": 2,
        "queued_prefill_tokens": 30,
        "kv_blocks_free": 50,
        "kv_tokens": 99,
        "step_cost": StepCost(base=0.001),
    }
    app.engine.change_load(**of_engine)
    app.engine.change_blocks([A])
    follower = watch(app)
    await follower.until(lambda: bool(follower.raw))
    of_info = {"kv_blocks_total": 64, "token_budget": 64, "max_num_seqs": 8}
    assert follower.loads[0] == LoadLine(**of_engine, **of_info, step_age_seconds=0.25, draining=False, seq=1, seen={})


@pytest.mark.parametrize(
    ("epoch", "seq", "status", "field"),
    [
        ("{epoch}", "3", 410, None),
        ("other", "1", 410, None),
        ("", "1", 400, "epoch"),
        ("{epoch}", "", 400, "seq"),
        ("{epoch}", "-1", 400, "seq"),
        ("{epoch}", "1.0", 400, "seq"),
        ("{epoch}", "9" * 20, 400, "seq"),
    ],
)
async def test_what_cannot_be_told_is_refused(
    start_app: Any, epoch: str, seq: str, status: int, field: str | None
) -> None:
    app = start_app()
    app.engine.change_blocks([A])
    params = {"epoch": epoch.format(epoch=app.service.stream.mirror.epoch), "seq": seq}
    response = await app.http.get(PATH_KV_EVENTS, params=params)
    assert (response.status_code, response.json()["error"]["param"]) == (status, field)
    assert len(app.service.stream.followers) == 0


async def test_before_the_model_is_loaded_nothing_can_be_told(start_app: Any) -> None:
    app = start_app(ready=False)
    for path in (PATH_KV_BLOCKS, PATH_KV_EVENTS + "?epoch=e&seq=0"):
        response = await app.http.get(path)
        assert (response.status_code, response.headers["x-fairlead-reason"]) == (503, "loading")


async def test_a_head_request_ends_at_once(start_app: Any) -> None:
    app = start_app()
    follower = Watch(build_app(app.service), app.service.stream.mirror.epoch, 0, method="HEAD")
    await asyncio.wait_for(follower.served, 20)
    assert follower.is_complete
    assert len(app.service.stream.followers) == 0


async def test_a_follower_that_leaves_is_forgotten(start_app: Any, watch: Any) -> None:
    app = start_app()
    follower = watch(app)
    await follower.until(lambda: bool(follower.raw))
    assert len(app.service.stream.followers) == 1
    assert 'fairlead_engine_kv_followers{model_name="tiny"} 1.0' in app.service.metrics.render().decode()
    follower.leave()
    await follower.served
    assert len(app.service.stream.followers) == 0
    assert 'http_requests_total{model_name="tiny",outcome="ok"} 1.0' in app.service.metrics.render().decode()


async def test_a_follower_too_slow_is_cut_off_and_the_other_goes_on(start_app: Any, watch: Any) -> None:
    app = start_app()
    app.service.stream.followers = Followers(buffer_bytes=3000)
    slow, quick = watch(app), watch(app)
    await asyncio.gather(slow.until(lambda: bool(slow.raw)), quick.until(lambda: bool(quick.raw)))
    slow.may_send.clear()
    for number in range(60):
        app.engine.change_blocks(hash_blocks([number] * 4, 4))
        await quick.until(lambda number=number: len(quick.changes) > number)
    assert (len(app.service.stream.followers), app.service.stream.followers.num_cut_off) == (1, 1)
    slow.may_send.set()
    await asyncio.wait_for(slow.served, 20)
    assert slow.is_complete
    assert slow.headers[b"connection"] == b"close"
    assert len(slow.changes) < 60
    assert [line.seq for line in quick.changes] == list(range(1, 61))
    assert 'kv_followers_cut_off_total{model_name="tiny"} 1.0' in app.service.metrics.render().decode()


async def test_a_drain_is_told_at_once_and_does_not_wait_for_followers(start_app: Any, watch: Any) -> None:
    app = start_app(drain_grace=0.0)
    follower = watch(app)
    await follower.until(lambda: bool(follower.raw))
    assert app.service.lifecycle.num_running == 0
    await app.http.post("/fairlead/v1/drain")
    await follower.until(lambda: len(follower.loads) == 2)
    assert [load.draining for load in follower.loads] == [False, True]
    await asyncio.wait_for(app.service.lifecycle.stopped.wait(), 20)
    app.engine.change_blocks([A])
    await follower.until(lambda: len(follower.changes) == 1)
    late = watch(app)
    await late.until(lambda: bool(late.raw))
    assert late.loads[0].draining
    app.service.stream.end()
    await asyncio.wait_for(asyncio.gather(follower.served, late.served), 20)
    assert follower.is_complete
    response = await app.http.get(PATH_KV_EVENTS, params={"epoch": app.service.stream.mirror.epoch, "seq": 1})
    assert (response.status_code, response.headers["x-fairlead-reason"]) == (503, "draining"), "or the stop would wait"


async def test_an_engine_that_died_ends_its_streams_and_takes_no_followers(start_app: Any, watch: Any) -> None:
    app = start_app()
    app.engine.change_load(running=1)
    follower = watch(app)
    await follower.until(lambda: bool(follower.raw))
    app.engine.die()
    await asyncio.wait_for(follower.served, 20)
    assert follower.is_complete
    response = await app.http.get(PATH_KV_BLOCKS)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "engine_dead")


async def test_requests_are_seen_when_the_load_includes_them_or_when_they_were_refused(start_app: Any) -> None:
    app = start_app()
    seen = app.service.stream.dispatches.seen

    async def chat(dispatch: str, **fields: Any) -> int:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "ahoy"}], **fields}
        headers = {"x-fairlead-dispatch": dispatch}
        return int((await app.http.post("/v1/chat/completions", json=body, headers=headers)).status_code)

    assert await chat("gw:1", temperature=-1) == 400
    assert seen == {"gw": 1}
    assert await chat("gw:2", model="other") == 404
    assert seen == {"gw": 2}
    assert await chat("gw:3", n=2) == 200
    assert seen == {"gw": 3}
    app.engine.full = True
    assert await chat("gw:4") == 429
    assert seen == {"gw": 4}
    assert await chat("not a dispatch") == 429
    app.service.drain()
    app.service.lifecycle.hurry()
    await asyncio.wait_for(app.service.lifecycle.stopped.wait(), 20)
    assert await chat("gw:5") == 503
    assert seen == {"gw": 5}
