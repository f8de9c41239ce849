"""At a terminal of 60 columns no command breaks a word or cuts a name."""

import asyncio
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

import pytest

from fairlead.fit.presets import presets
from fairlead_testing.fake_engine import FakeEngine

COLUMNS = 60
EXAMPLES = Path(__file__).parents[2] / "examples"
_STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
NEW_HOME = {"HOME": "/nonexistent", "KUBECONFIG": "", "FAIRLEAD_DATA_DIR": "/nonexistent/local"}


async def shown(*arguments: str, typed: str = "", columns: int = COLUMNS, **variables: str) -> list[str]:
    """The lines that the command writes to a terminal, where `typed` is typed once something was asked for."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("FAIRLEAD_", "COLUMNS"))}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fairlead", *arguments, stdin=theirs, stdout=theirs, stderr=theirs,
        env={**kept, "TERM": "xterm", **NEW_HOME, **variables},
    )  # fmt: skip
    os.close(theirs)
    told = ""
    while piece := await asyncio.to_thread(_read, ours):
        told += piece
        if typed and "> " in told:
            os.write(ours, typed.encode())
            typed = ""
    await process.wait()
    os.close(ours)
    return [line.rstrip() for line in _STYLE.sub("", told).replace("\r\n", "\n").split("\n")]


def _read(terminal: int) -> str:
    try:
        return os.read(terminal, 65536).decode()
    except OSError:  # how Linux says that the other side is closed
        return ""


def too_long(lines: list[str], columns: int = COLUMNS) -> list[str]:
    """Lines that the terminal would break, but for those of one word."""
    return [line for line in lines if len(line) > columns and " " in line.strip()]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("chat", "--gateway", "http://127.0.0.1:9"),
        ("check", "-f", str(EXAMPLES / "01-dinghy.yaml")),
        ("check", "-f", str(EXAMPLES / "02-autoscaling.yaml")),
        ("dashboard",),
        ("local", "status"),
        ("local", "up", "--data-dir", "/proc/fairlead-of-mine"),
        ("models", "catalog", "list"),
        ("models", "catalog", "show", "smollm"),
        ("models", "pull", "Qwen/Qwen3-8B"),
        ("models", "pull", "https://huggingface.co/Qwen/Qwen3-8B"),
        ("status",),
        ("top",),
    ],
    ids=" ".join,
)
async def test_no_word_is_broken(arguments: tuple[str, ...]) -> None:
    lines = await shown(*arguments)
    assert any(lines)
    assert not too_long(lines)


async def test_a_chat_keeps_to_the_width() -> None:
    async with FakeEngine() as engine:
        question = "What is 2 plus 3, and why would anybody ask it here?"
        lines = await shown("chat", "-v", "--gateway", engine.url, typed=f"{question}\n/?\n\x04")
    assert any("Ctrl-D leaves" in " ".join(lines) for _ in lines) and any("TTFT" in line for line in lines)
    assert not too_long([line for line in lines if question not in line])


@pytest.mark.parametrize(("columns", "least"), [(250, 7), (80, 4), (60, 3), (40, 1)])
async def test_the_catalogue_shows_whole_columns(columns: int, least: int) -> None:
    lines = await shown("models", "catalog", "list", columns=columns)
    names = {line.split()[0] for line in lines if line}
    assert set(presets()) <= names and not any("…" in line for line in lines)
    assert len(re.split(r"  +", lines[0])) == least
    left_out = " ".join(lines).partition("A wider terminal")[2]
    assert ("what it is" in left_out) == (columns < 250)
    assert not too_long(lines, columns)
