"""Whether this machine can host a node: each requirement is tried, not guessed, and nothing is left behind."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from cluster import cgroups, network, packages, programs
from cluster.commands import ClusterError
from cluster.layout import NAME, Layout
from cluster.processes import Record

_GIB = 1024**3
_PROGRAMS_BYTES, _RUN_BYTES = 1 * _GIB, 4 * _GIB
_MEMORY_BYTES = 2 * _GIB


class Verdict(Enum):
    """What this machine can host."""

    NODE = "node"
    CONTROL_PLANE = "control plane only"
    NOTHING = "nothing"

    @property
    def exit_status(self) -> int:
        return {Verdict.NODE: 0, Verdict.CONTROL_PLANE: 3, Verdict.NOTHING: 4}[self]


@dataclass(frozen=True)
class Check:
    """One requirement: what was found, and whether only a node needs it or any part of a cluster."""

    name: str
    met: bool
    found: str
    for_node_only: bool = False


@dataclass(frozen=True)
class Report:
    """All requirements of this machine."""

    checks: tuple[Check, ...]

    @property
    def verdict(self) -> Verdict:
        unmet = [check for check in self.checks if not check.met]
        if not unmet:
            return Verdict.NODE
        return Verdict.CONTROL_PLANE if all(check.for_node_only for check in unmet) else Verdict.NOTHING

    @property
    def sentence(self) -> str:
        why = "; ".join(f"{check.name}: {check.found}" for check in self.checks if not check.met)
        return {
            Verdict.NODE: "This machine can host a Kubernetes node.",
            Verdict.CONTROL_PLANE: f"This machine cannot host a Kubernetes node, only its control plane ({why}).",
            Verdict.NOTHING: f"This machine can host no part of a Kubernetes cluster ({why}).",
        }[self.verdict]

    def text(self) -> str:
        lines = [f"{'ok     ' if check.met else 'missing'}  {check.name}: {check.found}" for check in self.checks]
        return "\n".join([*lines, self.sentence])

    def json(self) -> str:
        checks = [vars(check) for check in self.checks]
        return json.dumps({"verdict": self.verdict.value, "sentence": self.sentence, "checks": checks}, indent=2)


def examine() -> Report:
    """Tries every requirement. The kernel's are tried only by root, in throw-away namespaces."""
    root = os.geteuid() == 0
    checks = [
        Check("root", root, "yes" if root else "no: namespaces, mounts and apt need it"),
        _tools(),
        _kubernetes(),
        _space("disk for the programs", programs.cache_root(), _PROGRAMS_BYTES),
        _space("disk for the run", Layout.default().state, _RUN_BYTES),
        _memory(),
    ]
    for name, attempt in _KERNEL.items():
        met, found = _tried(attempt) if root else (False, "not tried without root")
        checks.append(Check(name, met, found, for_node_only=True))
    return Report(tuple(checks))


def _tried(attempt: Callable[[], str]) -> tuple[bool, str]:
    try:
        return True, attempt()
    except (ClusterError, OSError) as error:
        return False, " ".join(str(error).split())[:300]


def _tools() -> Check:
    lacking = packages.missing(packages.TOOLS)
    if not lacking:
        return Check("tools", True, ", ".join(packages.TOOLS))
    if shutil.which("apt-get") is None:
        return Check("tools", False, f"lacking {', '.join(lacking)}, and no apt-get on this machine")
    return Check("tools", True, f"to be installed: {', '.join(lacking)}")


def _kubernetes() -> Check:
    def found() -> str:
        version = programs.chosen_version()
        if binaries := programs.cached(version):
            return f"{version} in the cache: {binaries.folder}"
        return f"{version} from {programs.origin(version)}"

    return Check("Kubernetes", *_tried(found))


def _space(name: str, folder: Path, needed_bytes: int) -> Check:
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    found = f"{free / _GIB:.1f} GiB free in {folder}, {needed_bytes / _GIB:.0f} needed"
    return Check(name, free >= needed_bytes, found)


def _memory() -> Check:
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    found = f"{free / _GIB:.1f} GiB available, {_MEMORY_BYTES / _GIB:.0f} needed"
    return Check("memory", free >= _MEMORY_BYTES, found)


def _cgroups() -> str:
    present = cgroups.hierarchies()
    if lacking := cgroups.missing_controllers(present):
        raise ClusterError(f"no cgroup v1 hierarchy with {', '.join(lacking)}; this node is set up for v1 only")
    name = f"{NAME}-preflight"
    try:
        cgroups.create(name)
    finally:
        cgroups.remove(name)
    return f"v1, writable, with {', '.join(cgroups.CONTROLLERS)}"


def _namespaces() -> str:
    script = "ip link add one type veth peer name two && ip link add three type bridge"
    _in_throw_away_namespaces(script)
    return "network, mount and process namespaces, veth, bridge"


def _packet_filter() -> str:
    if not Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists():
        raise ClusterError("bridged packets pass no packet filter; `modprobe br_netfilter` makes them")
    if packages.missing(["iptables"]):
        return "bridged packets are filtered; iptables is to be installed"
    _in_throw_away_namespaces(
        "iptables -t nat -A POSTROUTING -m comment --comment x -m mark --mark 0x4000/0x4000 -j MASQUERADE && "
        "iptables -t nat -A OUTPUT -p tcp -m statistic --mode random --probability 0.5 -j DNAT --to 127.0.0.1:1 && "
        "iptables -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
    )
    return "iptables with NAT and connection tracking; bridged packets are filtered"


def _overlay() -> str:
    folder = Layout.default().state
    while not folder.exists():
        folder = folder.parent
    with tempfile.TemporaryDirectory(dir=folder, prefix=f"{NAME}-preflight-") as name:
        for part in ("lower", "upper", "work", "merged"):
            (Path(name) / part).mkdir()
        layers = f"lowerdir={name}/lower,upperdir={name}/upper,workdir={name}/work"
        _in_throw_away_namespaces(f"mount -t overlay overlay -o {layers} {name}/merged && touch {name}/merged/file")
    return f"overlay mounts in {folder}"


def _addresses() -> str:
    if Record.read(Layout.default().record) is not None:
        return "in use by the node of this state folder"
    network.refuse_strangers()
    return "the node's networks are free"


def _in_throw_away_namespaces(script: str) -> None:
    words = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script]
    completed = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={"PATH": packages.FINDABLE_PATH},
        check=False,
    )
    if completed.returncode != 0:
        raise ClusterError(completed.stderr.strip() or f"status {completed.returncode}")


_KERNEL: dict[str, Callable[[], str]] = {
    "cgroups": _cgroups,
    "namespaces and devices": _namespaces,
    "packet filter": _packet_filter,
    "overlay filesystem": _overlay,
    "addresses": _addresses,
}
