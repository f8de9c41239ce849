"""The node's namespaces (network, mounts, processes) and its one link to the host.

Everything that a node makes (bridge, iptables chains, pods' namespaces, overlay mounts, processes) lives inside and
goes away with the namespaces. The host sees a named network namespace, one veth device and two routes.
"""

import ipaddress
import json
import os
from pathlib import Path

from cluster.commands import ClusterError, run
from cluster.layout import HOST_ADDRESS, LINK_CIDR, NAME, NODE_ADDRESS, POD_CIDR, SERVICE_CIDR, Layout
from cluster.packages import FINDABLE_PATH
from cluster.processes import Process, children, spawn

NETNS = Path("/run/netns") / NAME
_OWN_FOLDERS = {"/run": "run", "/var/lib": "var-lib", "/var/log": "var-log"}
"""What the node sees under these names is its own, so that default paths are safe to use inside."""

_LONGEST_STATE = 60
"""A socket's path may have 107 characters, of which the longest one in the state folder needs 40 below it."""

_KUBELET_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""The kubelet sets these for the whole machine unless they are so already: inside, plain files say that they are."""

_ENTER = """set -eu
state=$1; shift
while [ "$1" != -- ]; do mount --bind "$1" "$2"; shift 2; done; shift
mount --make-rshared /
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
echo ready
exec "$@" >/dev/null
"""


def refuse_strangers() -> None:
    """Raises ClusterError when something of our name, or of our addresses, is there that no record says is ours."""
    device = Path("/sys/class/net") / NAME
    for thing in (NETNS, device):
        if thing.exists():
            raise ClusterError(
                f"{thing} exists, but no record says that this command made it (was its state folder removed?)"
                f". Remove it: ip netns pids {NAME} | xargs -r kill -9; ip netns del {NAME}; ip link del {NAME}"
            )
    if taken := overlapping_routes(run("ip", "-json", "route", "show", "table", "all")):
        raise ClusterError(f"This machine routes {', '.join(taken)}, which the node's own addresses overlap.")


def refuse_hidden(*paths: Path) -> None:
    """Raises ClusterError when the node would not see one of these, or the first is too long for a socket in it."""
    for path in paths:
        for hidden in _OWN_FOLDERS:
            if path.is_relative_to(hidden):
                raise ClusterError(f"{path} lies below {hidden}, of which the node has its own: choose another place.")
    if len(str(paths[0])) > _LONGEST_STATE:
        raise ClusterError(f"{paths[0]} is longer than {_LONGEST_STATE} characters: no socket could be made in it.")


def overlapping_routes(routes: str) -> list[str]:
    """Destinations in `ip -json route` that overlap the node's networks; the default route does not count."""
    ours = [ipaddress.ip_network(cidr) for cidr in (POD_CIDR, SERVICE_CIDR, LINK_CIDR)]
    found = []
    for route in json.loads(routes):
        try:
            network = ipaddress.ip_network(route["dst"], strict=False)
        except ValueError:
            continue  # "default"
        if network.version == 4 and network.prefixlen > 0 and any(network.overlaps(mine) for mine in ours):
            found.append(str(network))
    return found


def create_namespace() -> None:
    """Makes the named network namespace."""
    run("ip", "netns", "add", NAME)


def start_anchor(layout: Layout, pause: Path) -> tuple[Process, Process]:
    """Starts PID 1 of the node's process and mount namespaces, in its network namespace, which must exist.

    Returns it and its parent outside. When the anchor dies, the kernel kills every process of the node.
    """
    binds: list[str | Path] = []
    for inside, name in _OWN_FOLDERS.items():
        (layout.root / name).mkdir(parents=True, exist_ok=True)
        binds += [layout.root / name, inside]
    (layout.root / "run/netns").mkdir(exist_ok=True)
    sysctls = layout.configuration / "sysctl"
    sysctls.mkdir(parents=True, exist_ok=True)
    for key, value in _KUBELET_SYSCTLS.items():
        file = sysctls / key.replace("/", ".")
        file.write_text(value + "\n")
        if Path("/proc/sys", key).exists():
            binds += [file, f"/proc/sys/{key}"]
    reading, writing = os.pipe()
    with layout.log("anchor").open("ab") as log, os.fdopen(reading) as answer:
        command = [
            "nsenter", f"--net={NETNS}", "--", "unshare", "--mount", "--propagation", "private", "--pid", "--fork",
            "--kill-child", "--mount-proc", "--", "sh", "-c", _ENTER, "sh", layout.state, *binds, "--", pause, "-P",
        ]  # fmt: skip
        pid = spawn(command, {"PATH": FINDABLE_PATH}, writing, log.fileno())
        os.close(writing)
        if answer.readline() != "ready\n":
            raise ClusterError(f"The node's namespaces could not be made: {layout.log('anchor').read_text()}")
    outer = Process.of(pid)
    inner = [process for child in children(pid) if (process := Process.of(child))]
    if outer is None or len(inner) != 1:
        raise ClusterError("The first process of the node's namespaces ended at once.")
    return inner[0], outer


def enter(anchor: Process) -> tuple[str, ...]:
    """The command that runs what follows it inside the node."""
    return ("nsenter", f"--target={anchor.pid}", "--mount", "--net", "--pid", "--")


def connect() -> None:
    """Joins the network namespace to the host: a veth pair, and routes to pods and Services through it."""
    prefix = LINK_CIDR.rpartition("/")[2]
    run("ip", "link", "add", NAME, "type", "veth", "peer", "name", "eth0", "netns", NAME)
    run("ip", "address", "add", f"{HOST_ADDRESS}/{prefix}", "dev", NAME)
    run("ip", "link", "set", NAME, "up")
    run("ip", "-n", NAME, "address", "add", f"{NODE_ADDRESS}/{prefix}", "dev", "eth0")
    run("ip", "-n", NAME, "link", "set", "eth0", "up")
    for cidr in (POD_CIDR, SERVICE_CIDR):
        run("ip", "route", "add", cidr, "via", NODE_ADDRESS, "dev", NAME)


def disconnect() -> None:
    """Removes the device (and with it the routes) and the namespace's name; what is not there is not missed."""
    if (Path("/sys/class/net") / NAME).exists():
        run("ip", "link", "delete", NAME)
    if NETNS.exists():
        run("ip", "netns", "delete", NAME)


def netns_folder_is_mounted() -> bool:
    return os.path.ismount(NETNS.parent)


def unmount_netns_folder() -> None:
    """Takes away the mount that `ip netns add` made of /run/netns, unless another namespace has come to use it."""
    if netns_folder_is_mounted() and not any(NETNS.parent.iterdir()):
        run("umount", NETNS.parent)
