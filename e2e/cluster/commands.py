"""Running other programs: one way to call them, to hear why they failed, and to tell a person how far things are."""

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

TAIL_LINES = 30
"""How much of a failed program's output, or of a component's log, an error message repeats."""


class ClusterError(Exception):
    """What went wrong, as a sentence that a person can act on."""


def tail(text: str, lines: int = TAIL_LINES) -> str:
    """The last lines of `text`."""
    return "\n".join(text.rstrip().splitlines()[-lines:])


def run(
    *argv: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout: float | None = None,
) -> str:
    """Runs a program to its end and returns its standard output; a failure raises ClusterError with its last lines.

    `timeout` is in seconds; None waits for ever. A missing program is a ClusterError too.
    """
    words = [str(word) for word in argv]
    try:
        completed = subprocess.run(
            words, cwd=cwd, env=env, input=stdin, stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=timeout, check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise ClusterError(f"There is no program {words[0]} on this machine.") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{' '.join(words)[:300]} did not end within {timeout:.0f} s.") from error
    if completed.returncode != 0:
        output = tail(completed.stdout + completed.stderr)
        raise ClusterError(f"{' '.join(words)[:300]} ended with status {completed.returncode}:\n{output}")
    return completed.stdout


class Progress:
    """Prints what is done, with the seconds since it was made."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    @property
    def elapsed_seconds(self) -> float:
        return time.monotonic() - self.started

    def say(self, text: str) -> None:
        print(f"[{self.elapsed_seconds:6.1f} s] {text}", file=sys.stderr, flush=True)
