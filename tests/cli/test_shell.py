"""What a shell meets: completion, and readers who have read enough."""

import asyncio
import functools
import io
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from fairlead.cli.main import _settle_streams, main
from fairlead.fit.presets import presets
from fairlead_testing.fake_engine import FakeEngine

COMPLETE = """
source {script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_fairlead
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


Script = Callable[[str], Path]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    """The file with a shell's script, made when the first test asks for it."""
    folder = tmp_path_factory.mktemp("scripts")

    @functools.cache
    def made(shell: str) -> Path:
        command = [sys.executable, "-m", "fairlead", "completion", shell]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        assert ended.stderr == ""
        (folder / shell).write_text(ended.stdout)
        return folder / shell

    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "among", "not_among"),
    [
        ("fairlead ''", {"local", "bench", "completion"}, {"up", "--model"}),
        ("fairlead local ''", {"up", "down", "status", "logs"}, {"bench"}),
        ("fairlead local up --g", {"--gateways", "--gateway-port"}, {"--file", "--detached"}),
        ("fairlead bench --workload ''", {"shared-prefix", "fixed"}, {"--rate"}),
        ("fairlead bench --rate 4 --workload fixed --s", {"--seed", "--slo-ttft"}, {"fixed"}),
        ("fairlead top -o ''", {"json"}, {"--once"}),
    ],
)
async def test_bash_completes(script: Script, typed: str, among: set[str], not_among: set[str]) -> None:
    text = COMPLETE.format(script=script("bash"), words=typed)
    found = await asyncio.to_thread(subprocess.run, ["bash", "-c", text], capture_output=True, text=True, check=True)
    assert found.stderr == ""
    words = set(found.stdout.split())
    assert among <= words and not not_among & words


async def completed_by_bash(script: Script, typed: str, **environment: str) -> set[str]:
    text = COMPLETE.format(script=script("bash"), words=typed)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    found = await asyncio.to_thread(
        subprocess.run, ["bash", "-c", text], capture_output=True, text=True, check=True,
        env=os.environ | {"PATH": path} | environment,
    )  # fmt: skip
    assert found.stderr == ""
    return set(found.stdout.split())


HOSTILE = ("$(touch${IFS}hostile)", "`id`", "a b", "-rf", "a;b", "../a")


