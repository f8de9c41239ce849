"""How the tests reach the gateway's Service: by its ClusterIP where this machine can route to it, else by a tunnel."""

import socket
from collections.abc import Sequence
from contextlib import AbstractContextManager

from homes.kubectl import kept_running

CONNECT_SECONDS = 3.0


def is_reachable(address: str, port: int) -> bool:
    """Whether something accepts connections there."""
    try:
        with socket.create_connection((address, port), timeout=CONNECT_SECONDS):
            return True
    except OSError:
        return False


def forwarded(kubectl: Sequence[str], service: str, local_port: int, port: int) -> AbstractContextManager[None]:
    """`kubectl port-forward` to a Service; when its pod goes, the tunnel is opened anew to another. `kubectl`: the
    command line up to the verb."""
    return kept_running([*kubectl, "port-forward", service, f"{local_port}:{port}"])
