"""`fairlead chat` as a process: answers on standard output, everything else on standard error."""

import asyncio
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fairlead.cli.chat import footnote
from fairlead.client.openai import ChatAnswer
from fairlead_local.fleet_state import FleetFolder, FleetPhase, write_state
from fairlead_testing.fake_engine import FakeEngine, Refusal


async def test_one_question_and_only_its_answer(fairlead) -> None:
    async with FakeEngine() as engine:
        ended = await fairlead("chat", "--model", "fake", "Who", "are", "you?", FAIRLEAD_GATEWAY=engine.url)
        assert engine.requests[0].json()["messages"] == [{"role": "user", "content": "Who are you?"}]
    assert (ended.status, ended.out, ended.err) == (0, "Hello, world!\n", "")


async def test_a_fleet_on_this_machine_is_found_by_its_folder(fairlead, tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        write_state(
            FleetFolder(tmp_path), FleetPhase.READY, gateway=engine.url
        )  # as if this process were its supervisor
        ended = await fairlead("chat", "Hi", FAIRLEAD_DATA_DIR=str(tmp_path))
    assert (ended.status, ended.out, ended.err) == (0, "Hello, world!\n", "")


async def test_answers_are_as_long_as_there_is_room_unless_one_says(fairlead) -> None:
    """A limit of the command's own would end a long conversation with a refusal that its user cannot help."""
    async with FakeEngine() as engine:
        for limit in ([], ["--max-tokens", "2"]):
            await fairlead("chat", "--gateway", engine.url, "--model", "fake", *limit, "Hi")
        assert [request.json().get("max_tokens") for request in engine.requests] == [None, 2]


async def test_verbose_says_what_it_took(fairlead) -> None:
    async with FakeEngine() as engine:
        engine.num_cached_tokens = 1
        ended = await fairlead("chat", "-v", "--model", "fake", "--gateway", engine.url, "--max-tokens", "3", "Hi")
    assert ended.out == "Hello, world\n"
    assert "TTFT" in ended.err and "+ 3 tokens" in ended.err and "1 cached" in ended.err


async def test_lines_of_a_pipe_are_one_conversation(fairlead) -> None:
    async with FakeEngine() as engine:
        ended = await fairlead(
            "chat", "--gateway", engine.url, "--model", "fake", "--system", "Be brief.", stdin="one\n\ntwo\n"
        )
        said = [[message["content"] for message in request.json()["messages"]] for request in engine.requests]
    assert ended.out == "Hello, world!\n" * 2
    assert said == [["Be brief.", "one"], ["Be brief.", "one", "Hello, world!", "two"]]


async def test_a_whole_file_is_one_question(fairlead) -> None:
    async with FakeEngine() as engine:
        await fairlead("chat", "--gateway", engine.url, "--model", "fake", "-", stdin="one\ntwo\n")
        assert [request.json()["messages"][0]["content"] for request in engine.requests] == ["one\ntwo"]


async def test_errors_say_what_to_do(fairlead) -> None:
    async with FakeEngine() as engine:
        engine.refusal = Refusal.FULL
        full = await fairlead("chat", "--gateway", engine.url, "--model", "fake", "Hi")
        url = engine.url
    absent = await fairlead("chat", "--gateway", url, "--model", "fake", "Hi")
    assert (full.status, full.out) == (1, "")
    assert "error: The engine's queue is full. (HTTP 429)" in full.err
    assert absent.status == 1
    assert "cannot connect" in absent.err and "Connection refused" in absent.err and "ssl:" not in absent.err
    assert f"hint: is a gateway running at {url}?" in absent.err


@pytest.mark.parametrize("given", ["nan", "inf", "1e999", "-0.1", "100.1", "warm", ""])
def test_a_temperature_that_is_none_is_refused_by_name(asked, given: str) -> None:
    ended = asked("chat", "--model", "m", f"--temperature={given}", "Hi")
    assert ended.status == 2
    assert f"argument --temperature: {given!r} is not a number from 0 to 100" in ended.err


async def test_it_says_what_it_waits_for_while_nothing_comes(fairlead) -> None:
    async with FakeEngine() as engine:
        engine.pace = lambda index: asyncio.sleep(4.0 if index == 0 else 0)
        busy = await fairlead("chat", "--gateway", engine.url, "--model", "fake", "Hi")
        engine.is_listed = False
        asleep = await fairlead("chat", "--gateway", engine.url, "--model", "fake", "Hi")
    assert "waiting: for a first token; fake has just started, has a lot to do" in busy.err
    assert busy.out == "Hello, world!\n"
    assert "waiting: no replica of fake is ready yet" in asleep.err and asleep.out == "Hello, world!\n"


async def test_bytes_that_are_no_text_are_refused_with_a_sentence(fairlead) -> None:
    async with FakeEngine() as engine:
        asked = ("chat", "--gateway", engine.url, "--model", "fake")
        for more, given in ((("-",), b"one\xfftwo"), ((), b"one\xfftwo\n")):
            ended = await fairlead(*asked, *more, stdin=given)
            assert (ended.status, ended.out) == (2, "")
            assert "error: the question is not UTF-8: byte 0xff after 3 characters" in ended.err
            assert "hint: convert it first" in ended.err and "Traceback" not in ended.err
        ended = await fairlead(*asked, os.fsdecode(b"\xe4h"))
        assert (ended.status, "byte 0xe4" in ended.err) == (2, True)
        assert engine.requests == []


async def test_a_script_hears_of_an_error_at_once(fairlead) -> None:
    async with FakeEngine() as engine:
        engine.refusal = Refusal.DEAD
        ended = await fairlead("chat", "--gateway", engine.url, "--model", "fake", stdin="one\ntwo\n")
        assert len(engine.requests) == 1
    assert ended.status == 1


async def test_a_person_at_a_terminal_is_told_the_model_and_the_commands() -> None:
    async with FakeEngine() as engine, _at_a_terminal(engine) as (ours, process):
        await _seen(ours, b"fake: write a question. /clear forgets the conversation, ")
        for line, shown in ((b"one", b"world!"), (b"/clear", b"leaves."), (b"/?", b"leaves."), (b"two", b"world!")):
            os.write(ours, line + b"\n")
            await _seen(ours, shown + b"\r\n> ")
        os.write(ours, b"\x04")
        assert await asyncio.wait_for(process.wait(), 30.0) == 0
        said = [[message["content"] for message in request.json()["messages"]] for request in engine.requests]
    assert said == [["one"], ["two"]]


async def test_ctrl_c_leaves_a_conversation() -> None:
    """At a terminal, between two questions, with the first Ctrl-C."""
    async with FakeEngine() as engine, _at_a_terminal(engine) as (ours, process):
        await _seen(ours, b"> ")
        os.write(ours, b"Who are you?\n")
        await _seen(ours, b"Hello, world!\r\n> ")
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 30.0) == 130


@asynccontextmanager
async def _at_a_terminal(engine: FakeEngine) -> AsyncIterator[tuple[int, asyncio.subprocess.Process]]:
    """A conversation at a terminal, and the terminal's other end."""
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fairlead", "chat", "--gateway", engine.url, "--model", "fake",
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield ours, process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(ours)


async def _seen(terminal: int, words: bytes) -> None:
    """Reads what a terminal shows until these words are there."""
    shown = b""
    while words not in shown:
        shown += await asyncio.to_thread(os.read, terminal, 4096)


def test_the_footnote_has_what_is_known() -> None:
    assert footnote(ChatAnswer()) == "[0 + 0 tokens · 0 cached]"
    completion = ChatAnswer(
        ttft_seconds=0.0125, predicted_ttft_seconds=0.01, duration_seconds=0.0325, num_prompt_tokens=20,
        num_completion_tokens=3, num_cached_tokens=16, replica="a",
    )  # fmt: skip
    assert footnote(completion) == "[TTFT 12 ms (predicted 10 ms) · 10 ms per token · 20 + 3 tokens · 16 cached · a]"