@pytest.mark.slow
async def test_names_are_those_that_there_are_now(script: Script, tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        served = {entry["id"] for entry in json.loads(await fetched(f"{engine.url}/v1/models"))["data"]}
        typed = f"fairlead chat --gateway {engine.url} --model ''"
        assert await completed_by_bash(script, typed) == served
        assert await completed_by_bash(script, "fairlead bench --model ''", FAIRLEAD_GATEWAY=engine.url) == served
    assert await completed_by_bash(script, "fairlead chat --model ''", FAIRLEAD_GATEWAY="http://127.0.0.1:9") == set()
    assert "qwen3-8b" in await completed_by_bash(script, "fairlead models catalog show qwen3-8")
    nothing = {"KUBECONFIG": str(tmp_path / "none"), "FAIRLEAD_DATA_DIR": str(tmp_path)}
    assert await completed_by_bash(script, "fairlead top ''", **nothing) >= {"--namespace"}
    assert await completed_by_bash(script, "fairlead local logs ''", **nothing) >= {"--follow"}


async def test_where_a_value_is_wanted_no_flag_is_put(script: Script) -> None:
    assert await completed_by_bash(script, "fairlead bench --rate ''") == set()


async def test_names_that_a_shell_would_run_are_not_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = dict.fromkeys((*HOSTILE, "org/name:v1@2"), next(iter(presets().values())))
    monkeypatch.setattr("fairlead.cli.models_command.presets", lambda: known)
    assert main(["completion", "--values", "fairlead models catalog show", "name", "models", "catalog", "show"]) == 0
    assert capsys.readouterr().out == "org/name:v1@2\n"


def test_without_a_shell_it_says_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion"]) == 2
    assert "fairlead completion bash" in capsys.readouterr().err


async def fetched(url: str) -> bytes:
    return await asyncio.to_thread(lambda: urlopen(url).read())


@pytest.mark.parametrize("shell", ["zsh", "fish"])
async def test_other_shells_read_theirs(script: Script, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    process = await asyncio.create_subprocess_exec(
        shell, "-c", f"source {script(shell)}", stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")


async def test_fish_has_verbs_flags_and_choices(script: Script) -> None:
    lines = script("fish").read_text().splitlines()
    assert any("-a 'up down status logs'" in line and "from local" in line for line in lines)
    assert any(
        "-l model" in line and '(fairlead completion --values "fairlead chat" "--model"' in line for line in lines
    )
    assert any("-l workload" in line and "shared-prefix" in line for line in lines)


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
@pytest.mark.parametrize(
    ("typed", "among", "not_among"),
    [
        ("fairlead ", {"local", "bench", "completion"}, {"up"}),
        ("fairlead local ", {"up", "down", "status", "logs"}, {"bench"}),
        ("fairlead local up --g", {"--gateways", "--gateway-port"}, {"--file", "--detached"}),
        ("fairlead bench --workload ", {"shared-prefix", "fixed"}, {"--rate"}),
        ("fairlead top -o ", {"json"}, {"--once"}),
    ],
)
async def test_fish_completes(script: Script, typed: str, among: set[str], not_among: set[str]) -> None:
    asked = ["fish", "--no-config", "-c", f"source {script('fish')}; complete -C '{typed}'"]
    found = await asyncio.to_thread(subprocess.run, asked, capture_output=True, text=True, check=True)
    assert found.stderr == ""
    words = {line.partition("\t")[0] for line in found.stdout.splitlines()}
    assert among <= words and not not_among & words


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("fairlead ben", "fairlead bench "),
        ("fairlead local u", "fairlead local up "),
        ("fairlead local up --gateways 2 --gateway-p", "--gateway-port "),
        ("fairlead bench --workload sh", "shared-prefix "),
        ("fairlead top -o j", "-o json "),
    ],
)
def test_zsh_completes_at_the_prompt(script: Script, typed: str, shown: str) -> None:
    """zsh completes for a person only, so one is played."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "dumb"
        os.execvp("zsh", ["zsh", "-f", "-i"])
    try:
        os.write(terminal, f"unsetopt zle_bracketed_paste; source {script('zsh')}; echo rea''dy\n".encode())
        seen_at(terminal, "ready")
        os.write(terminal, f"{typed}\t".encode())
        assert "modifier" not in seen_at(terminal, shown)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def seen_at(terminal: int, words: str, seconds: float = 30.0) -> str:
    """What the terminal shows until it shows these words."""
    seen = ""
    while words not in seen:
        assert select.select([terminal], [], [], seconds)[0], f"no {words!r} in {seen!r}"
        seen += os.read(terminal, 65_536).decode()
    return seen


@pytest.mark.parametrize(
    "command", [("completion", "bash"), ("chat", "Hi"), ("bench", "--num-requests", "2"), ("--help",)]
)
async def test_a_reader_who_has_read_enough_is_no_error(command: tuple[str, ...]) -> None:
    """`| head` that is gone before the first word."""
    reading, writing = os.pipe()
    os.close(reading)
    async with FakeEngine() as engine:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fairlead", *command,
            stdin=asyncio.subprocess.DEVNULL, stdout=writing, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "FAIRLEAD_GATEWAY": engine.url},
        )  # fmt: skip
        os.close(writing)
        _, err = await process.communicate()
    assert "Traceback" not in err.decode() and "BrokenPipe" not in err.decode()
    assert process.returncode in (0, 1)


async def _in_a_shell(line: str, **environment: str) -> tuple[int | None, str, str]:
    """Status, output and errors of a line of shell, where `$F` is the command and an engine answers."""
    async with FakeEngine() as engine:
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", line, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "FAIRLEAD_GATEWAY": engine.url, "F": f"{sys.executable} -m fairlead", **environment},
        )  # fmt: skip
        out, err = await process.communicate()
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")


async def test_closed_standard_streams_are_as_empty_ones() -> None:
    status, _, err = await _in_a_shell("$F chat Hi <&-")
    assert (status, err) == (0, "")
    status, _, err = await _in_a_shell("$F local status --data-dir /nowhere >&-")
    assert (status, err) == (1, "")


async def test_output_that_cannot_be_written_is_told_in_a_sentence() -> None:
    status, _, err = await _in_a_shell("$F chat Hi >/dev/full")
    assert (status, err) == (1, "error: cannot write: No space left on device\n")


def test_characters_that_the_output_lacks_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    _settle_streams()
    print("1 → 2", flush=True)
    assert written.getvalue() == b"1 \\u2192 2\n"


@pytest.mark.parametrize("flag", ["--model", "--system"])
async def test_arguments_that_are_not_utf8_are_refused_by_name(flag: str) -> None:
    status, _, err = await _in_a_shell(f"$F chat {flag} $(printf '\\377') Hi")
    assert status == 2
    assert f"argument {flag}: '\\udcff' is not UTF-8: byte 0xff" in err


@pytest.mark.parametrize(("command", "wrong"), [("chat Hi", "\r"), ("bench --num-requests 1", "✓")])
async def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(command: str, wrong: str) -> None:
    status, _, err = await _in_a_shell(f"$F {command}", OPENAI_API_KEY=f"secret{wrong}")
    assert status == 2
    assert f"error: OPENAI_API_KEY has {wrong!r} after 6 characters" in err and "secret" not in err
