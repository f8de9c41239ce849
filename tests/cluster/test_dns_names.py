"""What the test node's DNS says of Services: Kubernetes' DNS specification, case by case."""

from typing import Any

import pytest
from cluster.dns_names import Directory, Outcome, Record


def service(namespace: str, name: str, **spec: Any) -> tuple[tuple[str, str], dict[str, Any]]:
    return (namespace, name), {"metadata": {"namespace": namespace, "name": name}, "spec": spec}


def slices(service: str) -> dict[tuple[str, str], dict[str, Any]]:
    """What a Service with four pods has: two slices of IPv4 addresses, and those of IPv6 that nobody asks for."""
    late = {"addresses": ["10.245.0.4"], "hostname": "late", "conditions": {"ready": False}}
    made = {
        "a": ("IPv4", [{"addresses": ["10.245.0.2"], "hostname": "one", "conditions": {"ready": True}}, late]),
        "b": ("IPv4", [{"addresses": ["10.245.0.3"], "conditions": {}}]),
        "c": ("IPv6", [{"addresses": ["fd00::3"], "conditions": {"ready": True}}]),
        "d": ("IPv4", None),
    }
    labels = {"kubernetes.io/service-name": service}
    return {
        ("default", f"{service}-{suffix}"): {"metadata": {"labels": labels}, "addressType": kind, "endpoints": found}
        for suffix, (kind, found) in made.items()
    }


@pytest.fixture
def directory() -> Directory:
    services = [
        service("default", "web", type="ClusterIP", clusterIP="10.97.0.20"),
        service("default", "pods", type="ClusterIP", clusterIP="None"),
        service("default", "early", type="ClusterIP", clusterIP="None", publishNotReadyAddresses=True),
        service("default", "alias", type="ExternalName", externalName="Web.default.svc.cluster.local."),
        service("default", "twice", type="ExternalName", externalName="alias.default.svc.cluster.local"),
        service("default", "dangling", type="ExternalName", externalName="gone.default.svc.cluster.local"),
        service("default", "outside", type="ExternalName", externalName="example.org"),
        service("default", "circle", type="ExternalName", externalName="circle.default.svc.cluster.local"),
    ]
    return Directory(dict(services), slices("pods") | slices("early"))


def addresses(directory: Directory, name: str) -> list[str]:
    return [record.value for record in directory.lookup(name, "A").records if record.kind == "A"]


def test_a_service_has_its_cluster_ip_in_any_case_of_letters(directory: Directory) -> None:
    assert addresses(directory, "WEB.default.SVC.cluster.local") == ["10.97.0.20"]


def test_a_headless_service_has_the_addresses_of_its_ready_pods(directory: Directory) -> None:
    assert addresses(directory, "pods.default.svc.cluster.local") == ["10.245.0.2", "10.245.0.3"]


def test_a_service_may_publish_pods_that_are_not_ready(directory: Directory) -> None:
    assert "10.245.0.4" in addresses(directory, "early.default.svc.cluster.local")
    assert addresses(directory, "late.early.default.svc.cluster.local") == ["10.245.0.4"]


@pytest.mark.parametrize(
    ("host", "address"), [("one", ["10.245.0.2"]), ("10-245-0-3", ["10.245.0.3"]), ("10-245-0-2", []), ("late", [])]
)
def test_hosts_of_a_headless_service_have_names(directory: Directory, host: str, address: list[str]) -> None:
    assert addresses(directory, f"{host}.pods.default.svc.cluster.local") == address


def test_a_service_with_an_address_has_no_hosts(directory: Directory) -> None:
    assert directory.lookup("one.web.default.svc.cluster.local", "A").outcome is Outcome.NAME_ERROR


def test_an_external_name_is_an_alias_that_comes_with_its_target(directory: Directory) -> None:
    found = directory.lookup("alias.default.svc.cluster.local", "A")
    assert found.records == (
        Record("alias.default.svc.cluster.local", "CNAME", "web.default.svc.cluster.local"),
        Record("web.default.svc.cluster.local", "A", "10.97.0.20"),
    )


def test_aliases_are_followed_in_turn(directory: Directory) -> None:
    found = directory.lookup("twice.default.svc.cluster.local", "A")
    assert [record.kind for record in found.records] == ["CNAME", "CNAME", "A"]


def test_asking_for_the_alias_itself_gives_the_alias_alone(directory: Directory) -> None:
    found = directory.lookup("twice.default.svc.cluster.local", "CNAME")
    assert [record.value for record in found.records] == ["alias.default.svc.cluster.local"]


@pytest.mark.parametrize(
    ("name", "target"), [("outside", "example.org"), ("dangling", "gone.default.svc.cluster.local")]
)
def test_an_alias_exists_though_its_target_is_not_known(directory: Directory, name: str, target: str) -> None:
    found = directory.lookup(f"{name}.default.svc.cluster.local", "A")
    assert found.outcome is Outcome.NO_ERROR
    assert [record.value for record in found.records] == [target]


def test_a_circle_of_aliases_ends(directory: Directory) -> None:
    found = directory.lookup("circle.default.svc.cluster.local", "A")
    assert found.outcome is Outcome.NO_ERROR
    assert {record.kind for record in found.records} == {"CNAME"}


def test_a_name_without_an_ipv6_address_exists_all_the_same(directory: Directory) -> None:
    """NXDOMAIN here would make resolvers give up the name, its IPv4 address included."""
    found = directory.lookup("web.default.svc.cluster.local", "AAAA")
    assert (found.outcome, found.records) == (Outcome.NO_ERROR, ())


@pytest.mark.parametrize("name", ["cluster.local", "svc.cluster.local", "default.svc.cluster.local"])
def test_names_above_services_exist(directory: Directory, name: str) -> None:
    assert directory.lookup(name, "A").outcome is Outcome.NO_ERROR


@pytest.mark.parametrize(
    "name",
    [
        "nosuch.default.svc.cluster.local",
        "web.other.svc.cluster.local",
        "other.svc.cluster.local",
        "web.default",  # a resolver tries names as they are only after its search domains: these are not ours
        "web.default.cluster.local",
        "web.default.svc.cluster.local.default.svc.cluster.local",
        "example.org",
        "",
    ],
)
def test_other_names_do_not_exist(directory: Directory, name: str) -> None:
    assert directory.lookup(name, "A").outcome is Outcome.NAME_ERROR


def test_the_search_list_of_a_pod_finds_a_service_of_another_namespace_second(directory: Directory) -> None:
    """A pod in `apps` asks for web.default: ndots 5 makes its resolver walk the search list in this order."""
    search = ["apps.svc.cluster.local", "svc.cluster.local", "cluster.local"]
    outcomes = [directory.lookup(f"web.default.{domain}", "A").outcome for domain in search]
    assert outcomes == [Outcome.NAME_ERROR, Outcome.NO_ERROR, Outcome.NAME_ERROR]
