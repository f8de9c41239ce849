"""Which kubectl the tests call: this machine's, else the one that was built together with the node's Kubernetes.

The built one is as old as its server. It serves that API server, and no other: newer ones, local mode's among them, are
not asked for schemas, Events and checks in the way that it knows.
"""

import shutil
from pathlib import Path

from cluster.build import VERSION, built
from cluster.commands import ClusterError
from cluster.layout import Layout

INSTALLING = "https://kubernetes.io/docs/tasks/tools/"


class NoKubectl(ClusterError):
    """There is no kubectl; the message says what to do."""


def is_ours(kubeconfig: str | None) -> bool:
    """Whether the API server is the built one: of the node that runs here, or, None or "", of one that is to start."""
    return not kubeconfig or Path(kubeconfig).resolve() == Layout.default().kubeconfig


def find(*, or_built: bool = False) -> str | None:
    """The program, from PATH; with `or_built` the one in the cache where PATH has none. None where there is neither."""
    if found := shutil.which("kubectl"):
        return found
    binaries = built() if or_built else None
    return str(binaries.program("kubectl")) if binaries else None


def require(*, or_built: bool = False) -> str:
    """As `find`. Raises NoKubectl where there is none."""
    found = find(or_built=or_built)
    if found is None:
        raise NoKubectl(explained(or_built=or_built))
    return found


def explained(*, or_built: bool = False) -> str:
    """Why there is no kubectl, and what to do."""
    if or_built:
        return (
            "There is no kubectl, neither on PATH nor in the cache: `PYTHONPATH=e2e python -m cluster build` builds "
            f"one with its Kubernetes, or install one ({INSTALLING})."
        )
    why = f"; the one in the cache, {VERSION}, is for the node that is built with it" if built() else ""
    return f"There is no kubectl on PATH{why}: install one ({INSTALLING})."
