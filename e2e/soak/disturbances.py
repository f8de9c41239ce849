"""What happens to a fleet while it serves: processes die, pods go, the operator and a gateway restart."""

import contextlib
import time
from collections.abc import Callable, Sequence
from random import Random

import psutil
from homes.kubectl import Json
from homes.local import LocalFleet

from soak.books import Books
from soak.verdicts import Verdicts


class Disturbances:
    """One at a time. The eldest engine and gateway are spared, so that some process lives long enough to be seen
    growing."""

    def __init__(self, fleet: LocalFleet, name: str, replicas: int, books: Books, verdicts: Verdicts) -> None:
        self._fleet = fleet
        self._name = name
        self._replicas = replicas
        self._books = books
        self._verdicts = verdicts
        self.counts: dict[str, int] = {}
        self._kinds: tuple[Callable[[Random], None], ...] = (
            self.kill_engine, self.kill_engine_core, self.delete_engine, self.scale_down_and_up, self.kill_gateway,
            self.kill_operator,
        )  # fmt: skip

    def one(self, draw: Random) -> str:
        """Disturbs the fleet in the way that is longest ago, and waits until it is whole again. The disturbance's
        name."""
        kind = self._kinds[sum(self.counts.values()) % len(self._kinds)]
        kind(draw)
        self._fleet.wait_ready(self._name, self._replicas)
        self._fleet.wait("all gateways to be ready", self._gateways_ready)
        name = kind.__name__.replace("_", " ")
        self.counts[name] = self.counts.get(name, 0) + 1
        return name

    def kill_engine(self, draw: Random) -> None:
        """SIGKILL to all of an engine."""
        self._verdicts.kills.append(time.monotonic())
        self._kill(self._fleet.processes(self._victim(self._books.engines(), draw)))

    def kill_engine_core(self, draw: Random) -> None:
        """SIGKILL to the newest process of an engine: its core, without its server."""
        processes = sorted(
            self._books.lasting(self._victim(self._books.engines(), draw)), key=psutil.Process.create_time
        )
        self._books.ended_by_us |= {process.pid for process in processes}  # the server ends with its core
        self._verdicts.kills.append(time.monotonic())
        self._kill(processes[-1:])

    def delete_engine(self, draw: Random) -> None:
        """`kubectl delete pod`: the engine drains and goes."""
        victim = self._victim(self._books.engines(), draw)
        self._books.ended_by_us |= {process.pid for process in self._fleet.processes(victim)}
        self._fleet.delete("pod", victim["metadata"]["name"])
        self._fleet.wait("the pod to be gone", lambda: victim["metadata"]["name"] not in self._books.engines())

    def scale_down_and_up(self, draw: Random) -> None:
        """One replica fewer, drained, and back."""
        before = {name: self._fleet.processes(pod) for name, pod in self._books.engines().items()}
        self._fleet.kubectl("scale", "llm", self._name, f"--replicas={self._replicas - 1}")
        self._fleet.wait("a replica to be gone", lambda: len(self._books.engines()) < self._replicas)
        for name in before.keys() - self._books.engines().keys():
            self._books.ended_by_us |= {process.pid for process in before[name]}
        self._fleet.kubectl("scale", "llm", self._name, f"--replicas={self._replicas}")

    def kill_gateway(self, draw: Random) -> None:
        """SIGKILL to a gateway: what it serves breaks off."""
        self._verdicts.kills.append(time.monotonic())
        self._kill(self._fleet.processes(self._victim(self._books.gateways(), draw)))

    def kill_operator(self, draw: Random) -> None:
        """SIGKILL to the operator."""
        [pod] = self._fleet.system_pods("operator").values()
        self._kill(self._fleet.processes(pod))
        self._fleet.wait("the operator to be restarted", lambda: self._fleet.processes(pod))

    def _victim(self, pods: dict[str, Json], draw: Random) -> Json:
        eldest, *others = sorted(
            pods.values(), key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"])
        )
        return draw.choice(others or [eldest])

    def _kill(self, processes: Sequence[psutil.Process]) -> None:
        for process in processes:
            self._books.ended_by_us.add(process.pid)
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _gateways_ready(self) -> bool:
        statuses = [
            status for pod in self._books.gateways().values() for status in pod["status"].get("containerStatuses", [])
        ]
        return len(statuses) > 1 and all(status.get("ready") for status in statuses)
