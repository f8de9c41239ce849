"""Renderings of metrics are shared, fresh, and few."""

import asyncio
import time

import pytest

from fairlead_common.loop_shares import REST, Scrapes


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


async def test_renderings_take_no_more_than_their_share_of_the_time() -> None:
    spent = 0.0

    def render() -> bytes:
        nonlocal spent
        begun = time.monotonic()
        time.sleep(0.01)
        spent += time.monotonic() - begun
        return b""

    scrapes, begun = Scrapes(render), time.monotonic()
    while time.monotonic() - begun < 0.5:
        await asyncio.gather(*(scrapes.text() for _ in range(3)))
    assert spent / (time.monotonic() - begun) < 2 / (1 + REST)


async def test_preparing_begins_no_other_rendering() -> None:
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

    scrapes, begun = Scrapes(render, prepare), time.monotonic()
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
