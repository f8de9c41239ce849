"""Streams that take much of the event loop go on in turn, and those that take little at once."""

import asyncio
import time

from fairlead_common.loop_shares import BURST_SECONDS, PIECE_SECONDS, LoopShare, LoopShares


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


async def test_spread_items_leave_the_loop_to_others() -> None:
    share, turns, num_turns = LoopShares().stream(), list[int](), 0

    async def others() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    async for _ in share.spread(range(10)):
        work(share)
        turns.append(num_turns)
    task.cancel()
    assert sorted(set(turns)) == turns
