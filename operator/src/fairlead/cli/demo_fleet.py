"""The demo's local fleet: started by the real `fairlead local up`, stopped by the real `fairlead local down`."""

import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class FleetFailed(Exception):
    """The fleet could not be started or stopped; the text is what the command said."""


class DemoFleet:
    """`with DemoFleet() as fleet`: a fleet in a temporary folder on free ports, gone afterwards whatever happened."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fairlead-demo-")
        self._api_port, self._gateway_port = _free_ports(2)
        self.gateway = f"http://127.0.0.1:{self._gateway_port}"

    @property
    def kubeconfig(self) -> Path:
        return Path(self._folder.name) / "kubeconfig"

    def __enter__(self) -> Self:
        try:
            self._local("up", "--detach", "--api-port", str(self._api_port), "--gateway-port", str(self._gateway_port))
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        """To its end, however often Ctrl-C is pressed meanwhile: it takes seconds, and nothing may be left running."""
        handlers = {number: signal.signal(number, _ignore) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._local("down")
        finally:
            self._folder.cleanup()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _local(self, verb: str, *arguments: str) -> None:
        """Runs `fairlead local`; its progress goes to this terminal. In a session of its own, so that Ctrl-C reaches
        only the demo, which then stops the fleet in order."""
        command = [sys.executable, "-m", "fairlead", "local", verb, "--data-dir", self._folder.name, *arguments]
        completed = subprocess.run(command, stdin=subprocess.DEVNULL, start_new_session=True, check=False)
        if completed.returncode != 0:
            raise FleetFailed(f"`fairlead local {verb}` ended with status {completed.returncode}")


def _ignore(*_: Any) -> None:
    """Unlike SIG_IGN it is not handed down to processes that are started meanwhile."""


def _free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
