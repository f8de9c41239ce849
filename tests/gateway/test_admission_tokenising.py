"""When prompts are tokenised that wait, or do not have to: in virtual time, without sockets."""

import asyncio

import pytest

from fairlead_testing.clock import in_virtual_time
from fairlead_testing.model_pools import FakeReader, Room, pool_of, replica


@in_virtual_time
async def test_a_prompt_is_tokenised_once_before_it_waits() -> None:
    room = Room(pool_of(replica(digest="x")), FakeReader("x"))
    for name in "abc":
        room.ask(name, seconds=1.0)
    await asyncio.sleep(0.5)
    assert room.reader.read_log == [("a", "x"), ("b", "x"), ("c", "x")]
    assert all("x" in ticket.prompt.by_digest for ticket in room.model_pool.queue)
    room.model_pool.update(pool_of(replica(digest="x"), replica("b", digest="x")))
    await room.end()
    assert len(room.reader.read_log) == 3


@in_virtual_time
async def test_who_waits_for_a_model_never_seen_is_tokenised_for_the_first_replica_in_order() -> None:
    room = Room(pool_of(), FakeReader("x", seconds=0.1))
    for name in "abc":
        room.ask(name, seconds=1.0)
    await asyncio.sleep(10.0)
    assert room.reader.read_log == []
    room.model_pool.update(pool_of(replica(digest="x")))
    room.ask("later")
    log = await room.end()
    assert [name for name, _, _ in log] == ["a", "b", "c", "later"]
    assert log[0][2] == pytest.approx(10.1), "the head goes as soon as it has been read, whoever is to be read yet"
    assert sorted(room.reader.read_log) == [("a", "x"), ("b", "x"), ("c", "x"), ("later", "x")]


@in_virtual_time
async def test_at_zero_a_model_seen_before_is_tokenised_at_once() -> None:
    room = Room(pool_of(replica(digest="x")), FakeReader("x"))
    room.model_pool.update(pool_of())
    room.ask("a")
    await asyncio.sleep(1.0)
    assert room.reader.read_log == [("a", "x")]
    room.model_pool.update(pool_of(replica("b", digest="x")))
    assert await room.end() == [("a", "b", 1.0)]


@in_virtual_time
async def test_a_second_tokenizer_of_a_rollout_reads_who_waits_and_keeps_the_line() -> None:
    room = Room(pool_of(replica(digest="old")), FakeReader("old", "new", seconds=0.1))
    for name in "abc":
        room.ask(name, seconds=5.0)
    await asyncio.sleep(1.0)
    room.model_pool.update(pool_of(replica(digest="old"), replica("b", digest="new")))
    log = await room.end()
    assert [name for name, _, _ in log] == ["a", "b", "c"]
    assert log[1] == ("b", "b", pytest.approx(1.1))
    reads = room.reader.read_log
    assert len(reads) == len(set(reads)) == 5, "`a` runs already and is not read again"


@in_virtual_time
async def test_a_tokenizer_that_cannot_be_built_holds_nobody() -> None:
    room = Room(pool_of(replica(digest="broken")), FakeReader())
    room.ask("a")
    assert await room.end() == [("a", "a", 0.0)]


@in_virtual_time
async def test_whoever_leaves_while_being_read_holds_nobody_up() -> None:
    room = Room(pool_of(), FakeReader("x", seconds=1.0))
    leaver = room.ask("leaver")
    room.ask("next")
    await asyncio.sleep(1.0)
    room.model_pool.update(pool_of(replica(digest="x")))
    await asyncio.sleep(0.5)
    leaver.cancel()
    assert await room.end() == [("next", "a", pytest.approx(3.0))]


@in_virtual_time
async def test_a_full_queue_refuses_before_anything_is_tokenised() -> None:
    room = Room(pool_of(replica(digest="x")), FakeReader("x"), max_queue=1)
    room.ask("running", seconds=1.0)
    room.ask("waiting")
    await asyncio.sleep(0.5)
    room.ask("refused")
    outcomes = {name: outcome for name, outcome, _ in await room.end()}
    assert outcomes["refused"] == "queue_full"
    assert ("refused", "x") not in room.reader.read_log


@in_virtual_time
async def test_a_prompt_that_is_being_read_in_line_is_not_let_go_before_that_is_done() -> None:
    room = Room(pool_of(), FakeReader("d", seconds=1.0))
    room.ask("one")
    await asyncio.sleep(1.0)
    room.model_pool.update(pool_of(replica(digest="d")))
    await asyncio.sleep(0.5)
    room.tell("a")  # looks at the line, in the middle of the reading
    await asyncio.sleep(0.1)
    assert room.log == []
    assert [(name, when) for name, _, when in await room.end()] == [("one", 2.0)]
