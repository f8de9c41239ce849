"""What the test node reads off its machine: apt's sources, routes, cgroup mounts, and the verdict of the preflight."""

import json
from pathlib import Path

import pytest
from cluster import cgroups, network
from cluster.commands import ClusterError
from cluster.preflight import Check, Report, Verdict

ROUTES = [{"dst": "default", "gateway": "192.0.2.1"}, {"dst": "192.0.2.0/24"}, {"dst": "fe80::/64"}]
MOUNTS = """\
proc /proc proc rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
"""


@pytest.mark.parametrize("taken", ["10.245.0.0/24", "10.0.0.0/8", "10.97.3.4", "10.245.255.2"])
def test_a_route_into_the_nodes_networks_is_found(taken: str) -> None:
    assert network.overlapping_routes(json.dumps([*ROUTES, {"dst": taken}])) != []


@pytest.mark.parametrize("free", ["10.244.0.0/24", "10.96.0.0/16", "10.98.0.0/16"])
def test_other_routes_do_not_matter(free: str) -> None:
    assert network.overlapping_routes(json.dumps([*ROUTES, {"dst": free}])) == []


def test_controllers_are_found_wherever_they_are_mounted() -> None:
    present = cgroups.hierarchies(MOUNTS)
    assert [hierarchy.version for hierarchy in present] == [1, 1, 2]
    assert cgroups.missing_controllers(present) == ["blkio", "cpuset", "devices", "freezer", "pids"]


@pytest.mark.parametrize(
    ("unmet", "verdict", "status"),
    [
        ([], Verdict.NODE, 0),
        ([Check("cgroups", False, "v2 only", for_node_only=True)], Verdict.CONTROL_PLANE, 3),
        ([Check("root", False, "no")], Verdict.NOTHING, 4),
        ([Check("root", False, "no"), Check("cgroups", False, "v2", for_node_only=True)], Verdict.NOTHING, 4),
    ],
)
def test_the_verdict_follows_from_what_is_missing(unmet: list[Check], verdict: Verdict, status: int) -> None:
    report = Report((Check("memory", True, "enough"), *unmet))
    assert (report.verdict, report.verdict.exit_status) == (verdict, status)
    read = json.loads(report.json())
    assert read["verdict"] == verdict.value
    for check in unmet:
        assert f"{check.name}: {check.found}" in report.sentence
        assert f"missing  {check.name}: {check.found}" in report.text()


@pytest.mark.parametrize("path", ["/run/x", "/var/lib/x/y", "/var/log"])
def test_what_the_node_would_not_see_is_refused(path: str) -> None:
    with pytest.raises(ClusterError, match=path):
        network.refuse_hidden(Path("/var/tmp/state"), Path(path))


def test_a_state_folder_too_long_for_sockets_is_refused() -> None:
    network.refuse_hidden(Path("/var/tmp/state"), Path("/home/somebody/" + "x" * 100))
    with pytest.raises(ClusterError, match="longer than"):
        network.refuse_hidden(Path("/var/tmp/" + "x" * 60))
