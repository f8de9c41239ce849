"""Devices that a cluster publishes: what a replica may get of them, their memory, and what is said to be lacking."""

from typing import Any

import pytest

from fairlead.api.devices import DeviceRequest
from fairlead.api.llmdeployment import LLMDeployment
from fairlead.fit.published_devices import DeviceNeed, DeviceSupply, device_need, gpu_node, published_devices
from fairlead.fit.replica_memory import replica_memory
from fairlead.manifests.engine import replica_profile
from fairlead.operator_settings import OperatorSettings
from fairlead_testing.fleet_objects import stored

DRIVER, GIB = "gpu.example", 1024**3
CLASSES = {
    "gpu.example": ("device.driver == 'gpu.example' && device.attributes['gpu.example'].type == 'gpu'",),
    "mig.example": ('device.driver == "gpu.example" && device.attributes["gpu.example"].type == "mig"',),
    "odd.example": ("cel.bind(a, device.driver, a == 'gpu.example')",),
    "nic.example": ("device.attributes['nic.example'].speed > 10",),
}
"""As drivers write their DeviceClasses; the third has what is not read here."""


def device(name: str, memory: str, type: str = "gpu", share: str | None = None) -> dict[str, Any]:
    shared = {} if share is None else {"requestPolicy": {"default": share}}
    capacity = {"memory": {"value": memory} | shared}
    found = {"name": name, "attributes": {"type": {"string": type}}, "capacity": capacity}
    return found if share is None else found | {"allowMultipleAllocations": True}


def slice_of(node: str, *devices: dict[str, Any], generation: int = 1) -> dict[str, Any]:
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    return {"spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": list(devices)}}


SLICES = [
    slice_of("a", device("gpu-0", "80Gi"), device("gpu-1", "80Gi")),
    slice_of("b", device("gpu-0", "24Gi"), device("mig-0", "10Gi", "mig"), generation=2),
    slice_of("b", device("gpu-0", "1Gi")),  # of an older generation
    slice_of(
        "c",
        device("shared-0", "40Gi", "mig", share="8Gi"),
    ),
]
SUPPLY = DeviceSupply(published_devices(SLICES), CLASSES)


def need(name: str = "gpu.example", count: int = 1, *selectors: str) -> DeviceNeed:
    return DeviceNeed(DeviceRequest(device_class_name=name, count=count, selectors=selectors), "", count, {})


@pytest.mark.parametrize(
    ("asked", "sizes"),
    [
        (need(), [80, 80, 24]),
        (need("mig.example"), [10, 8]),
        (need("gpu.example", 1, "device.capacity['gpu.example'].memory.compareTo(quantity('40Gi')) >= 0"), [80, 80]),
        (need("gpu.example", 1, "device.capacity['gpu.example'].memory.isLessThan(quantity('40Gi'))"), [24]),
        (need("odd.example"), [80, 80, 24, 10, 8]),  # all that it may be
        (need("nic.example"), []),
        (need("unknown.example"), []),
    ],
)
def test_the_memory_of_devices_that_a_replica_may_get(asked: DeviceNeed, sizes: list[int]) -> None:
    assert SUPPLY.memory(asked) == [size * GIB for size in sizes]


@pytest.mark.parametrize(
    ("asked", "reason", "words"),
    [
        (need("gpu.exmaple"), "DeviceClassNotFound", "DeviceClass gpu.exmaple does not exist (there are gpu.example, "),
        (need("nic.example"), "DevicesMissing", "no driver publishes devices of the class nic.example: install"),
        (
            need("gpu.example", 1, "device.capacity['gpu.example'].memory.isGreaterThan(quantity('90Gi'))"),
            "DevicesMissing",
            "no device of the class gpu.example is as devices.selectors ask, of 3, the largest with 81920 MiB: correct",
        ),
        (
            need("gpu.example", 4),
            "DevicesMissing",
            "no node has 4 such devices of the class gpu.example, the most is 2",
        ),
    ],
)
def test_what_no_node_has_is_named(asked: DeviceNeed, reason: str, words: str) -> None:
    lack = SUPPLY.lack(asked)
    assert lack is not None and lack.reason == reason and words in lack.message


