"""Devices published by a cluster: ResourceSlices of dynamic resource allocation, and extended resources of nodes with
labels of GPU feature discovery. Finds the devices for a replica, their memory, and the reason if no node has enough.
Pure; `controller.device_look` asks the API."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from fairlead.api.cel import compile_selector
from fairlead.api.conditions import Reason
from fairlead.api.devices import DeviceRequest
from fairlead.api.llmdeployment import LLMDeployment
from fairlead.api.quantities import parse_quantity
from fairlead.manifests.common import GPU
from fairlead.operator_settings import Profile

MEBIBYTE = 1024**2


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """The devices of one replica."""

    devices: DeviceRequest | None
    """By dynamic resource allocation; None = by `resource`."""
    resource: str
    """An extended resource of nodes, such as nvidia.com/gpu."""
    count: int
    node_selector: Mapping[str, str]

    @property
    def name(self) -> str:
        """Of a device, in a sentence."""
        return self.resource if self.devices is None else f"a device of the class {self.devices.device_class_name}"


def device_need(deployment: LLMDeployment, profile: Profile) -> DeviceNeed | None:
    """None = the replica needs no device, or has a claim template of the user."""
    own = deployment.spec.resources.node_selector
    selector = profile.node_selector if own is None else own
    if (devices := profile.devices) is not None:
        return DeviceNeed(devices, "", devices.count, selector)
    asked = {**profile.requests, **profile.limits}
    named = next(((name, count) for name, count in asked.items() if GPU.search(name) and parse_quantity(count)), None)
    return None if named is None else DeviceNeed(None, named[0], int(parse_quantity(named[1])), selector)


@dataclass(frozen=True, slots=True)
class DeviceLack:
    """The reason why no node has the devices of a replica."""

    reason: Reason
    message: str


class _Domains(dict[str, Any]):
    """Domain → name → value; the scheduler reads a missing domain as empty."""

    def __missing__(self, domain: str) -> Any:
        return {}


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """One device of a ResourceSlice."""

    driver: str
    node: str
    """Empty = in reach of several nodes."""
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By domain and name."""
    capacity: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By domain and name, as quantities (Decimal)."""
    share: int | None = None
    """Bytes of memory for a claim; None = not published."""

    def meets(self, selectors: Iterable[str]) -> bool | None:
        """Whether the device fulfils CEL expressions; None = unknown, as an expression uses unsupported syntax."""
        scope = {"device": {"driver": self.driver, "attributes": self.attributes, "capacity": self.capacity}}
        is_known = True
        for each in selectors:
            try:
                holds = compile_selector(each)
            except ValueError:
                is_known = False
                continue
            try:
                if not holds(scope):
                    return False
            except RecursionError:
                is_known = False
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
                return False  # the scheduler takes no device of which an expression fails
        return True if is_known else None


def published_devices(slices: Sequence[Mapping[str, Any]]) -> tuple[PublishedDevice, ...]:
    """Of ResourceSlices; of each pool only the newest generation counts."""
    newest: dict[tuple[str, str], int] = {}
    specs = [each.get("spec") or {} for each in slices]
    for spec in specs:
        newest[_pool(spec)] = max(newest.get(_pool(spec), 0), _generation(spec))
    current = (spec for spec in specs if _generation(spec) == newest[_pool(spec)])
    return tuple(_device(spec, each) for spec in current for each in spec.get("devices") or ())


def _pool(spec: Mapping[str, Any]) -> tuple[str, str]:
    return str(spec.get("driver")), str((spec.get("pool") or {}).get("name"))


def _generation(spec: Mapping[str, Any]) -> int:
    return int((spec.get("pool") or {}).get("generation") or 0)


def _device(spec: Mapping[str, Any], device: Mapping[str, Any]) -> PublishedDevice:
    driver, told = str(spec.get("driver")), device.get("capacity") or {}
    sizes = {name: size for name, each in told.items() if (size := _quantity(each.get("value"))) is not None}
    memory = next((name for name in sizes if name.rpartition("/")[2] == "memory"), None)
    share = None if memory is None else int(sizes[memory])
    if memory is not None and device.get("allowMultipleAllocations"):
        part = _quantity((told[memory].get("requestPolicy") or {}).get("default"))  # of a device that claims share
        share = share if part is None else int(part)
    attributes = {name: next(iter(each.values()), None) for name, each in (device.get("attributes") or {}).items()}
    node = device.get("nodeName") or spec.get("nodeName") or ""
    return PublishedDevice(driver, node, _by_domain(attributes, driver), _by_domain(sizes, driver), share)


def _quantity(text: Any) -> Decimal | None:
    """None = no quantity, or an unsupported notation."""
    try:
        return parse_quantity(str(text))
    except ValueError:
        return None


def _by_domain(values: Mapping[str, Any], driver: str) -> _Domains:
    """A name without a domain is the driver's."""
    found = _Domains()
    for name, value in values.items():
        domain, _, bare = name.rpartition("/")
        found.setdefault(domain or driver, {})[bare] = value
    return found


