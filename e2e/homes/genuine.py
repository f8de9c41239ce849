"""A genuine API server, whoever started it, as the scenarios about the API alone see it."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

_SERVES = re.compile(r"Starting to serve on (\S+)")


@dataclass(frozen=True)
class Genuine:
    """Where the API server is, and whether a fleet's release is installed on it."""

    kubeconfig: Path
    """The administrator's, complete in itself, with one context."""
    program: str
    """kubectl."""
    has_fleet: bool

    @contextmanager
    def client(self) -> Iterator[httpx.Client]:
        """Plain HTTP as the administrator, through `kubectl proxy`, which knows every way to log in."""
        command = [self.program, "--kubeconfig", str(self.kubeconfig), "proxy", "--port=0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as proxy:
            try:
                assert proxy.stdout is not None
                said = proxy.stdout.readline()
                found = _SERVES.search(said)
                assert found, f"kubectl proxy: {said}"
                with httpx.Client(base_url=f"http://{found[1]}", trust_env=False, timeout=30.0) as client:
                    yield client
            finally:
                proxy.terminate()
