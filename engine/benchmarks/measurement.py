"""What one run of one engine reports, and how a peer script measures and prints it."""

import argparse
import json
import platform
import re
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from workload import WORKLOADS, Request, Workload

FLOAT_BYTES = {"bfloat16": 2, "float32": 4}
"""Number format → bytes of a number."""


@dataclass(frozen=True)
class Outcome:
    """What an engine did with the requests, in their order."""

    outputs: list[list[int]]
    token_seconds: list[list[float]]
    """When each token of each output was there, since the start."""


@dataclass(frozen=True)
class Measurement:
    """One run. Rates count output tokens; all requests arrive at time 0."""

    engine: str
    version: str
    num_output_tokens: int
    start_seconds: float
    """From the start of the process until the model is loaded and has run once."""
    wall_seconds: float
    cpu_seconds: float
    tokens_per_second: float
    tokens_per_cpu_second: float
    ttft_p50_seconds: float
    ttft_p99_seconds: float
    tpot_p50_seconds: float
    """Of the requests' mean time per output token after the first."""
    tpot_p99_seconds: float
    peak_memory_mib: int
    sample: list[int]
    """The first tokens of the first request, to see that engines agree."""


@dataclass(frozen=True)
class PeerArguments:
    """What every peer script is told."""

    checkpoint: Path
    workload: Workload
    threads: int
    sampled: bool
    dtype: str
    """Of the weights of linear layers: `floats`, or what they are quantised to."""
    floats: str
    """bfloat16 or float32: of all else."""
    launched_at: float
    """`time.time()` when the process was started."""
    convert: bool
    """Only write what this engine loads, beside the checkpoint."""
    profile: bool
    """Only tell which operations take how much of the time."""

    def vocabulary(self) -> list[str]:
        """The word of each token id."""
        words = json.loads((self.checkpoint / "tokenizer.json").read_text())["model"]["vocab"]
        return sorted(words, key=words.__getitem__)


def peer_arguments(description: str) -> PeerArguments:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the model")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), required=True)
    parser.add_argument("--threads", type=int, required=True, help="CPU threads for one operation")
    parser.add_argument("--sampled", action="store_true", help="draw tokens instead of taking the likeliest")
    parser.add_argument("--floats", choices=FLOAT_BYTES, default="bfloat16", help="number format of all else")
    parser.add_argument("--dtype", default="bfloat16", help="number format of the weights of linear layers")
    parser.add_argument("--launched-at", type=float, default=time.time())
    parser.add_argument("--convert", action="store_true", help="only write what this engine loads")
    parser.add_argument("--profile", action="store_true", help="only tell which operations take the time")
    args = vars(parser.parse_args())
    return PeerArguments(workload=WORKLOADS[args.pop("workload")], **args)


def measure(
    engine: str, version: str, args: PeerArguments, run: Callable[[list[Request]], Outcome], memory_mib: int = 0
) -> Measurement:
    """Runs once and checks that every request got exactly the tokens it asked for. `memory_mib`: beside the process's
    own, as on a device."""
    requests = args.workload.requests()
    start_seconds = time.time() - args.launched_at
    wall, cpu = time.perf_counter(), time.process_time()
    outcome = run(requests)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    lengths = [len(output) for output in outcome.outputs]
    if lengths != [request.num_outputs for request in requests]:
        raise SystemExit(f"{engine} did other work than asked: output lengths {lengths}")
    num_output_tokens = sum(lengths)
    ttft = [seconds[0] for seconds in outcome.token_seconds]
    tpot = [(seconds[-1] - seconds[0]) / (len(seconds) - 1) for seconds in outcome.token_seconds]
    return Measurement(
        engine=engine,
        version=version,
        num_output_tokens=num_output_tokens,
        start_seconds=start_seconds,
        wall_seconds=wall,
        cpu_seconds=cpu,
        tokens_per_second=num_output_tokens / wall,
        tokens_per_cpu_second=num_output_tokens / cpu,
        ttft_p50_seconds=quantile(ttft, 0.5),
        ttft_p99_seconds=quantile(ttft, 0.99),
        tpot_p50_seconds=quantile(tpot, 0.5),
        tpot_p99_seconds=quantile(tpot, 0.99),
        peak_memory_mib=memory_mib + peak_memory_mib(),
        sample=outcome.outputs[0][:8],
    )


def peak_memory_mib() -> int:
    """The most resident memory this process has had. `getrusage` counts what its parent had before the exec as well."""
    status = Path("/proc/self/status")
    if found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text() if status.exists() else ""):
        return int(found[1]) // 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of them do not exceed, by nearest rank."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def report(measurement: Measurement) -> None:
    """Prints the measurement as the last line of standard output, where the benchmark looks for it."""
    print(json.dumps(asdict(measurement)), flush=True)


def floats(machine: Mapping[str, object]) -> str:
    """In which number format models are run there, as engines choose it by themselves: a CPU that does not multiply
    bfloat16 takes dozens of times as long for it as for float32."""
    return "bfloat16" if machine.get("gpu") or machine.get("bfloat16 by") else "float32"


def machine() -> dict[str, object]:
    """What the figures depend on, besides versions."""
    import torch

    capabilities = torch.cpu.get_capabilities()
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {
        **gpu,
        "cpu": str(capabilities.get("cpu_name", platform.processor())),
        "cores": capabilities.get("num_logical_cores"),
        "bfloat16 by": " ".join(name for name in ("amx_bf16", "avx512_bf16") if capabilities.get(name)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
