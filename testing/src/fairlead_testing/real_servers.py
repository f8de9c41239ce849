"""Servers that are not ours as they really are, where this machine has them: started with what a pod would tell them.

A test that needs one asks for its program; where there is none, it is skipped with a sentence.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead.api.llmdeployment import LLMDeployment
from fairlead.manifests.foreign_servers import SERVER_PORT, ForeignServer

START_SECONDS = 300.0
END_SECONDS = 60.0


def program(variable: str, name: str) -> str:
    """Its path: as the environment variable says, or as it is found. Skips the test where there is none."""
    found = os.environ.get(variable) or shutil.which(name)
    if found is None:
        pytest.skip(f"no real {name} is installed: put it onto PATH, or its path into {variable}")
    return found


def arguments_of_a_pod(kind: ForeignServer, model: Path, *, port: int, pod: str, **engine: Any) -> list[str]:
    """What the server's container is told, for a model that is called boat, with the variables of a pod filled in."""
    body = {
        "metadata": {"name": "boat", "namespace": "ships", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"model": {"source": f"file://{model}"}, "engine": {"image": "any", **engine}},
    }
    deployment = LLMDeployment.from_body(body)
    words = [*kind.arguments(deployment, str(model)), *deployment.spec.engine.extra_args]
    filled = [word.replace("$(POD_IP)", "127.0.0.1").replace("$(POD_NAME)", pod) for word in words]
    return [str(port) if word == str(SERVER_PORT) else word for word in filled]


def free_port() -> int:
    """One of loopback that nobody listens on now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class RealServer:
    """A process of one that runs."""

    def __init__(self, process: subprocess.Popen[bytes], host: str, port: int, log: Path) -> None:
        self.process, self.host, self.port, self.log = process, host, port, log

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def metric(self, name: str) -> float:
        """The sum over its series."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as reply:
            lines = reply.read().decode().splitlines()
        values = [float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].partition(" ")[0] == name]
        assert values, f"{name} is not in its metrics"
        return sum(values)


@contextmanager
def running_server(
    command: Sequence[str], environment: Mapping[str, str], port: int, log: Path
) -> Iterator[RealServer]:
    """Until the end of the block; waits until `/health` answers 200."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=output, stderr=output, start_new_session=True
        )
    server = RealServer(process, "127.0.0.1", port, log)
    try:
        _wait(server)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(server: RealServer) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=5):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.25)
    pytest.fail(f"{server.process.args!r} does not serve:\n{server.log.read_text(errors='replace')[-4000:]}")
