"""Debian's tools that a node and its images call on the host, installed where they are missing; no service starts."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import debian

from cluster.commands import ClusterError, run

TOOLS = {
    "iptables": "iptables",  # kube-proxy and the CNI plugins call it
    "conntrack": "conntrack",  # kube-proxy forgets the flows of Services that are gone
    "socat": "socat",  # kubectl port-forward
    "ethtool": "ethtool",
    "ip": "iproute2",
    "openssl": "openssl",
    "nsenter": "util-linux",
    "mount": "mount",
}
"""Programs that a running node calls, and the package that brings each."""

IMAGE_TOOLS = {"buildah": "buildah", "mmdebstrap": "mmdebstrap"}
"""What building container images needs beside it."""

SUITE = "bookworm"
"""Of the images' base."""
FINDABLE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing(tools: Iterable[str]) -> list[str]:
    """Those of `tools` (names of programs) that this machine does not have."""
    return [tool for tool in tools if shutil.which(tool, path=FINDABLE_PATH) is None]


def install(tools: dict[str, str]) -> list[str]:
    """Installs the packages of those tools that are missing, starting no service; returns the packages' names."""
    wanted = sorted({tools[tool] for tool in missing(tools)})
    if not wanted:
        return []
    environment = {**debian.ENVIRONMENT, "RUNLEVEL": "1"}
    run("apt-get", "update", "-qq", env=environment)
    with _NoServices():
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *wanted, env=environment)
    return wanted


class _NoServices:
    """While it lasts, packages that are installed start no service (invoke-rc.d asks policy-rc.d first)."""

    policy = Path("/usr/sbin/policy-rc.d")

    def __enter__(self) -> None:
        self.ours = not self.policy.exists()
        if self.ours:
            self.policy.write_text("#!/bin/sh\nexit 101\n")
            self.policy.chmod(0o755)

    def __exit__(self, *_: object) -> None:
        if self.ours:
            self.policy.unlink(missing_ok=True)


def mirror() -> str:
    """The address of the Debian archive that this machine's apt takes bookworm's `main` from."""
    found = debian.mirror(SUITE)
    if found is None:
        raise ClusterError(
            f"apt on this machine has no source for Debian {SUITE}, component main, of which the images are made: "
            f"use a Debian {SUITE} machine, or set KUBECONFIG to a cluster that has the images."
        )
    return found