@dataclass(frozen=True, slots=True)
class GpuNode:
    """The GPUs of a node."""

    labels: Mapping[str, str]
    allocatable: Mapping[str, int]
    """GPUs and slices by the resource's name."""


def gpu_node(node: Mapping[str, Any]) -> GpuNode:
    """Of a Node."""
    counts = {name: _quantity(count) for name, count in ((node.get("status") or {}).get("allocatable") or {}).items()}
    gpus = {name: int(count) for name, count in counts.items() if GPU.search(name) and count is not None}
    return GpuNode(node["metadata"].get("labels") or {}, gpus)


@dataclass(frozen=True, slots=True)
class DeviceSupply:
    """Devices of the cluster. None = unknown."""

    devices: tuple[PublishedDevice, ...] | None = None
    classes: Mapping[str, tuple[str, ...]] | None = None
    """CEL expressions of each DeviceClass, by its name."""
    nodes: tuple[GpuNode, ...] | None = None

    def memory(self, need: DeviceNeed) -> list[int]:
        """Bytes of each device for a replica; empty = unknown."""
        if need.devices is not None:
            return [each.share for each in self._matching(need.devices) if each.share is not None]
        nodes = [node for node in self._holding(need) if need.node_selector.items() <= node.labels.items()]
        told = (node.labels.get(f"{need.resource}.memory", "") for node in nodes)
        return [int(mebibytes) * MEBIBYTE for mebibytes in told if mebibytes.isdecimal()]

    def lack(self, need: DeviceNeed) -> DeviceLack | None:
        """The reason why no node of the present cluster has the devices; None = a node may have them, or unknown."""
        return self._lack_of_nodes(need) if need.devices is None else self._lack_of_devices(need.devices)

    def _of_class(self, name: str) -> tuple[PublishedDevice, ...]:
        selectors = (self.classes or {}).get(name, ())
        return tuple(each for each in self.devices or () if each.meets(selectors) is not False)

    def _matching(self, request: DeviceRequest) -> tuple[PublishedDevice, ...]:
        if self.classes is None or request.device_class_name not in self.classes:
            return ()
        of_class = self._of_class(request.device_class_name)
        return tuple(each for each in of_class if each.meets(request.selectors) is not False)

    def _holding(self, need: DeviceNeed) -> list[GpuNode]:
        return [node for node in self.nodes or () if node.allocatable.get(need.resource, 0) > 0]

    def _lack_of_devices(self, request: DeviceRequest) -> DeviceLack | None:
        name = request.device_class_name
        if self.classes is not None and name not in self.classes:
            there = f"there are {', '.join(sorted(self.classes))}" if self.classes else "there is none"
            remedy = "install the driver that brings it, or correct the name"
            return DeviceLack(
                Reason.DEVICE_CLASS_NOT_FOUND, f"the DeviceClass {name} does not exist ({there}): {remedy}"
            )
        if self.classes is None or self.devices is None:
            return None
        of_class, matching = self._of_class(name), self._matching(request)
        if not of_class:
            return _missing(
                f"no driver publishes devices of the class {name}: install the driver, or check its pods on the nodes "
                "(kubectl get resourceslices)"
            )
        if not matching:
            largest = max((each.share or 0 for each in of_class), default=0)
            size = f", the largest with {largest // MEBIBYTE} MiB" if largest else ""
            return _missing(
                f"no device of the class {name} is as devices.selectors ask, of {len(of_class)}{size}: correct the "
                "selectors, or add nodes with such devices"
            )
        most = max(Counter(each.node for each in matching).values())
        if all(each.node for each in matching) and most < request.count:
            return _missing(f"no node has {request.count} such devices of the class {name}, the most is {most}")
        return None

    def _lack_of_nodes(self, need: DeviceNeed) -> DeviceLack | None:
        if self.nodes is None:
            return None
        holding = self._holding(need)
        if not holding:
            return _missing(
                f"no node has {need.resource}: install the device plugin, or check its pods on the nodes with GPUs"
            )
        most = max(node.allocatable[need.resource] for node in holding)
        if most < need.count:
            return _missing(f"no node has {need.count} {need.resource}, the most is {most}")
        if not any(need.node_selector.items() <= node.labels.items() for node in holding):
            labels = ", ".join(f"{name}={value}" for name, value in need.node_selector.items())
            return _missing(f"no node with {need.resource} has the labels {labels}")
        return None


def _missing(message: str) -> DeviceLack:
    return DeviceLack(Reason.DEVICES_MISSING, message)
