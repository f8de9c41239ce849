"""Streams that take much of the event loop go on in turn, and those that take little at once; renderings of metrics are
shared, fresh, and few."""

import asyncio
import time

import pytest

from fairlead_common.http.loop_shares import BURST_SECONDS, PIECE_SECONDS, REST, LoopShare, LoopShares, Scrapes


def work(share: LoopShare) -> None:
    """Takes a piece's time of a processor."""
    end = time.thread_time() + PIECE_SECONDS
    while not share.is_long:
        assert time.thread_time() < end + 1.0


async def flood(share: LoopShare, done: list[str]) -> None:
    share.begin()
    while True:
        work(share)
        done.append("piece")
        await share.rest()


async def test_others_go_on_between_two_pieces_of_however_many_streams() -> None:
    shares, done = LoopShares(), list[str]()
    streams = [asyncio.create_task(flood(shares.stream(), done)) for _ in range(20)]
    await asyncio.sleep(0)  # each has begun
    done.clear()
    while done.count("piece") < 20 * (BURST_SECONDS / PIECE_SECONDS + 1):
        done.append("other")
        await asyncio.sleep(0)
    for stream in streams:
        stream.cancel()
    assert ",".join(["piece"] * 3) not in ",".join(done)


async def test_a_stream_that_takes_little_does_not_wait_for_those_that_take_much() -> None:
    shares, done = LoopShares(), list[str]()
    streams = [asyncio.create_task(flood(shares.stream(), done)) for _ in range(5)]
    await asyncio.sleep(0.2)
    share = shares.stream()

    async def take_little() -> None:
        share.begin()
        await share.rest()

    for _ in range(10):
        resting = asyncio.create_task(take_little())
        await asyncio.sleep(0)
        assert resting.done()
    for stream in streams:
        stream.cancel()


async def test_whoever_asks_at_the_same_time_gets_the_same_rendering() -> None:
    count = iter(range(10))
    scrapes = Scrapes(lambda: b"%d" % next(count))
    assert await asyncio.gather(*(scrapes.text() for _ in range(5))) == [b"0"] * 5
    assert await scrapes.text() == b"1"


async def test_nothing_that_happened_before_is_missed() -> None:
    events = 0
    scrapes = Scrapes(lambda: b"%d" % events)
    for events in range(20):
        assert await scrapes.text() == b"%d" % events


@pytest.mark.parametrize("prepares", [False, True])
async def test_renderings_take_no_more_than_their_share_of_the_time(prepares: bool) -> None:
    """Preparing, which takes a while, begins no other rendering."""
    spent, num_preparing = 0.0, 0

    async def prepare() -> None:
        nonlocal num_preparing
        num_preparing += 1
        assert num_preparing == 1
        await asyncio.sleep(0.02)
        num_preparing -= 1

    def render() -> bytes:
        nonlocal spent
        begun = time.monotonic()
        time.sleep(0.01)
        spent += time.monotonic() - begun
        return b""

    scrapes, begun = Scrapes(render, prepare if prepares else None), time.monotonic()
    asked = []
    while time.monotonic() - begun < 0.5:
        asked.append(asyncio.create_task(scrapes.text()))
        await asyncio.sleep(0.001)
    await asyncio.gather(*asked)
    assert spent / (time.monotonic() - begun) < 2 / (1 + REST)


async def test_who_leaves_takes_nothing_from_the_others_and_an_error_is_everybodys() -> None:
    scrapes = Scrapes(lambda: b"well")
    leaving, staying = asyncio.create_task(scrapes.text()), asyncio.create_task(scrapes.text())
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == b"well"
    broken = Scrapes(lambda: b"%d" % (1 // 0))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await broken.text()


async def test_spread_items_leave_the_loop_to_others() -> None:
    share, done = LoopShares().stream(), list[str]()

    async def others() -> None:
        while True:
            done.append("other")
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    async for _ in share.spread(range(10)):
        work(share)
        done.append("piece")
    task.cancel()
    assert "piece,piece" not in ",".join(done)