def test_nothing_is_lacking_of_what_is_there_or_not_known() -> None:
    assert SUPPLY.lack(need("gpu.example", 2)) is None
    assert SUPPLY.lack(need("odd.example")) is None
    assert DeviceSupply().lack(need()) is None
    assert DeviceSupply(devices=()).lack(need()) is None, "the class is not known"
    assert DeviceSupply().lack(DeviceNeed(None, "nvidia.com/gpu", 1, {})) is None


def node(memory: str, gpus: str, **labels: str) -> dict[str, Any]:
    told = {"nvidia.com/gpu.memory": memory, "nvidia.com/gpu.product": "NVIDIA-L4"} | labels
    return {"metadata": {"name": "n", "labels": told}, "status": {"allocatable": {"nvidia.com/gpu": gpus, "cpu": "1"}}}


NODES = DeviceSupply(nodes=tuple(map(gpu_node, (node("23034", "1"), node("81559", "2", pool="big"), node("1", "0")))))


def test_extended_resources_go_by_the_labels_of_their_nodes() -> None:
    gpu = DeviceNeed(None, "nvidia.com/gpu", 1, {})
    assert NODES.memory(gpu) == [23034 * 1024**2, 81559 * 1024**2]
    assert NODES.memory(DeviceNeed(None, "nvidia.com/gpu", 1, {"pool": "big"})) == [81559 * 1024**2]
    assert NODES.lack(gpu) is None
    lacks = [
        (DeviceNeed(None, "amd.com/gpu", 1, {}), "no node has amd.com/gpu: install the device plugin"),
        (DeviceNeed(None, "nvidia.com/gpu", 4, {}), "no node has 4 nvidia.com/gpu, the most is 2"),
        (DeviceNeed(None, "nvidia.com/gpu", 1, {"pool": "x"}), "no node with nvidia.com/gpu has the labels pool=x"),
    ]
    for asked, words in lacks:
        lack = NODES.lack(asked)
        assert lack is not None and words in lack.message


@pytest.mark.parametrize(
    ("resources", "supply", "memory"),
    [
        ({"devices": {"deviceClassName": "gpu.example"}}, SUPPLY, 24 * GIB),
        ({"devices": {"deviceClassName": "gpu.example"}}, None, None),
        ({"gpus": 1}, NODES, 23034 * 1024**2),
        ({"gpus": 1}, DeviceSupply(), None),
        ({"profile": "told"}, NODES, 79 * GIB),
        ({"profile": "slice"}, SUPPLY, 8 * GIB),
    ],
)
def test_a_replicas_memory_is_that_of_the_smallest_unless_its_profile_says(
    resources: dict[str, Any], supply: DeviceSupply | None, memory: int | None
) -> None:
    settings = OperatorSettings.from_mapping(
        {
            "profiles": {
                "told": {"limits": {"nvidia.com/gpu": "1"}, "gpuMemory": "79Gi"},
                "slice": {"devices": {"deviceClassName": "mig.example"}},
            }
        }
    )
    deployment = LLMDeployment.from_body(stored(resources=resources))
    found = replica_memory(deployment, settings, supply)
    assert (found.device, found.per_rank) == ("cuda", memory)
    assert found.is_certain is (memory is None or "told" in resources.values())
    assert device_need(deployment, replica_profile(deployment, settings)) is not None


@pytest.mark.parametrize(
    "hostile",
    [
        "'" + "a" * 60 + "'.matches('(a+)+b')",
        "device.attributes.all(a, " * 12 + "true" + ")" * 12,
        "'%4000000000d' % 1 == ''",
        "(" * 2000 + "true" + ")" * 2000,
        "true" + " && true" * 500,
        "quantity('1e99999999999') == quantity('1')",
        "device.driver ==",
    ],
)  # fmt: skip
def test_no_author_of_a_selector_stops_the_operator(hostile: str) -> None:
    assert len(SUPPLY.memory(need("gpu.example", 1, hostile))) in (0, 3)
