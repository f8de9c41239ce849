"""Which kubectl the tests call: this machine's, or the one that comes with the node's Kubernetes."""

import shutil
from pathlib import Path

from cluster.commands import ClusterError
from cluster.layout import Layout
from cluster.programs import cached

EXPLAINED = (
    "There is no kubectl, neither on PATH nor in the cache: install one (https://kubernetes.io/docs/tasks/tools/), or "
    "`PYTHONPATH=e2e python -m cluster build` puts one into the cache with its Kubernetes."
)
"""Why there is no kubectl, and what to do."""


class NoKubectl(ClusterError):
    """There is no kubectl; the message says what to do."""


def is_ours(kubeconfig: str | None) -> bool:
    """Whether the API server is that of the node that runs here, or, None or "", of one that is to start."""
    return not kubeconfig or Path(kubeconfig).resolve() == Layout.default().kubeconfig


def find(*, of_node: bool = False) -> str | None:
    """The program: PATH's, else the cache's; with `of_node` the cache's first, which has the version of the node.

    None where there is neither.
    """
    on_path, binaries = shutil.which("kubectl"), cached()
    of_cache = str(binaries.program("kubectl")) if binaries else None
    return (of_cache or on_path) if of_node else (on_path or of_cache)


def require(*, of_node: bool = False) -> str:
    """As `find`. Raises NoKubectl where there is none."""
    found = find(of_node=of_node)
    if found is None:
        raise NoKubectl(EXPLAINED)
    return found
