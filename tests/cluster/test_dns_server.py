"""The DNS server between a stand-in API and real sockets: it follows changes, and outlives a silent API."""

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
from cluster.dns import Follower, Resolver


def service(name: str, address: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "default", "name": name}, "spec": {"type": "ClusterIP", "clusterIP": address}}


class StandIn(Api):
    """Lists what `items` holds and then hands out watch events; `broken` makes every call fail."""

    def __init__(self) -> None:
        self.items: dict[str, list[dict[str, Any]]] = {"services": [], "endpointslices": []}
        self.events: dict[str, Queue[dict[str, Any] | None]] = {"services": Queue(), "endpointslices": Queue()}
        self.broken = False
        self.lists = 0

    def get(self, path: str) -> Any:
        if self.broken:
            raise ApiError(0, f"{path}: refused")
        self.lists += 1
        return {"metadata": {"resourceVersion": "7"}, "items": self.items[path.rsplit("/", 1)[1]]}

    def watch(self, path: str, silence_seconds: float) -> Iterator[dict[str, Any]]:
        assert "resourceVersion=7" in path
        events = self.events[path.rsplit("/", 1)[1].partition("?")[0]]
        while (event := events.get()) is not None:
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


def test_a_follower_has_what_is_listed_and_then_what_changes(api: StandIn) -> None:
    api.items["services"] = [service("web", "10.97.0.1"), service("old", "10.97.0.2")]
    objects: dict[tuple[str, str], dict[str, Any]] = {}
    follower = Follower(api, "/api/v1/services", objects)
    assert follower.listed.wait(30)
    assert objects.keys() == {("default", "web"), ("default", "old")}
    api.events["services"].put({"type": "DELETED", "object": service("old", "10.97.0.2")})
    api.events["services"].put({"type": "ADDED", "object": service("new", "10.97.0.3")})
    eventually(lambda: objects.keys() == {("default", "web"), ("default", "new")})


def test_a_broken_watch_lists_again_and_keeps_what_it_knows_meanwhile(api: StandIn) -> None:
    api.items["services"] = [service("web", "10.97.0.1")]
    objects: dict[tuple[str, str], dict[str, Any]] = {}
    assert Follower(api, "/api/v1/services", objects).listed.wait(30)
    api.broken = True
    api.events["services"].put(None)
    time.sleep(0.1)
    assert ("default", "web") in objects
    api.items["services"] = [service("other", "10.97.0.9")]
    api.broken = False
    eventually(lambda: objects.keys() == {("default", "other")})


def test_a_watch_that_the_server_calls_too_old_lists_again(api: StandIn) -> None:
    assert Follower(api, "/api/v1/services", {}).listed.wait(30)
    api.events["services"].put({"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}})
    eventually(lambda: api.lists == 2)


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


def asked(resolver: Resolver, over_udp: bool = True, **options: int) -> dns.message.Message:
    """The answer to a query for the addresses of `many.default`."""
    query = dns.message.make_query("Many.default.svc.cluster.local", "A", **options)  # type: ignore[arg-type]
    reply = resolver.resolve(query.to_wire(), over_udp)
    assert reply is not None
    message = dns.message.from_wire(reply)
    assert query.is_response(message)
    return message


def test_what_does_not_fit_a_datagram_is_cut_and_whole_over_tcp_or_in_a_larger_one(api: StandIn) -> None:
    labels = {"kubernetes.io/service-name": "many"}
    endpoints = [{"addresses": [f"10.245.0.{number}"]} for number in range(60)]
    piece = {"metadata": {"namespace": "default", "name": "many-1", "labels": labels}}
    api.items["services"] = [service("many", "None")]
    api.items["endpointslices"] = [piece | {"addressType": "IPv4", "endpoints": endpoints}]
    resolver = Resolver(api)
    eventually(lambda: all(follower.listed.is_set() for follower in resolver.followers))
    cut, whole = asked(resolver), asked(resolver, over_udp=False)
    assert cut.flags & dns.flags.TC and not whole.flags & dns.flags.TC
    assert len(whole.answer[0]) == 60
    larger = asked(resolver, use_edns=0, payload=4096)
    assert (larger.flags & dns.flags.TC, larger.payload, len(larger.answer[0])) == (0, server.UDP_LIMIT_BYTES, 60)


@pytest.mark.parametrize("message", [b"", b"\0" * 11, b"\xab\xcd\1\0\0\1" + b"\0" * 6], ids=["nothing", "short", "cut"])
def test_what_is_no_query_gets_no_answer(api: StandIn, message: bytes) -> None:
    assert Resolver(api).resolve(message, over_udp=True) is None


def test_an_answer_gets_no_answer_and_other_operations_are_not_implemented(api: StandIn) -> None:
    """An answer to an answer could go back and forth for ever."""
    query = dns.message.make_query("web.default.svc.cluster.local", "A")
    answer = dns.message.make_response(query)
    assert Resolver(api).resolve(answer.to_wire(), over_udp=True) is None
    query.set_opcode(dns.opcode.STATUS)
    refused = Resolver(api).resolve(query.to_wire(), over_udp=True)
    assert refused is not None and dns.message.from_wire(refused).rcode() == dns.rcode.NOTIMP


def ask(port: int, name: str, over_tcp: bool = False) -> dns.message.Message:
    query = dns.message.make_query(f"{name}.default.svc.cluster.local", "A")
    asking = dns.query.tcp if over_tcp else dns.query.udp
    return asking(query, "127.0.0.1", timeout=10, port=port)


@pytest.mark.parametrize("over_tcp", [False, True])
def test_it_answers_by_udp_and_tcp(api: StandIn, port: int, over_tcp: bool) -> None:
    api.events["services"].put({"type": "ADDED", "object": service("web", "10.97.0.1")})
    eventually(lambda: bool(ask(port, "web", over_tcp).answer))
    assert str(ask(port, "web", over_tcp).answer[0]) == "web.default.svc.cluster.local. 5 IN A 10.97.0.1"
    assert ask(port, "nosuch", over_tcp).rcode() == dns.rcode.NXDOMAIN


def test_before_the_first_list_it_says_that_it_does_not_know(api: StandIn) -> None:
    """NXDOMAIN would be believed, and remembered; a failure is asked again."""
    api.broken = True
    query = dns.message.make_query("web.default.svc.cluster.local", "A")
    resolver = Resolver(api)
    reply = resolver.resolve(query.to_wire(), over_udp=True)
    assert reply is not None
    assert dns.message.from_wire(reply).rcode() == dns.rcode.SERVFAIL
    api.broken = False
    eventually(lambda: all(follower.listed.is_set() for follower in resolver.followers))
    answered = resolver.resolve(query.to_wire(), over_udp=True)
    assert answered is not None
    assert dns.message.from_wire(answered).rcode() == dns.rcode.NXDOMAIN
