"""Two plugins that a genuine kubelet talks to over gRPC: a device plugin, and a driver of dynamic resource allocation.

They stand in for NVIDIA's: their devices exist by name alone, and a container that gets some finds the names in its
environment. Messages are written and read by their numbers, from the kubelet's published definitions:
`deviceplugin/v1beta1`, `pluginregistration/v1` and `dra/v1` of k8s.io/kubelet.
"""

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

VARIABLE = "E2E_DEVICES"
"""Environment variable of a container: the names of its devices, with commas between."""
REGISTRATION_SECONDS = 60.0
KUBELET = Path("/var/lib/kubelet")
"""Its folder, as itself sees it."""
_CDI_KIND = "fairlead.dev/device"

Fields = dict[int, list[bytes]]
Handler = Callable[[bytes], bytes]


def encoded(*fields: tuple[int, str | bytes | bool]) -> bytes:
    """A message of protobuf: (number, value) of each field; a message within is bytes."""
    out = b""
    for number, value in fields:
        if isinstance(value, bool):
            out += _varint(number << 3) + _varint(int(value))
        else:
            data = value.encode() if isinstance(value, str) else value
            out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return out


def decoded(message: bytes) -> Fields:
    """The texts and messages among a message's fields, by number. Numbers are left out."""
    found: Fields = {}
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        size, at = _read_varint(message, at)
        if key & 7 == 2:
            found.setdefault(key >> 3, []).append(message[at : at + size])
            at += size
    return found


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    number, shift = 0, 0
    while message[at] & 128:
        number, shift, at = number | (message[at] & 127) << shift, shift + 7, at + 1
    return number | message[at] << shift, at + 1


@contextmanager
def serving(socket: Path, services: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """A gRPC server on a Unix socket: method handlers by service and name."""
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(4))
    handlers = (grpc.method_handlers_generic_handler(name, methods) for name, methods in services.items())
    server.add_generic_rpc_handlers(tuple(handlers))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield
    finally:
        socket.unlink(missing_ok=True)
        server.stop(None).wait()


def _unary(handler: Handler) -> Any:
    return grpc.unary_unary_rpc_method_handler(lambda request, context: handler(request))


@contextmanager
def device_plugin(node: Path, resource: str, devices: Sequence[str]) -> Iterator[None]:
    """Offers healthy devices as an extended resource. `node`: the folder that the node sees as /var/lib."""
    folder, endpoint, ends = node / "kubelet" / "device-plugins", "fairlead-e2e.sock", threading.Event()

    def list_and_watch(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield b"".join(encoded((1, encoded((1, name), (2, "Healthy")))) for name in devices)
        ends.wait()

    def allocate(request: bytes) -> bytes:
        """Each container's devices, as an entry of its environment."""
        containers = ([name.decode() for name in decoded(each).get(1, [])] for each in decoded(request).get(1, []))
        entries = (encoded((1, VARIABLE), (2, ",".join(names))) for names in containers)
        return b"".join(encoded((1, encoded((1, entry)))) for entry in entries)

    methods = {
        "GetDevicePluginOptions": _unary(lambda request: b""),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(list_and_watch),
        "Allocate": _unary(allocate),
    }
    with serving(folder / endpoint, {"v1beta1.DevicePlugin": methods}):
        with grpc.insecure_channel(f"unix:{folder / 'kubelet.sock'}") as kubelet:
            register = kubelet.unary_unary("/v1beta1.Registration/Register")
            register(encoded((1, "v1beta1"), (2, endpoint), (3, resource)), timeout=REGISTRATION_SECONDS)
        try:
            yield
        finally:
            ends.set()


@contextmanager
def device_driver(
    node: Path, run: Path, name: str, devices: Sequence[str], find_claim: Callable[[str, str], dict[str, Any]]
) -> Iterator[None]:
    """A driver that prepares claims on its node; its ResourceSlice is the caller's. `node`, `run`: the folders that the
    node sees as /var/lib and /run. `find_claim`: a ResourceClaim by namespace and name."""
    folder, registered = node / "kubelet" / "plugins" / name, threading.Event()
    refusal: list[str] = []
    cdi = run / "cdi" / f"{name}.json"
    cdi.parent.mkdir(parents=True, exist_ok=True)
    edits = [{"name": each, "containerEdits": {"env": [f"{VARIABLE}={each}"]}} for each in devices]
    cdi.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": _CDI_KIND, "devices": edits}))

    def registration(request: bytes) -> bytes:
        endpoint = str(KUBELET / "plugins" / name / "dra.sock")
        return encoded((1, "DRAPlugin"), (2, name), (3, endpoint), (4, "v1.DRAPlugin"))

    def notified(request: bytes) -> bytes:
        refusal.extend(each.decode() for each in decoded(request).get(2, []))
        registered.set()
        return b""

    def prepare(request: bytes) -> bytes:
        return b"".join(encoded((1, prepared(decoded(claim)))) for claim in decoded(request).get(1, []))

    def prepared(claim: Fields) -> bytes:
        """An entry of a map: the claim's uid → its devices."""
        namespace, uid, called = (claim[number][0].decode() for number in (1, 2, 3))
        allocated = find_claim(namespace, called)["status"]["allocation"]["devices"]["results"]
        found = [
            encoded((1, each["request"]), (2, each["pool"]), (3, each["device"]), (4, f"{_CDI_KIND}={each['device']}"))
            for each in allocated
            if each["driver"] == name
        ]
        return encoded((1, uid), (2, b"".join(encoded((1, each)) for each in found)))

    def unprepare(request: bytes) -> bytes:
        uids = (decoded(claim)[2][0] for claim in decoded(request).get(1, []))
        return b"".join(encoded((1, encoded((1, uid), (2, b"")))) for uid in uids)

    driver = {"NodePrepareResources": _unary(prepare), "NodeUnprepareResources": _unary(unprepare)}
    registry = {"GetInfo": _unary(registration), "NotifyRegistrationStatus": _unary(notified)}
    with (
        serving(folder / "dra.sock", {"k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin": driver}),
        serving(node / "kubelet" / "plugins_registry" / f"{name}.sock", {"pluginregistration.Registration": registry}),
    ):
        try:
            assert registered.wait(REGISTRATION_SECONDS), f"the kubelet did not register {name}"
            assert not refusal, refusal
            yield
        finally:
            cdi.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
