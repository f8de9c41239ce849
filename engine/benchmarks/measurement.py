"""What one run of one engine reports, and how a peer script measures and prints it."""

import argparse
import json
import platform
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from workload import WORKLOADS, Request, Workload


@dataclass(frozen=True)
class Outcome:
    """What an engine did with the requests, in their order."""

    outputs: list[list[int]]
    first_token_seconds: list[float]
    """Time of each request's first token, since the start."""


@dataclass(frozen=True)
class Measurement:
    """One run. Rates count output tokens."""

    engine: str
    version: str
    num_output_tokens: int
    wall_seconds: float
    cpu_seconds: float
    tokens_per_second: float
    tokens_per_cpu_second: float
    ttft_p50_seconds: float
    peak_memory_mib: int
    sample: list[int]
    """The first tokens of the first request, to see that engines agree."""


@dataclass(frozen=True)
class PeerArguments:
    """What every peer script is told."""

    checkpoint: Path
    workload: Workload
    threads: int


def peer_arguments(description: str) -> PeerArguments:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the model")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), required=True)
    parser.add_argument("--threads", type=int, required=True, help="CPU threads for one operation")
    args = parser.parse_args()
    return PeerArguments(args.checkpoint, WORKLOADS[args.workload], args.threads)


def measure(engine: str, version: str, requests: list[Request], run: Callable[[list[Request]], Outcome]) -> Measurement:
    """Runs once and checks that every request got exactly the tokens it asked for."""
    wall, cpu = time.perf_counter(), time.process_time()
    outcome = run(requests)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    lengths = [len(output) for output in outcome.outputs]
    if lengths != [request.num_outputs for request in requests]:
        raise SystemExit(f"{engine} did other work than asked: output lengths {lengths}")
    num_output_tokens = sum(lengths)
    return Measurement(
        engine=engine,
        version=version,
        num_output_tokens=num_output_tokens,
        wall_seconds=wall,
        cpu_seconds=cpu,
        tokens_per_second=num_output_tokens / wall,
        tokens_per_cpu_second=num_output_tokens / cpu,
        ttft_p50_seconds=sorted(outcome.first_token_seconds)[len(requests) // 2],
        peak_memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        sample=outcome.outputs[0][:8],
    )


def report(measurement: Measurement) -> None:
    """Prints the measurement as the last line of standard output, where the benchmark looks for it."""
    print(json.dumps(asdict(measurement)), flush=True)


def machine() -> dict[str, object]:
    """What the figures depend on, besides versions."""
    import torch

    capabilities = torch.cpu.get_capabilities()
    return {
        "cpu": str(capabilities.get("cpu_name", platform.processor())),
        "cores": capabilities.get("num_logical_cores"),
        "bfloat16": [name for name in ("amx_bf16", "avx512_bf16") if capabilities.get(name)],
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
