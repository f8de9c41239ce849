"""Large bodies are decoded one by one, and everybody else's work goes on between two of them."""

import asyncio

import pytest

from fairlead_common.http.lanes import LARGE_BYTES, PAUSE_SECONDS, Pacer


async def decode(pacer: Pacer, num_bytes: int, events: list[str]) -> None:
    await pacer.pace(num_bytes)
    events.append("decoded")


async def others(events: list[str]) -> None:
    while True:
        events.append("token")
        await asyncio.sleep(0)


@pytest.mark.parametrize(("num_bytes", "at_a_time"), [(LARGE_BYTES, 1), (LARGE_BYTES // 2, 2)])
async def test_of_bodies_that_are_not_small_few_are_decoded_before_tokens_go_on(num_bytes: int, at_a_time: int) -> None:
    """Hundreds that become whole at once would take as long as large ones."""
    pacer, events = Pacer(), list[str]()
    streams = asyncio.create_task(others(events))
    await asyncio.gather(*(decode(pacer, num_bytes, events) for _ in range(9)))
    streams.cancel()
    assert events.count("decoded") == 9
    assert ",".join(["decoded"] * (at_a_time + 1)) not in ",".join(events)


async def test_a_body_that_comes_alone_waits_for_nothing() -> None:
    pacer, events = Pacer(), list[str]()
    streams = asyncio.create_task(others(events))
    await decode(pacer, LARGE_BYTES - 1, events)
    assert events == ["decoded"]
    await asyncio.sleep(2 * PAUSE_SECONDS)
    events.clear()
    await decode(pacer, LARGE_BYTES - 1, events)
    assert events == ["decoded"]
    streams.cancel()


async def test_small_bodies_wait_for_none() -> None:
    pacer, events = Pacer(), list[str]()
    large = asyncio.create_task(decode(pacer, LARGE_BYTES, events))
    await asyncio.sleep(0)
    await decode(pacer, LARGE_BYTES - 1, events)
    assert events == ["decoded"] and not large.done()
    await large


async def test_a_client_that_leaves_leaves_its_turn() -> None:
    pacer, events = Pacer(), list[str]()
    first, second, third = (asyncio.create_task(decode(pacer, LARGE_BYTES, events)) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    await asyncio.wait_for(third, 5)
    assert events == ["decoded"]
