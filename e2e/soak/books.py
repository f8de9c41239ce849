"""The fleet's books between bursts of traffic: gauges, blocks, processes and their memory, as anybody can read them."""

import http.client
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

import psutil
from homes.fleet import ENGINE_PORT
from homes.kubectl import Json
from homes.local import LocalFleet
from prometheus_client.parser import text_string_to_metric_families

CONTROL_PORT = 8081
ENGINE_GAUGES = (
    "fairlead_engine_num_requests_running",
    "fairlead_engine_num_requests_waiting",
    "fairlead_engine_queued_prefill_tokens",
    "fairlead_engine_kv_cache_usage_perc",
    "fairlead_engine_step_age_seconds",
)
GATEWAY_GAUGES = (
    "fairlead_gateway_in_flight_requests",
    "fairlead_gateway_queue_requests",
    "fairlead_gateway_queue_bytes",
    "fairlead_gateway_queue_oldest_wait_seconds",
)
GROWTH_MIB = 40.0
"""What a process may have grown between the first and the last quarter of its life: arenas and caches that are bounded
fill up late."""
MIN_LOOKS = 8
"""Looks at a process before its growth means anything."""


@dataclass
class Process:
    """One process of the fleet, over time."""

    pid: int
    program: str
    """The pod it belongs to."""
    resident_mib: list[float] = field(default_factory=list)
    """At each look."""

    @property
    def growth_mib(self) -> float | None:
        """From the first quarter's median to the last one's; None after few looks."""
        looks = self.resident_mib
        if len(looks) < MIN_LOOKS:
            return None
        quarter = len(looks) // 4
        return sorted(looks[-quarter:])[quarter // 2] - sorted(looks[:quarter])[quarter // 2]


def _may_be_ended(process: psutil.Process) -> bool:
    try:
        return any("workers.process" in part for part in process.cmdline())
    except psutil.Error:
        return False


class Books:
    """What is known of one fleet's processes, and what its gauges say."""

    def __init__(self, fleet: LocalFleet, name: str) -> None:
        self._fleet = fleet
        self._name = name
        self.processes: dict[int, Process] = {}
        self.ended_by_us: set[int] = set()
        """Processes that a disturbance ended, or is about to."""

    def engines(self) -> dict[str, Json]:
        """The model's pods, by name."""
        return self._fleet.pods(self._name)

    def gateways(self) -> dict[str, Json]:
        """The gateways' pods, by name."""
        return self._fleet.system_pods("gateway")

    def lasting(self, pod: Json) -> list[psutil.Process]:
        """The processes of a pod that run as long as it does, as those that run strangers' programs do not."""
        return [process for process in self._fleet.processes(pod) if not _may_be_ended(process)]

    def look(self) -> list[str]:
        """Notes every process; those that ended by themselves since the last look, in words."""
        alive: set[int] = set()
        for name, pod in {**self.engines(), **self.gateways(), **self._fleet.system_pods("operator")}.items():
            for process in self.lasting(pod):
                try:
                    resident = process.memory_info().rss / 2**20
                except psutil.NoSuchProcess:
                    continue
                alive.add(process.pid)
                self.processes.setdefault(process.pid, Process(process.pid, name)).resident_mib.append(resident)
        gone = self.processes.keys() - alive - self.ended_by_us
        self.ended_by_us |= gone  # each is told once
        return [f"process {pid} of {self.processes[pid].program} ended by itself" for pid in sorted(gone)]

    def settle(self, patience_seconds: float) -> list[str]:
        """Waits for quiet; what is still not at rest then, in words."""
        deadline = time.monotonic() + patience_seconds
        while unsettled := list(self.unsettled()):
            if time.monotonic() > deadline:
                return [f"after {patience_seconds:.0f} s of silence {each}" for each in unsettled]
            time.sleep(0.25)
        return []

    def unsettled(self) -> Iterator[str]:
        """Each gauge that is not at rest."""
        for name, pod in self.engines().items():
            found = _scrape(pod, ENGINE_PORT)
            if found is None:
                yield f"{name} does not answer"
                continue
            if "fairlead_engine_cache_config_info" not in found:
                yield f"{name} has not started"
                continue
            yield from _above_zero(name, found, ENGINE_GAUGES)
            [(shape, _)] = found["fairlead_engine_cache_config_info"]
            [(_, free)] = found["fairlead_engine_kv_blocks_free"]
            if free != float(shape["num_gpu_blocks"]):
                yield f"{name} has {free:.0f} of {shape['num_gpu_blocks']} blocks free"
        for name, pod in self.gateways().items():
            found = _scrape(pod, CONTROL_PORT)
            if found is None:
                yield f"{name} does not answer"
            else:
                yield from _above_zero(name, found, GATEWAY_GAUGES)

    def grown(self) -> list[str]:
        """Processes whose memory is not flat."""
        return [
            f"process {process.pid} of {process.program} grew by {process.growth_mib:.0f} MiB "
            f"({' '.join(f'{look:.0f}' for look in process.resident_mib)})"
            for process in self.processes.values()
            if (process.growth_mib or 0.0) > GROWTH_MIB
        ]


Samples = dict[str, list[tuple[dict[str, str], float]]]


def _scrape(pod: Json, port: int) -> Samples | None:
    """The pod's metrics; None where nobody answers."""
    try:
        with closing(http.client.HTTPConnection(pod["status"].get("podIP", ""), port, timeout=10)) as connection:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException):
        return None
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


def _above_zero(name: str, found: Samples, gauges: tuple[str, ...]) -> Iterator[str]:
    for gauge in gauges:
        if gauge not in found and gauge in ENGINE_GAUGES:
            yield f"{name} does not tell {gauge}"
        for labels, value in found.get(gauge, ()):
            if value > 0:
                yield f"{name}: {gauge}{labels} is {value}"
