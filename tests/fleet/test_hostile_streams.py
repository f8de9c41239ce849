"""Engines that tell too much: a gateway keeps no more of one than it may have, and goes on."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.fleet.engine_stream import (
    BLOCK_BYTES,
    MAX_LOAD_BYTES,
    ReplicaStream,
    StreamTimes,
    _Broken,
    _Gone,
    _TooMany,
)
from fairlead.routing.replica import Limits, Load, Replica
from fairlead_common.wire.messages import PATH_KV_BLOCKS
from fairlead_testing.http import RecordedRequest, Responder, serve_http
from fairlead_testing.listeners import MirrorListener

QUICK = StreamTimes(first_pause=0.001, last_pause=0.02, healthy=0.05, too_old=0.01, silence=60.0)
NO_BLOCKS = {"epoch": "e", "seq": 0, "block_size": 4, "blocks": []}
LOAD: dict[str, Any] = {
    "waiting": 0, "running": 0, "queued_prefill_tokens": 0, "kv_blocks_free": 10, "kv_blocks_total": 10,
    "kv_tokens": 0, "token_budget": 256, "max_num_seqs": 8,
}  # fmt: skip

Answer = Callable[[Responder], Awaitable[None]]


def chain(*numbers: int) -> dict[str, Any]:
    return {"parent": None, "hashes": [f"{number:032x}" for number in numbers], "tier": "device"}


def lines(*documents: Any) -> Answer:
    """A stream of these lines, which then goes on in silence."""

    async def answer(responder: Responder) -> None:
        await responder.start(200, {})
        for document in documents:
            await responder.chunk(json.dumps(document).encode() + b"\n")
        await asyncio.Event().wait()

    return answer


def listing(body: bytes) -> Answer:
    async def answer(responder: Responder) -> None:
        await responder.whole(200, body)

    return answer


@asynccontextmanager
async def following(
    watched: Answer, listed: Answer | None = None, *, num_kv_blocks: int | None = 10, max_blocks: int = 1000
) -> AsyncIterator[tuple[MirrorListener, list[str]]]:
    """A listener of an engine that answers so, and the paths that it was asked."""
    listener, paths = MirrorListener(max_blocks), []
    listed = listed or listing(json.dumps(NO_BLOCKS).encode())

    async def answer(request: RecordedRequest, responder: Responder) -> None:
        paths.append(request.path)
        await (listed if request.path.startswith(PATH_KV_BLOCKS) else watched)(responder)

    server = await serve_http(answer)
    limits = Limits(max_num_seqs=8, max_num_queued_tokens=8, num_kv_blocks=num_kv_blocks)
    replica = Replica("u", "pod-u", "127.0.0.1", server.sockets[0].getsockname()[1], limits)
    task = asyncio.create_task(ReplicaStream(replica, listener, times=QUICK).run())
    try:
        yield listener, paths
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        server.close()


def endless(size: int) -> list[Any]:
    """Lines of new blocks, so many in each."""
    return [{"load": LOAD}, *({"seq": seq, "stored": [chain(*range(seq * size, seq * size + size))]} for seq in
                              range(1, 20))]  # fmt: skip


@pytest.mark.parametrize(
    ("num_kv_blocks", "total", "max_blocks", "most"),
    [(10, 10, 1000, 10), (None, 10, 1000, 10), (10**9, 10**9, 15, 15), (5, 10, 1000, 10)],
    ids=["as-it-says", "as-its-load-says", "as-is-kept-of-any", "as-it-said-last"],
)
async def test_more_blocks_than_it_may_have_end_the_stream_for_good(
    num_kv_blocks: int | None, total: int, max_blocks: int, most: int, caplog: pytest.LogCaptureFixture
) -> None:
    told = [{"load": LOAD | {"kv_blocks_total": total}}, *endless(4)[1:]]
    async with following(lines(*told), num_kv_blocks=num_kv_blocks, max_blocks=max_blocks) as (listener, paths):
        await listener.until(lambda: listener.distrusted_uids)
        num_asked = len(paths)
        await asyncio.sleep(0.2)
        assert listener.distrusted_uids == {"u": most}
        assert not listener.blocks and not listener.loads
        assert len(paths) == num_asked, "it is not asked again"
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "pod-u tells of more blocks than it may have" in record.getMessage()


async def test_blocks_that_come_and_go_end_nothing() -> None:
    told = [{"seq": seq, "stored": [chain(*range(seq * 10, seq * 10 + 10))],
             "removed": chain(*range(seq * 10 - 10, seq * 10))["hashes"] if seq > 1 else []}
            for seq in range(1, 30)]  # fmt: skip
    async with following(lines({"load": LOAD}, *told)) as (listener, _):
        await listener.until(lambda: listener.seqs.get("u") == 29)
        assert not listener.distrusted_uids and not listener.mistakes
        assert len(listener.blocks["u"]) == 10


LONG = MAX_LOAD_BYTES + BLOCK_BYTES * 10
LISTINGS = {
    "blocks": NO_BLOCKS | {"blocks": [chain(number) for number in range(11)]},
    "one-chain": NO_BLOCKS | {"blocks": [chain(*range(11))]},
    "bytes": NO_BLOCKS | {"more": "x" * LONG},
}


@pytest.mark.parametrize("name", LISTINGS)
async def test_a_list_of_more_than_it_may_have_ends_it_too(name: str) -> None:
    body = json.dumps(LISTINGS[name]).encode()
    async with following(lines(), listing(body)) as (listener, _):
        await listener.until(lambda: listener.distrusted_uids)
        assert not listener.blocks


async def test_a_list_of_what_are_no_blocks_is_not_kept() -> None:
    body = json.dumps(NO_BLOCKS | {"blocks": [0] * 100_000}).encode()
    async with following(lines(), listing(body)) as (listener, paths):
        async with asyncio.timeout(30):
            while len(paths) < 3:
                await asyncio.sleep(0.01)
        assert not listener.blocks and not listener.distrusted_uids


async def test_an_engine_that_tells_without_end_leaves_others_their_turns() -> None:
    """However many lines come, others go on between few of them."""
    told, most = 0, 0

    async def flood(responder: Responder) -> None:
        await responder.start(200, {})
        line = json.dumps({"load": LOAD}).encode() + b"\n"
        while True:
            await responder.chunk((line + b"\n" * 100) * 500)

    async with following(flood) as (listener, _):
        await listener.until(lambda: listener.loads)
        hear = listener.loaded

        def count(uid: str, load: Load) -> None:
            nonlocal told
            told += 1
            hear(uid, load)

        listener.loaded = count  # type: ignore[method-assign]
        while told < 3000:
            before = told
            await asyncio.sleep(0)
            most = max(most, told - before)
        assert most < 400


async def test_a_list_without_an_end_is_not_read_to_it() -> None:
    num_sent = 0

    async def endless_list(responder: Responder) -> None:
        nonlocal num_sent
        await responder.start(200, {})
        await responder.chunk(json.dumps(NO_BLOCKS | {"blocks": [chain(1)]}).encode()[:-2])
        while True:
            await responder.chunk(b" " * 2**20)
            num_sent += 2**20

    async with following(lines(), endless_list) as (listener, _):
        await listener.until(lambda: listener.distrusted_uids)
        assert num_sent < LONG + 16 * 2**20  # what the kernel's buffers took


LINES = {
    "hash-long": {"seq": 1, "stored": [{"parent": None, "hashes": ["ab" * 5000]}]},
    "hash-short": {"seq": 1, "stored": [{"parent": None, "hashes": ["ab"]}]},
    "hash-spaces": {"seq": 1, "stored": [{"parent": None, "hashes": [" " * 32]}]},
    "removed": {"seq": 1, "removed": ["x"]},
    "seq": {"seq": 10**30},
    "seq-negative": {"seq": -1},
    "line": {"seq": 1, "more": "x" * LONG},
    "load-bytes": {"load": LOAD | {"more": "x" * MAX_LOAD_BYTES}},
    "adapters": {"load": LOAD | {"adapters": {str(number): 0 for number in range(5000)}}},
    "adapter-name": {"load": LOAD | {"adapters": {"a" * 2000: 0}}},
    "adapter-seconds": {"load": LOAD | {"adapters": {"a": -1}}},
    "seen": {"load": LOAD | {"seen": {str(number): 0 for number in range(2000)}}},
    "seen-name": {"load": LOAD | {"seen": {"a" * 200: 0}}},
    **{f"{name}-{value}": {"load": LOAD | {name: value}} for name in LOAD for value in (-1, 10**30, "x", None, 1.5)},
    "step-cost": {"load": LOAD | {"step_cost": {"base": 1e300}}},
    "step-age": {"load": LOAD | {"step_age_seconds": -1}},
}


@pytest.mark.parametrize("name", LINES)
async def test_what_no_engine_says_breaks_the_stream_and_is_not_kept(name: str) -> None:
    async with following(lines({"load": LOAD}, LINES[name])) as (listener, paths):
        await listener.until(lambda: len(listener.lost_uids) >= 2)
        assert not listener.loads and not listener.blocks.get("u") and not listener.distrusted_uids
        assert len(paths) >= 4, "it is asked again"


DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["load", "seq", "stored", "removed", "hashes", *LOAD, "adapters", "seen", "step_cost"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(told=st.lists(DOCUMENTS, max_size=4))
def test_any_line_is_heard_or_refused(told: list[Any]) -> None:
    async def hear() -> None:
        listener = MirrorListener(100)
        listener.listed("u", 0, [])
        stream = ReplicaStream(Replica("u", "u", "127.0.0.1", 1), listener, times=QUICK)
        for document in told:
            with suppress(ValueError, _Broken, _Gone, _TooMany):
                stream._hear(json.dumps(document).encode())

    asyncio.run(hear())
