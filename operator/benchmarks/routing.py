"""Routing policies against each other: TTFT and cached tokens on a real local fleet of three replicas.

    make bench-routing            or    python operator/benchmarks/routing.py --runs 5

Two workloads, open loop: long prefixes that several requests share, more of them than one replica's cache holds, and
prompts of the same length that share nothing. Policies take turns within each run, in an order that rotates from run to
run, with the same arrivals and questions; a cache salt of its own lets none find what another left in the caches.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fairlead import __version__
from fairlead.client.load_generator import LoadGenerator
from fairlead.client.openai import OpenAIClient
from fairlead.client.report import Report, report
from fairlead.client.workload import (
    ArrivalPhase,
    Conversation,
    WorkloadKind,
    WorkloadShape,
    arrival_times,
    conversations,
)
from fairlead.kube.client import KubeClient
from fairlead.kube.kubeconfig import load
from fairlead.kube.resources import LLMDEPLOYMENTS
from fairlead_local.detaching import OwnedFleet, temporary_fleet

NAME, NAMESPACE = "bench", "default"
POLICIES = ("PredictedTTFT", "LeastLoaded", "RoundRobin", "PrefixHash")
WORKLOADS = {"shared prefixes": WorkloadKind.SHARED_PREFIX, "nothing shared": WorkloadKind.UNSHARED}
SETTLE_SECONDS = 1.0
"""Between two loads: for the gateway to hear of the policy and the engines to become idle."""
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Result:
    """One load under one policy."""

    workload: str
    policy: str
    run: int
    report: Report


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="alternating runs (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=15.0, help="of arrivals per load (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=8.0, help="arrivals per second (default: %(default)s)")
    parser.add_argument(
        "--unshared-rate", type=float, default=3.0, help="the same where nothing is shared (default: %(default)s)"
    )
    parser.add_argument("--replicas", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--prefixes", type=int, default=9, help="shared prefixes (default: %(default)s)")
    parser.add_argument("--prefix-tokens", type=int, default=1400, help="about, of each (default: %(default)s)")
    parser.add_argument("--output-tokens", type=int, default=8, help="of each answer (default: %(default)s)")
    parser.add_argument("--kv-memory", default="16Mi", help="of each replica's KV cache (default: %(default)s)")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=POLICIES)
    parser.add_argument("--seed", type=int, default=0, help="of arrivals and questions (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="write every run's figures as JSON lines")
    return parser.parse_args()


class Bench:
    """The deployment under test and the loads on it."""

    def __init__(self, args: argparse.Namespace, gateway: str, kube: KubeClient, console: Console) -> None:
        self.args = args
        self.gateway = gateway
        self.kube = kube
        self.console = console
        self.shape = WorkloadShape(
            num_prefixes=args.prefixes,
            prefix_tokens=args.prefix_tokens,
            output_tokens=args.output_tokens,
            ignore_eos=True,
        )

    async def play(self) -> list[Result]:
        """Every load, told as it ends."""
        await self.apply(POLICIES[0])
        await self.ready()
        await self.load(WorkloadKind.UNSHARED, POLICIES[0], "warm-up", seed=-1)
        results = []
        for run in range(self.args.runs):
            for workload in self.args.workloads:
                for policy in rotated(self.args.policies, run):
                    await self.apply(policy)
                    await asyncio.sleep(SETTLE_SECONDS)
                    salt = f"{run}/{workload}/{policy}"
                    found = await self.load(WORKLOADS[workload], policy, salt, seed=self.args.seed + run)
                    results.append(Result(workload, policy, run, found))
                    self.console.print(f"run {run + 1}: {workload}: {policy}: {in_words(found)}", markup=False)
        return results

    async def load(self, kind: WorkloadKind, policy: str, salt: str, seed: int) -> Report:
        """One open loop on fresh caches."""
        async with OpenAIClient(f"{self.gateway}/v1") as client:
            generator = LoadGenerator(client, NAME)
            rate = self.args.unshared_rate if kind is WorkloadKind.UNSHARED else self.args.rate
            times = arrival_times([ArrivalPhase(rate, self.args.seconds)], seed)
            await generator.open_loop(salted(conversations(kind, self.shape, seed), salt), times)
        return report(generator.samples, generator.seconds)

    async def apply(self, policy: str) -> None:
        spec = {
            "model": {"source": "demo://dinghy"},
            "engine": {"kvCache": {"memory": self.args.kv_memory}},
            "resources": {"profile": "cpu-small"},
            "replicas": self.args.replicas,
            "routing": {"policy": policy},
        }
        metadata = {"name": NAME, "namespace": NAMESPACE}
        manifest = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "LLMDeployment", "metadata": metadata, "spec": spec}
        await self.kube.apply(LLMDEPLOYMENTS, manifest, "fairlead-bench")

    async def ready(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self.num_ready() != self.args.replicas:
                await asyncio.sleep(0.2)

    async def num_ready(self) -> int:
        found = await self.kube.get(LLMDEPLOYMENTS, NAME, NAMESPACE)
        return int((found.get("status") or {}).get("readyReplicas") or 0)


def salted(talks: Iterator[Conversation], salt: str) -> Iterator[Conversation]:
    """The same conversations in a cache of their own."""
    for talk in talks:
        turns = tuple(replace(turn, parameters={**turn.parameters, "cache_salt": salt}) for turn in talk.turns)
        yield replace(talk, turns=turns)


def rotated(policies: list[str], by: int) -> list[str]:
    shift = by % len(policies)
    return [*islice(policies, shift, None), *islice(policies, shift)]


def in_words(found: Report) -> str:
    ttft = found.ttft
    times = f"TTFT p50 {ttft.p50 * 1000:.0f} ms, p90 {ttft.p90 * 1000:.0f} ms" if ttft else "no first token"
    failed = found.num_failed + found.num_rejected
    error = found.predictions.ttft_median_error_ratio
    predicted = "" if error is None else f", predicted TTFT off by {error:.0%} in the median"
    return f"{times}, {found.cached_ratio or 0.0:.0%} cached, {failed} of {found.num_requests} failed{predicted}"


def table(results: list[Result]) -> Table:
    """Medians over the runs, and in how many of them the first policy was the better one."""
    summary = Table(title="Medians over the runs", title_justify="left")
    for column in ("workload", "policy", "TTFT p50", "TTFT p90", "cached", "failed", f"{POLICIES[0]} faster (p50)"):
        summary.add_column(column, justify="left" if column in ("workload", "policy") else "right")
    for workload in dict.fromkeys(result.workload for result in results):
        ours = of(results, workload, POLICIES[0])
        for policy in dict.fromkeys(result.policy for result in results):
            theirs = of(results, workload, policy)
            wins = sum(one < other for one, other in zip(p50s(ours), p50s(theirs), strict=False))
            summary.add_row(
                workload,
                policy,
                f"{statistics.median(p50s(theirs)) * 1000:.0f} ms",
                f"{statistics.median(each.ttft.p90 for each in theirs if each.ttft) * 1000:.0f} ms",
                f"{statistics.median(each.cached_ratio or 0.0 for each in theirs):.0%}",
                str(sum(each.num_failed + each.num_rejected for each in theirs)),
                "" if policy == POLICIES[0] else f"{wins} of {len(theirs)} runs",
            )
    return summary


def of(results: list[Result], workload: str, policy: str) -> list[Report]:
    return [result.report for result in results if (result.workload, result.policy) == (workload, policy)]


def p50s(reports: list[Report]) -> list[float]:
    return [each.ttft.p50 if each.ttft else float("inf") for each in reports]


def write(results: list[Result], path: Path) -> None:
    rows = [
        {
            "workload": result.workload,
            "policy": result.policy,
            "run": result.run,
            "ttft_p50": result.report.ttft and result.report.ttft.p50,
            "ttft_p90": result.report.ttft and result.report.ttft.p90,
            "cached_ratio": result.report.cached_ratio,
            "num_requests": result.report.num_requests,
            "num_failed": result.report.num_failed + result.report.num_rejected,
        }
        for result in results
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def conditions(args: argparse.Namespace) -> str:
    """Machine, versions, workload and seed."""
    return (
        f"Fairlead {__version__}, {machine()}\n"
        f"{args.replicas} replicas of the dinghy, {args.kv_memory} of KV cache each; {args.seconds:g} s per load, "
        f"prompts of about {args.prefix_tokens} tokens, {args.output_tokens} out; {args.prefixes} prefixes shared at "
        f"{args.rate:g}/s, or nothing shared at {args.unshared_rate:g}/s; {args.runs} runs, seed {args.seed}"
    )


def machine() -> str:
    """Python, processor and system."""
    cpu = next((line.partition(":")[2].strip() for line in cpu_info() if line.startswith("model name")), "")
    processors = f"{os.cpu_count()} CPUs ({cpu or platform.processor()})"
    return f"Python {platform.python_version()}, {processors}, {platform.system()} {platform.release()}"


def cpu_info() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


async def play(args: argparse.Namespace, console: Console, fleet: OwnedFleet) -> list[Result]:
    async with KubeClient(load(fleet.kubeconfig)) as kube:
        return await Bench(args, fleet.gateway, kube, console).play()


def main(args: argparse.Namespace, console: Console) -> int:
    """The exit status; 130 when it was interrupted. The fleet has ended in every case."""
    console.print(conditions(args), markup=False)
    try:
        with temporary_fleet("fairlead-bench-", write=lambda _: None) as fleet:
            results = asyncio.run(play(args, console, fleet))
    except KeyboardInterrupt:
        return 130
    console.print(table(results))
    if args.output:
        write(results, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main(arguments(), Console(highlight=False, width=120)))
