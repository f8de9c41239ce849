"""How the tests reach the gateway's Service: by its ClusterIP where this machine can route to it, else by a tunnel."""

import socket
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from homes.kubectl import kept_running

CONNECT_SECONDS = 3.0


def is_reachable(address: str, port: int, within: float = 0.0) -> bool:
    """Whether something accepts connections there, or does so within some seconds."""
    until = time.monotonic() + within
    while True:
        try:
            with socket.create_connection((address, port), timeout=CONNECT_SECONDS):
                return True
        except OSError:
            if time.monotonic() >= until:
                return False
        time.sleep(0.5)


def forwarded(kubectl: Sequence[str], service: str, local_port: int, port: int) -> AbstractContextManager[None]:
    """`kubectl port-forward` to a Service; when its pod goes, the tunnel is opened anew to another. `kubectl`: the
    command line up to the verb."""
    return kept_running([*kubectl, "port-forward", service, f"{local_port}:{port}"])
