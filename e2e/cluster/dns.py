"""The cluster's DNS server: follows Services, and answers over UDP and TCP with their cluster IPs.

It follows Kubernetes' DNS specification as far as the scenarios need: A records of Services with a cluster IP, and
CNAME records of ExternalNames, with the address of a target that is such a Service. The hosts of headless Services, SRV
and PTR records are left out, and a name outside the cluster does not exist.

Run as `python -m cluster.dns ADDRESS KUBECONFIG`. While the API server cannot be reached it goes on answering from
what it knows, and says so in its log; before its first list it answers SERVFAIL, so that clients ask again.
"""

import socketserver
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dns.exception
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdatatype
import dns.rrset

from cluster.api import Api, ApiError
from cluster.layout import CLUSTER_DOMAIN

PORT = 53
TTL_SECONDS = 5
_RETRY_SECONDS = 0.5
_WATCH_SECONDS = 120
"""How long one watch is asked to last; the server ends it in good order after that."""


def log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


Key = tuple[str, str]
"""Namespace and name."""
Record = tuple[str, str, str]
"""Owner without the last dot, kind ("A" or "CNAME"), and value."""


class Services:
    """The Services of a cluster, followed by list and watch in a thread of its own."""

    _PATH = "/api/v1/services"

    def __init__(self, api: Api) -> None:
        self.api = api
        self.specs: dict[Key, dict[str, Any]] = {}
        self.listed = threading.Event()
        threading.Thread(target=self._follow, name="services", daemon=True).start()

    def lookup(self, name: str) -> list[Record] | None:
        """The records of a name, in any case of letters, without the last dot; None where it does not exist.

        Names that only have names below them exist too: the zone itself, svc, a namespace with Services.
        """
        name = name.lower()
        if name in (CLUSTER_DOMAIN, f"svc.{CLUSTER_DOMAIN}"):
            return []
        if not name.endswith(f".svc.{CLUSTER_DOMAIN}"):
            return None
        match name.removesuffix(f".svc.{CLUSTER_DOMAIN}").split("."):
            case [namespace] if any(key[0] == namespace for key in list(self.specs)):  # another thread may add to it
                return []
            case [service, namespace] if spec := self.specs.get((namespace, service)):
                if spec.get("type") == "ExternalName":
                    target = spec["externalName"].lower().rstrip(".")
                    of_target = self.lookup(target) if target != name else None
                    return [(name, "CNAME", f"{target}."), *(of_target or [])]
                address = spec.get("clusterIP", "None")
                return [] if address == "None" else [(name, "A", address)]
        return None

    def _follow(self) -> None:
        while True:
            try:
                version = self._list()
                self._watch(version)
            except ApiError as error:
                log(f"services: {error}; answering from what was seen")
                time.sleep(_RETRY_SECONDS)

    def _list(self) -> str:
        listing = self.api.get(self._PATH)
        self.specs = {_key(item): item["spec"] for item in listing["items"]}
        self.listed.set()
        return str(listing["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> None:
        path = f"{self._PATH}?watch=1&timeoutSeconds={_WATCH_SECONDS}&resourceVersion={version}"
        for event in self.api.watch(path, silence_seconds=_WATCH_SECONDS + 10):
            item = event["object"]
            match event["type"]:
                case "ADDED" | "MODIFIED":
                    self.specs[_key(item)] = item["spec"]
                case "DELETED":
                    self.specs.pop(_key(item), None)
                case "ERROR":
                    raise ApiError(int(item.get("code", 0)), str(item.get("message")))


def _key(item: dict[str, Any]) -> Key:
    return item["metadata"]["namespace"], item["metadata"]["name"]


class Resolver:
    """Turns the bytes of a query into those of its answer."""

    def __init__(self, api: Api) -> None:
        self.services = Services(api)

    def resolve(self, message: bytes) -> bytes | None:
        """The answer to a query; None for bytes that are none."""
        try:
            query = dns.message.from_wire(message)
        except dns.exception.DNSException:
            log(f"not a query: {message[:64].hex()}")
            return None
        if query.flags & dns.flags.QR:
            return None  # somebody's answer: to answer it could go on for ever
        reply = dns.message.make_response(query, recursion_available=True)
        reply.flags |= dns.flags.AA
        reply.set_rcode(self._fill(reply))
        return reply.to_wire()

    def _fill(self, reply: dns.message.Message) -> dns.rcode.Rcode:
        """Adds the records that answer the reply's question, and returns its response code."""
        if reply.opcode() != dns.opcode.QUERY or len(reply.question) != 1:
            return dns.rcode.NOTIMP
        (question,) = reply.question
        if not self.services.listed.is_set():
            log(f"{question.name}: the API server has not been read yet")
            return dns.rcode.SERVFAIL
        records = self.services.lookup(question.name.to_text(omit_final_dot=True))
        if records is None:
            return dns.rcode.NXDOMAIN
        for owner, kind, value in records:
            if kind == "CNAME" or question.rdtype == dns.rdatatype.A:
                reply.answer.append(dns.rrset.from_text(f"{owner}.", TTL_SECONDS, "IN", kind, value))
        return dns.rcode.NOERROR


def servers(address: str, resolver: Resolver) -> Iterator[socketserver.BaseServer]:
    """The UDP and the TCP server, bound and ready to serve."""

    class Datagram(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            message, socket = self.request
            if reply := resolver.resolve(message):
                socket.sendto(reply, self.client_address)

    class Stream(socketserver.StreamRequestHandler):
        timeout = 10

        def handle(self) -> None:
            while len(prefix := self.rfile.read(2)) == 2:
                reply = resolver.resolve(self.rfile.read(struct.unpack(">H", prefix)[0]))
                if reply is None:
                    return
                self.wfile.write(struct.pack(">H", len(reply)) + reply)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    yield socketserver.ThreadingUDPServer((address, PORT), Datagram)
    yield Server((address, PORT), Stream)


def main() -> None:
    address, kubeconfig = sys.argv[1:]
    resolver = Resolver(Api(Path(kubeconfig)))
    running = [threading.Thread(target=server.serve_forever) for server in servers(address, resolver)]
    for thread in running:
        thread.start()
    log(f"listening on {address}:{PORT}")
    for thread in running:
        thread.join()


if __name__ == "__main__":
    main()
