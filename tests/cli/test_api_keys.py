"""The commands that ask models, at a gateway that wants a key: it comes from the environment and is never shown."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead.gateway.access import KeyedAccess
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.gateways import make_pool, running_gateway

KEY, WRONG = "alice-0123456789abcdef", "mallory-0123456789abc"
HINT = "hint: put the API key that you were given into the environment variable OPENAI_API_KEY"


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """Of a gateway that serves whoever has KEY."""
    (tmp_path / "alice").write_text(KEY)
    async with FakeEngine() as engine:
        pool = make_pool([engine.replica()])
        async with running_gateway(pool, access=KeyedAccess(tmp_path)) as (_, _, url):
            yield url


@pytest.mark.parametrize("command", ["chat", "bench"])
async def test_help_says_where_the_key_goes(fairlead, command: str) -> None:
    assert "OPENAI_API_KEY" in (await fairlead(command, "--help")).out


async def test_chat_sends_the_key_that_the_environment_has(fairlead, url: str) -> None:
    ended = await fairlead("chat", "--gateway", url, "Hi", OPENAI_API_KEY=KEY)
    assert (ended.status, ended.out) == (0, "Hello, world!\n")


@pytest.mark.parametrize("key", ["", WRONG])
async def test_chat_without_the_right_key_says_where_it_belongs(fairlead, url: str, key: str) -> None:
    ended = await fairlead("chat", "--gateway", url, "--model", "fake", "Hi", OPENAI_API_KEY=key)
    assert ended.status == 1
    assert "(HTTP 401)" in ended.err
    assert HINT in ended.err
    assert not key or key not in ended.err


async def test_bench_sends_the_key_too(fairlead, url: str) -> None:
    options = ("--num-requests", "3", "--workload", "fixed", "--prompt", "Hello", "--output", "-")
    ended = await fairlead("bench", "--gateway", url, "--model", "fake", *options, OPENAI_API_KEY=KEY)
    assert ended.status == 0, ended.err
    assert KEY not in ended.out + ended.err
