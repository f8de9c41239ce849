"""How the tests reach the gateway's Service: by its ClusterIP where this machine can route to it, else by a tunnel."""

import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

CONNECT_SECONDS = 3.0
REOPEN_SECONDS = 0.5


def is_reachable(address: str, port: int) -> bool:
    """Whether something accepts connections there."""
    try:
        with socket.create_connection((address, port), timeout=CONNECT_SECONDS):
            return True
    except OSError:
        return False


@contextmanager
def forwarded(kubectl: Sequence[str], service: str, local_port: int, port: int) -> Iterator[None]:
    """`kubectl port-forward` to a Service; when its pod goes, the tunnel is opened anew to another. `kubectl`: the
    command line up to the verb."""
    ended = threading.Event()
    current: list[subprocess.Popen[bytes]] = []

    def keep_open() -> None:
        while not ended.is_set():
            command = [*kubectl, "port-forward", service, f"{local_port}:{port}"]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                current[:] = [process]
                if ended.is_set():
                    process.terminate()
            ended.wait(REOPEN_SECONDS)

    keeper = threading.Thread(target=keep_open)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        for process in current:
            process.terminate()
        keeper.join()
