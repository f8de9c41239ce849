"""Devices of a replica by dynamic resource allocation (resource.k8s.io/v1): from a DeviceClass, not a node's count."""

from dataclasses import dataclass
from typing import Annotated

from fairlead.api.names import DNS_SUBDOMAIN_PATTERN
from fairlead.api.schema import Constraints


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """Devices of one class, all on the replica's node."""

    device_class_name: Annotated[str, Constraints(pattern=DNS_SUBDOMAIN_PATTERN, min_length=1, max_length=253)]
    """A DeviceClass of the cluster, such as gpu.nvidia.com, or mig.nvidia.com for slices of GPUs."""
    count: Annotated[int, Constraints(minimum=1, maximum=64)] = 1
    """Devices per replica; as many as engine.tensorParallelSize."""
    selectors: Annotated[
        tuple[Annotated[str, Constraints(min_length=1, max_length=4096)], ...],
        Constraints(max_items=8, list_type="atomic"),
    ] = ()
    """CEL expressions that each device has to meet besides those of its class, such as
    device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0."""
