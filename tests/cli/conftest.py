"""What tests of the command line share."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from fairlead.cli.main import main


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that is over."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, where that is JSON."""
        return json.loads(self.out)


Fairlead = Callable[..., Awaitable[Ended]]


@pytest.fixture
def fairlead() -> Fairlead:
    """Runs the real command, while servers of the test go on."""

    async def run(*arguments: str, stdin: str | bytes = "", **environment: str) -> Ended:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("FAIRLEAD_", "KUBECONFIG"))}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fairlead", *arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**kept, "COLUMNS": "160", **environment},
        )  # fmt: skip
        out, err = await process.communicate(stdin.encode() if isinstance(stdin, str) else stdin)
        assert process.returncode is not None
        return Ended(process.returncode, out.decode(), err.decode())

    return run


@pytest.fixture
def asked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Runs the real command in this process: for usage that is refused before anything begins, in many variants."""
    for key in [key for key in os.environ if key.startswith(("FAIRLEAD_", "KUBECONFIG"))]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: str) -> Ended:
        try:
            status = main(arguments)
        except SystemExit as end:
            assert isinstance(end.code, int)
            status = end.code
        return Ended(status, *capsys.readouterr())

    return run
