"""Followers of a stream: each has its own bounded buffer, and who is too slow loses only itself."""

import asyncio

from fairlead_engine.server.engine_stream import Followers


async def test_everybody_gets_the_very_same_line() -> None:
    followers = Followers()
    line = b"line\n"
    with followers.joined([b"first\n"]) as one, followers.joined([]) as two:
        followers.send(line)
        assert await one.take() == b"first\nline\n"
        assert len(followers) == 2
        followers.send(line)
        assert await one.take() == line
        assert await two.take() == b"line\nline\n"
    assert len(followers) == 0


async def test_taking_waits_for_a_line_and_ends_empty() -> None:
    followers = Followers()
    with followers.joined([]) as follower:
        waiting = asyncio.ensure_future(follower.take())
        await asyncio.sleep(0)
        assert not waiting.done()
        followers.send(b"a\n")
        assert await waiting == b"a\n"
        followers.send(b"b\n")
        followers.end()
        assert [await follower.take() for _ in range(3)] == [b"b\n", b"", b""]
    assert not follower.was_cut_off


async def test_a_follower_too_slow_is_cut_off_and_the_others_are_not() -> None:
    followers = Followers(buffer_bytes=10)
    with followers.joined([]) as slow, followers.joined([]) as quick:
        for _ in range(4):
            followers.send(b"1234\n")
            assert await quick.take() == b"1234\n"
        assert slow.was_cut_off
        assert await slow.take() == b"", "it has missed something, so the rest is of no use"
        assert not quick.was_cut_off
        assert (len(followers), followers.num_cut_off) == (1, 1)
