"""The soak: bursts of mixed traffic with a disturbance in some, a silence after each, and a look at the books in it."""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

import aiohttp
from adapter_files import write_adapter
from homes.fleet import ENGINE_PORT
from homes.kubectl import Json
from homes.local import LocalFleet

from soak import neighbours
from soak.asking import Requests
from soak.attackers import Attackers
from soak.books import Books
from soak.clients import Clients, Crowd
from soak.disturbances import Disturbances
from soak.skilled_clients import SkilledClients
from soak.verdicts import Outcome, Verdicts

NAME = "soak"
ADAPTERS = ("pirate", "poet", "pilot")
"""One more than have a place on the device at once."""
SETTLE_SECONDS = 30.0
"""After a burst, how long gauges may take to come to rest: attacks are cut off by the servers' own time limits."""
IDLE_SECONDS = 3.0
"""Silence after that: engines use it to check their own books."""


@dataclass(frozen=True)
class SoakOptions:
    """How long, how hard, and with which luck."""

    seconds: float = 3600.0
    seed: int = 0
    num_clients: int = 20
    num_attackers: int = 2
    burst_seconds: float = 25.0
    replicas: int = 3


@dataclass(frozen=True)
class SoakReport:
    """What a soak came to."""

    seconds: float
    verdicts: Verdicts
    disturbances: dict[str, int]
    memory: tuple[str, ...]
    """A line for each process that was looked at often enough."""

    @property
    def problems(self) -> list[str]:
        """What must not be; empty = all is well."""
        return self.verdicts.problems

    def __str__(self) -> str:
        kinds = sorted({kind for kind, _ in self.verdicts.counts})
        rows = [
            f"  {kind:24}" + "".join(f"{self.verdicts.counts[kind, outcome]:11}" for outcome in Outcome)
            for kind in kinds
        ]
        totals = "".join(f"{self.verdicts.of(outcome):11}" for outcome in Outcome)
        return "\n".join(
            [
                f"soak: {self.seconds / 60:.1f} minutes",
                f"  {'':24}" + "".join(f"{outcome:>11}" for outcome in Outcome),
                *rows,
                f"  {'in all':24}{totals}",
                f"disturbances: {', '.join(f'{n} x {name}' for name, n in self.disturbances.items()) or 'none'}",
                *self.memory,
                f"{len(self.problems)} problems" if self.problems else "no problems",
                *self.problems[:20],
                *self.problems[20:][-20:],  # the last are of what has grown
            ]
        )


