"""This machine as a node: the Node object, the addresses of pods, and the settings of the kubelet.

Each pod gets an address in 127.20.x.y: all pods can listen on the same port. On Linux all of 127.0.0.0/8 is this
machine; elsewhere, add the addresses to the loopback interface first.
"""

import os
import platform
import socket
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from fairlead import __version__
from fairlead_local.apiserver.operations import Operations, WriteOptions
from fairlead_local.apiserver.resources import NODES
from fairlead_local.apiserver.status import StatusError
from fairlead_local.apiserver.times import condition


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletSettings:
    """Seconds everywhere."""

    first_back_off: float = 1.0
    """Wait before the second restart of a failing container (the first is immediate); doubles each time."""
    longest_back_off: float = 30.0
    """Limit of the growing wait."""
    back_off_reset: float = 120.0
    """After a run of this duration, back-off starts over with `first_back_off`."""
    retry_interval: float = 1.0
    """Between attempts to find missing objects: the ConfigMap of a volume, a key of an environment variable."""
    shutdown_grace: float = 10.0
    """Grace period of all containers when the whole fleet is stopped, in place of the grace periods of pods."""


DEFAULT_SETTINGS = KubeletSettings()


_NETWORK = "127.20"
_LOCK_HOST = 254
_LOCK_PORT = 7443


class NoAddress(Exception):
    """No address for a pod; the text says why."""


class AddressBlock:
    """The /24 of one fleet. A socket on the last address keeps other fleets out."""

    def __init__(self, preference: str) -> None:
        """`preference`: a text; the same text gets the same block if free. Raises NoAddress."""
        first, problem = crc32(preference.encode()) % 256, OSError()
        for offset in range(256):
            block = f"{_NETWORK}.{(first + offset) % 256}"
            self._lock = socket.socket()
            try:
                self._lock.bind((f"{block}.{_LOCK_HOST}", _LOCK_PORT))
            except OSError as error:
                self._lock.close()
                problem = error
            else:
                self._free = deque(f"{block}.{host}" for host in range(1, _LOCK_HOST))
                return
        raise NoAddress(
            f"no address in {_NETWORK}.0.0/16 can be used for pods ({problem.strerror}). Linux has them all; on macOS "
            f"add them first, for example: sudo ifconfig lo0 alias {_NETWORK}.{first}.1"
        )

    def take(self) -> str:
        """The address with the longest free time; raises NoAddress when all are in use."""
        if not self._free:
            raise NoAddress("all pod addresses are in use")
        return self._free.popleft()

    def give_back(self, address: str) -> None:
        self._free.append(address)

    def close(self) -> None:
        self._lock.close()


NODE_NAME = "local"
MAX_PODS = 110
CPU_OVERCOMMIT = 4
"""CPUs offered per CPU: requests reserve nothing, and a laptop should hold a rollout of a small fleet."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}

Resources = Mapping[str, str]
"""Resource name → quantity."""


def machine_resources() -> Resources:
    """What this machine offers to pods."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = {"cpu": str(cpus * CPU_OVERCOMMIT), "memory": f"{_memory_bytes() // 1024}Ki", "pods": str(MAX_PODS)}
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return {**found, "nvidia.com/gpu": str(gpus)} if gpus else found


def register_node(operations: Operations, resources: Resources) -> None:
    """Creates or renews the Node."""
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    labels = {
        "kubernetes.io/hostname": NODE_NAME,
        "kubernetes.io/os": platform.system().lower(),
        "kubernetes.io/arch": architecture,
    }
    options = WriteOptions(manager="kubelet")
    try:
        node = operations.create(NODES, "", {"metadata": {"name": NODE_NAME, "labels": labels}}, options).object
    except StatusError:
        node = operations.get(NODES, "", NODE_NAME)
    ready = condition("Ready", "True", "KubeletReady", "the local kubelet is running")
    ready["lastHeartbeatTime"] = ready["lastTransitionTime"]
    status = {
        "capacity": dict(resources),
        "allocatable": dict(resources),
        "conditions": [ready],
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": NODE_NAME}],
        "nodeInfo": {
            "kubeletVersion": f"v1.32.0+fairlead-{__version__}",
            "operatingSystem": platform.system().lower(),
            "architecture": architecture,
            "kernelVersion": platform.release(),
            "containerRuntimeVersion": f"process://{__version__}",
        },
    }
    operations.set_status(NODES, node, status, options)


def _memory_bytes() -> int:
    """Memory of the machine, or of the control group of this process if smaller."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    files = map(Path, ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"))
    texts = [file.read_text().strip() for file in files if file.is_file()]
    return min([physical, *(int(text) for text in texts if text.isdigit())])
