"""Which clusters the suite may be let loose on. Pure: the names that a kubeconfig gives its cluster decide.

The suite installs a chart, fills the default namespace and taints nodes, so it refuses any cluster that is not called
like one that was made for tests.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

TEST_PATTERNS = ("kind-*", "k3d-*", "minikube", "fairlead-e2e*")
"""Names of contexts that are made for tests."""
VARIABLE = "FAIRLEAD_E2E_CONTEXT"
"""Environment variable that names the context to use, whatever it is called."""


class NotForTests(Exception):
    """The cluster at hand may be somebody's; the message says how to say otherwise."""


def context_for_tests(kubeconfig: Mapping[str, Any], chosen: str | None = None) -> str:
    """The context to use. `kubeconfig`: parsed, as `kubectl config view -o json` prints it. `chosen`: the value of
    FAIRLEAD_E2E_CONTEXT. Raises NotForTests."""
    known = {str(entry["name"]) for entry in kubeconfig.get("contexts") or []}
    if chosen:
        if chosen not in known:
            raise NotForTests(f"{VARIABLE}={chosen}, but the kubeconfig knows {_listed(known)}")
        return chosen
    current = str(kubeconfig.get("current-context") or "")
    if current not in known:
        raise NotForTests(f"the kubeconfig has no current context; set {VARIABLE} to one of {_listed(known)}")
    if not any(fnmatchcase(current, pattern) for pattern in TEST_PATTERNS):
        raise NotForTests(
            f"the context {current!r} is not called like a test cluster ({', '.join(TEST_PATTERNS)}). The suite "
            f"installs a chart, fills namespaces and taints nodes: set {VARIABLE}={current} if it may"
        )
    return current


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
