"""This machine as a Node object: what it has, and under which name. Reads /proc and /dev; starts nothing."""

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from fairlead import __version__
from fairlead_local.apiserver.operations import Operations, WriteOptions
from fairlead_local.apiserver.resources import NODES
from fairlead_local.apiserver.status import ApiError
from fairlead_local.controllers.conditions import condition

NODE_NAME = "local"
MAX_PODS = 110
CPU_OVERCOMMIT = 4
"""CPUs offered per CPU: requests reserve nothing here, and a laptop should hold a rollout of a small fleet."""
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
    """Creates the Node, or renews the one that is there."""
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    labels = {
        "kubernetes.io/hostname": NODE_NAME,
        "kubernetes.io/os": platform.system().lower(),
        "kubernetes.io/arch": architecture,
    }
    options = WriteOptions(manager="kubelet")
    try:
        node = operations.create(NODES, "", {"metadata": {"name": NODE_NAME, "labels": labels}}, options).object
    except ApiError:
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
    """Of the machine, or of the control group this process lives in when that has less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [physical]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return min(limits)
