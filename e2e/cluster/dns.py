"""The cluster's DNS server: follows Services and EndpointSlices, and answers over UDP and TCP from what it has seen.

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
import dns.rrset

from cluster.api import Api, ApiError
from cluster.dns_names import Directory, Key

PORT = 53
TTL_SECONDS = 5
OLD_UDP_LIMIT_BYTES = 512
"""Of a datagram to an asker that does not say what it takes (RFC 1035)."""
UDP_LIMIT_BYTES = 1232
"""Of any other datagram."""
_RETRY_SECONDS = 0.5
_WATCH_SECONDS = 120
"""How long one watch is asked to last; the server ends it in good order after that."""


def log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


class Follower:
    """Keeps one kind of object in a dict, by list and watch, in a thread of its own."""

    def __init__(self, api: Api, path: str, objects: dict[Key, dict[str, Any]]) -> None:
        self.api, self.path, self.objects = api, path, objects
        self.plural = path.rpartition("/")[2]
        self.listed = threading.Event()
        threading.Thread(target=self._follow, name=self.plural, daemon=True).start()

    def _follow(self) -> None:
        while True:
            try:
                version = self._list()
                self._watch(version)
            except ApiError as error:
                log(f"{self.plural}: {error}; answering from what was seen")
                time.sleep(_RETRY_SECONDS)

    def _list(self) -> str:
        listing = self.api.get(self.path)
        found = {_key(item): item for item in listing["items"]}
        for key in self.objects.keys() - found.keys():
            del self.objects[key]
        self.objects.update(found)
        self.listed.set()
        return str(listing["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> None:
        path = f"{self.path}?watch=1&timeoutSeconds={_WATCH_SECONDS}&resourceVersion={version}"
        for event in self.api.watch(path, silence_seconds=_WATCH_SECONDS + 10):
            item = event["object"]
            match event["type"]:
                case "ADDED" | "MODIFIED":
                    self.objects[_key(item)] = item
                case "DELETED":
                    self.objects.pop(_key(item), None)
                case "ERROR":
                    raise ApiError(int(item.get("code", 0)), str(item.get("message")))


def _key(item: dict[str, Any]) -> Key:
    return item["metadata"]["namespace"], item["metadata"]["name"]


class Resolver:
    """Turns the bytes of a query into those of its answer."""

    def __init__(self, api: Api) -> None:
        self.directory = Directory()
        self.followers = [
            Follower(api, "/api/v1/services", self.directory.services),
            Follower(api, "/apis/discovery.k8s.io/v1/endpointslices", self.directory.slices),
        ]

    def resolve(self, message: bytes, over_udp: bool) -> bytes | None:
        """The answer to a query; None for bytes that are none. What a datagram cannot hold is cut, and says so."""
        try:
            query = dns.message.from_wire(message)
        except dns.exception.DNSException:
            log(f"not a query: {message[:64].hex()}")
            return None
        if query.flags & dns.flags.QR:
            return None  # somebody's answer: to answer it could go on for ever
        reply = dns.message.make_response(query, recursion_available=True, our_payload=UDP_LIMIT_BYTES)
        reply.flags |= dns.flags.AA
        reply.set_rcode(self._fill(reply))
        limit = min(query.payload or OLD_UDP_LIMIT_BYTES, UDP_LIMIT_BYTES) if over_udp else 0
        return reply.to_wire(max_size=limit, prefer_truncation=True)

    def _fill(self, reply: dns.message.Message) -> dns.rcode.Rcode:
        """Adds the records that answer the reply's question, and returns its response code."""
        if reply.opcode() != dns.opcode.QUERY or len(reply.question) != 1:
            return dns.rcode.NOTIMP
        if not all(follower.listed.is_set() for follower in self.followers):
            log(f"{reply.question[0].name}: the API server has not been read yet")
            return dns.rcode.SERVFAIL
        (question,) = reply.question
        found = self.directory.lookup(question.name.to_text(omit_final_dot=True), question.rdtype.name)
        for record in found.records:
            owner, value = f"{record.owner}.", record.value + "." * (record.kind == "CNAME")
            reply.answer.append(dns.rrset.from_text(owner, TTL_SECONDS, "IN", record.kind, value))
        return dns.rcode.Rcode(found.outcome.value)


def servers(address: str, resolver: Resolver) -> Iterator[socketserver.BaseServer]:
    """The UDP and the TCP server, bound and ready to serve."""

    class Datagram(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            message, socket = self.request
            if reply := resolver.resolve(message, over_udp=True):
                socket.sendto(reply, self.client_address)

    class Stream(socketserver.StreamRequestHandler):
        timeout = 10

        def handle(self) -> None:
            while len(prefix := self.rfile.read(2)) == 2:
                reply = resolver.resolve(self.rfile.read(struct.unpack(">H", prefix)[0]), over_udp=False)
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
