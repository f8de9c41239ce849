"""Where a node keeps its files, and the names and addresses that it takes on the host."""

import os
from dataclasses import dataclass
from pathlib import Path

NUMBER = int(os.environ.get("FAIRLEAD_E2E_NUMBER") or 0)
"""Which of several nodes of one machine this is, from 0 to 9; each has a name, addresses and a state folder."""
NAME = f"fairlead-e2e{f'-{NUMBER}' if NUMBER else ''}"
"""The node's name in Kubernetes, and on the host the name of its network namespace, veth device and cgroup."""

_PODS, _SERVICES = f"10.{245 + NUMBER}", f"10.{97 + NUMBER}"
POD_CIDR = f"{_PODS}.0.0/24"
SERVICE_CIDR = f"{_SERVICES}.0.0/16"
API_SERVICE_ADDRESS = f"{_SERVICES}.0.1"
LINK_CIDR = f"{_PODS}.255.0/30"
HOST_ADDRESS = f"{_PODS}.255.1"
NODE_ADDRESS = f"{_PODS}.255.2"
"""The two ends of the veth pair. The API server, the kubelet and DNS listen on the node's end."""
CLUSTER_DOMAIN = "cluster.local"


@dataclass(frozen=True)
class Layout:
    """The files of one node, all below `state`; removing the folder removes every trace but the kernel's objects."""

    state: Path

    @classmethod
    def default(cls) -> "Layout":
        """`$FAIRLEAD_E2E_STATE`, else a folder below /var/tmp that is called as the node."""
        return cls(Path(os.environ.get("FAIRLEAD_E2E_STATE") or f"/var/tmp/{NAME}").resolve())

    @property
    def record(self) -> Path:
        """What has been made on the host, written before it is made: `down` needs nothing else."""
        return self.state / "node.json"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's; its certificates are inside, so it may be copied."""
        return self.state / "kubeconfig"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        """One file per component."""
        return self.state / "logs"

    @property
    def configuration(self) -> Path:
        return self.state / "etc"

    @property
    def etcd(self) -> Path:
        return self.state / "etcd"

    @property
    def root(self) -> Path:
        """What the node sees as /run, /var/lib and /var/log, each a folder in here."""
        return self.state / "root"

    def log(self, component: str) -> Path:
        return self.logs / f"{component}.log"
