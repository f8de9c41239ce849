"""The test node's DNS server between a stand-in API and real sockets: it follows changes, and outlives a silent API."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from queue import Queue
from typing import Any

import dns.flags
import dns.message
import dns.opcode
import dns.query
import dns.rcode
import pytest
from cluster import dns as server
from cluster.api import Api, ApiError
from cluster.dns import Record, Resolver, Services


def service(name: str, address: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "default", "name": name}, "spec": {"type": "ClusterIP", "clusterIP": address}}


class StandIn(Api):
    """Lists the Services in `items` and then hands out watch events; `broken` makes every call fail."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.events: Queue[dict[str, Any] | None] = Queue()
        self.broken = False
        self.lists = 0

    def get(self, path: str) -> Any:
        if self.broken:
            raise ApiError(0, f"{path}: refused")
        self.lists += 1
        return {"metadata": {"resourceVersion": "7"}, "items": self.items}

    def watch(self, path: str, silence_seconds: float) -> Iterator[dict[str, Any]]:
        assert "resourceVersion=7" in path
        while (event := self.events.get()) is not None:
            yield event
        raise ApiError(0, "the watch broke off")


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setattr(server, "_RETRY_SECONDS", 0.01)
    return StandIn()


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_services_are_those_that_are_listed_and_then_what_changes(api: StandIn) -> None:
    api.items = [service("web", "10.97.0.1"), service("old", "10.97.0.2")]
    services = Services(api)
    assert services.listed.wait(30)
    assert services.specs.keys() == {("default", "web"), ("default", "old")}
    api.events.put({"type": "DELETED", "object": service("old", "10.97.0.2")})
    api.events.put({"type": "ADDED", "object": service("new", "10.97.0.3")})
    eventually(lambda: services.specs.keys() == {("default", "web"), ("default", "new")})


def test_a_broken_watch_lists_again_and_keeps_what_it_knows_meanwhile(api: StandIn) -> None:
    api.items = [service("web", "10.97.0.1")]
    services = Services(api)
    assert services.listed.wait(30)
    api.broken = True
    api.events.put(None)
    time.sleep(0.1)
    assert ("default", "web") in services.specs
    api.items = [service("other", "10.97.0.9")]
    api.broken = False
    eventually(lambda: services.specs.keys() == {("default", "other")})


def test_a_watch_that_the_server_calls_too_old_lists_again(api: StandIn) -> None:
    assert Services(api).listed.wait(30)
    api.events.put({"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}})
    eventually(lambda: api.lists == 2)


WEB = "web.default.svc.cluster.local"


@pytest.mark.parametrize(
    ("name", "records"),
    [
        (WEB, [(WEB, "A", "10.97.0.1")]),
        ("WEB.default.SVC.cluster.local", [(WEB, "A", "10.97.0.1")]),
        ("pods.default.svc.cluster.local", []),
        *((name, []) for name in ("cluster.local", "svc.cluster.local", "default.svc.cluster.local")),
        ("nosuch.default.svc.cluster.local", None),
        ("web.other.svc.cluster.local", None),
        ("other.svc.cluster.local", None),
        ("web.default", None),  # a resolver tries names as they are only after its search domains: these are not ours
        ("web.default.cluster.local", None),
        (f"{WEB}.default.svc.cluster.local", None),
        ("example.org", None),
        ("", None),
    ],
)
def test_a_service_has_its_cluster_ip_and_other_names_do_not_exist(
    api: StandIn, name: str, records: list[Record] | None
) -> None:
    api.items = [service("web", "10.97.0.1"), service("pods", "None")]
    services = Services(api)
    assert services.listed.wait(30)
    assert services.lookup(name) == records


@pytest.mark.parametrize(
    ("target", "addresses"), [("Web.default.svc.cluster.local.", ["10.97.0.1"]), ("example.org", []), ("gone", [])]
)
def test_an_external_name_is_an_alias_that_comes_with_its_target(
    api: StandIn, target: str, addresses: list[str]
) -> None:
    external = service("alias", "")
    external["spec"] = {"type": "ExternalName", "externalName": target}
    api.items = [service("web", "10.97.0.1"), external]
    services = Services(api)
    assert services.listed.wait(30)
    alias, *rest = services.lookup("alias.default.svc.cluster.local") or []
    assert alias == ("alias.default.svc.cluster.local", "CNAME", f"{target.lower().rstrip('.')}.")
    assert rest == [(WEB, "A", address) for address in addresses]


@pytest.fixture
def port(api: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port on loopback of a running server, by UDP and TCP."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number = int(probe.getsockname()[1])
    monkeypatch.setattr(server, "PORT", number)
    running = list(server.servers("127.0.0.1", Resolver(api)))
    threads = [threading.Thread(target=each.serve_forever) for each in running]
    for thread in threads:
        thread.start()
    yield number
    for each in running:
        each.shutdown()
        each.server_close()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("message", [b"", b"\0" * 11, b"\xab\xcd\1\0\0\1" + b"\0" * 6], ids=["nothing", "short", "cut"])
def test_what_is_no_query_gets_no_answer(api: StandIn, message: bytes) -> None:
    assert Resolver(api).resolve(message) is None


def test_an_answer_gets_no_answer_and_other_operations_are_not_implemented(api: StandIn) -> None:
    """An answer to an answer could go back and forth for ever."""
    query = dns.message.make_query("web.default.svc.cluster.local", "A")
    answer = dns.message.make_response(query)
    assert Resolver(api).resolve(answer.to_wire()) is None
    query.set_opcode(dns.opcode.STATUS)
    refused = Resolver(api).resolve(query.to_wire())
    assert refused is not None and dns.message.from_wire(refused).rcode() == dns.rcode.NOTIMP


def ask(port: int, name: str, over_tcp: bool, kind: str = "A") -> dns.message.Message:
    query = dns.message.make_query(f"{name}.default.svc.cluster.local", kind)
    asking = dns.query.tcp if over_tcp else dns.query.udp
    return asking(query, "127.0.0.1", timeout=10, port=port)


@pytest.mark.parametrize("over_tcp", [False, True])
def test_it_answers_by_udp_and_tcp(api: StandIn, port: int, over_tcp: bool) -> None:
    api.events.put({"type": "ADDED", "object": service("web", "10.97.0.1")})
    eventually(lambda: bool(ask(port, "web", over_tcp).answer))
    assert str(ask(port, "web", over_tcp).answer[0]) == "web.default.svc.cluster.local. 5 IN A 10.97.0.1"
    assert ask(port, "nosuch", over_tcp).rcode() == dns.rcode.NXDOMAIN
    # NXDOMAIN here would make resolvers give up the name, its IPv4 address included.
    other = ask(port, "web", over_tcp, "AAAA")
    assert (other.rcode(), other.answer) == (dns.rcode.NOERROR, [])


def test_before_the_first_list_it_says_that_it_does_not_know(api: StandIn) -> None:
    """NXDOMAIN would be believed, and remembered; a failure is asked again."""
    api.broken = True
    query = dns.message.make_query("web.default.svc.cluster.local", "A")
    resolver = Resolver(api)
    reply = resolver.resolve(query.to_wire())
    assert reply is not None
    assert dns.message.from_wire(reply).rcode() == dns.rcode.SERVFAIL
    api.broken = False
    assert resolver.services.listed.wait(30)
    answered = resolver.resolve(query.to_wire())
    assert answered is not None
    assert dns.message.from_wire(answered).rcode() == dns.rcode.NXDOMAIN