class Soak:
    """One soak of one fleet; `say` hears of each burst."""

    def __init__(self, fleet: LocalFleet, options: SoakOptions, say: Callable[[str], None]) -> None:
        self._fleet = fleet
        self._options = options
        self._say = say
        self._draw = Random(options.seed)
        self._verdicts = Verdicts()
        self._books = Books(fleet, NAME)
        self._disturbances = Disturbances(fleet, NAME, options.replicas, self._books, self._verdicts)

    def play(self) -> SoakReport:
        """Deploys, soaks, closes the books. Ctrl-C ends the traffic early."""
        with tempfile.TemporaryDirectory(prefix="fairlead-soak-files-") as folder:
            try:
                return self._play(Path(folder))
            finally:
                self._fleet.delete("llm", *neighbours.NAMES)

    def _play(self, adapters: Path) -> SoakReport:
        for adapter in ADAPTERS:
            write_adapter(adapters / adapter)
        self._fleet.apply(deployment(self._options.replicas, adapters))
        self._fleet.wait_ready(NAME, self._options.replicas)
        self._fleet.wait("all adapters to be loaded", self._adapters_loaded)
        self._fleet.apply(*neighbours.deployments(adapters, self._draw))
        started = time.monotonic()
        self._say(f"seed {self._options.seed}: {self._options.seconds / 60:.0f} minutes of traffic")
        try:
            asyncio.run(self._soak(started))
        except KeyboardInterrupt:
            self._say("stopped early")
        for problem in self._books.grown():
            self._verdicts.wrong(problem)
        return SoakReport(time.monotonic() - started, self._verdicts, self._disturbances.counts, tuple(self._memory()))

    async def _soak(self, started: float) -> None:
        number = 0
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(_session())
            requests = Requests(session, self._fleet.gateway)
            clients = Crowd(
                (Clients(requests, NAME), SkilledClients(requests, NAME, ADAPTERS)),
                self._verdicts,
            )
            await clients.learn()
            while time.monotonic() - started < self._options.seconds:
                number += 1
                num_problems = len(self._verdicts.problems)
                what = await self._burst(clients, disturb=number % 3 == 2)
                await asyncio.to_thread(self._pause)
                self._say(
                    f"{(time.monotonic() - started) / 60:6.1f} min  burst {number}{what}: "
                    + ", ".join(f"{self._verdicts.of(outcome)} {outcome}" for outcome in Outcome)
                )
                for problem in self._verdicts.problems[num_problems:]:
                    self._say(f"           {problem}")

    async def _burst(self, clients: Crowd, *, disturb: bool) -> str:
        """Traffic from everybody; the name of what happened meanwhile."""
        until = time.monotonic() + self._options.burst_seconds
        engine = next(iter((await asyncio.to_thread(self._books.engines)).values()))
        address = f"http://{engine['status']['podIP']}:{ENGINE_PORT}"
        attackers = [
            Attackers(self._fleet.gateway, NAME, self._verdicts, may_go=False),
            Attackers(address, NAME, self._verdicts, may_go=True),
        ]
        work: list[Awaitable[None]] = [
            self._repeat(clients.one, until, pause=0.0) for _ in range(self._options.num_clients)
        ]
        work += [
            self._repeat(attackers[index % len(attackers)].one, until, pause=0.2)
            for index in range(self._options.num_attackers)
        ]
        if not disturb:
            await asyncio.gather(*work)
            return ""
        *_, name = await asyncio.gather(*work, self._disturb_later())
        return f" with {name}"

    async def _disturb_later(self) -> str:
        await asyncio.sleep(self._options.burst_seconds / 4)
        return await asyncio.to_thread(self._disturbances.one, Random(self._draw.random()))

    async def _repeat(self, one: Callable[[Random], Awaitable[None]], until: float, pause: float) -> None:
        draw = Random(self._draw.random())
        while time.monotonic() < until:
            await one(draw)
            await asyncio.sleep(pause)

    def _pause(self) -> None:
        """Silence; then everything must be at rest, and stay so while engines check their own books."""
        problems = self._books.settle(SETTLE_SECONDS)
        time.sleep(IDLE_SECONDS)
        problems += self._books.look()
        problems += [f"while idle {each}" for each in self._books.unsettled()] if not problems else []
        for problem in problems:
            self._verdicts.wrong(problem)

    def _adapters_loaded(self) -> bool:
        found = self._fleet.get("llm", NAME).get("status", {}).get("adapters", ())
        return len(found) == len(ADAPTERS) and all(
            each.get("readyReplicas") == self._options.replicas for each in found
        )

    def _memory(self) -> list[str]:
        return [
            f"  {process.program} ({process.pid}): {process.resident_mib[0]:.0f} MiB at first, "
            f"{process.resident_mib[-1]:.0f} at last, {process.growth_mib:+.0f} from quarter to quarter"
            for process in self._books.processes.values()
            if process.growth_mib is not None
        ]


def deployment(replicas: int, adapters: Path) -> Json:
    """Engines whose caches hold little more than one prompt: blocks of 4 tokens, few slots, fewer places than adapters,
    guessed tokens; in float32 answers do not depend on what else is in the batch."""
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": NAME},
        "spec": {
            "model": {"source": "demo://dinghy"},
            "engine": {
                "dtype": "float32",
                "maxNumSeqs": 4,
                "maxModelLen": 1024,
                "kvCache": {"blockSize": 4, "memory": "6Mi"},
                "speculative": {"method": "ngram", "numTokens": 3},
                "maxLoras": len(ADAPTERS) - 1,
                "maxCpuLoras": len(ADAPTERS) - 1,
            },
            "adapters": [{"name": name, "source": f"file://{adapters / name}"} for name in ADAPTERS],
            "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}},
            "replicas": replicas,
            "routing": {"maxQueueTime": "30s"},
        },
    }


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=120),
        connector=aiohttp.TCPConnector(limit=0, force_close=False),
    )
