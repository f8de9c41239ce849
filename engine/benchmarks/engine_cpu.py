"""Fairlead's engine on a CPU beside its peers: the same requests, each run in its own process, runs alternating.

    python engine/benchmarks/engine_cpu.py [--out bench-out] [--runs 5] [--threads N]

Prints one table of medians and writes all runs as JSON. The targets: at least 0.7 of the hand-written loop, which is
what the machine can do when nothing has to be general, and twice transformers' continuous batching.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from measurement import machine
from workload import WORKLOADS, Workload

from fairlead_engine_testing.checkpoints import write_random_checkpoint

PEERS = {"fairlead": "fairlead.py", "hand loop": "hand_loop.py", "transformers": "transformers_batching.py"}
TARGETS = {"hand loop": 0.7, "transformers": 2.0}
"""Fairlead's output tokens per second over the peer's, at least."""

Runs = dict[str, list[dict[str, Any]]]
"""Measurements of each engine, in the order they were taken."""


def main() -> None:
    args = parse_arguments()
    workload = WORKLOADS[args.workload]
    checkpoint = prepare_checkpoint(args.out, workload)
    runs: Runs = {name: [] for name in PEERS}
    for number in range(args.runs):
        for name, script in PEERS.items():
            print(f"run {number + 1} of {args.runs}: {name}", file=sys.stderr, flush=True)
            runs[name].append(run_peer(script, checkpoint, workload, args.threads))
    facts = {"workload": describe(workload), "seed": workload.seed, "threads": args.threads, **machine()}
    ratios = {name: ratio(runs, name) for name in TARGETS}
    print(table(runs, facts, ratios))
    result = {"facts": facts, "medians": medians(runs), "ratios": ratios, "targets": TARGETS, "runs": runs}
    path = args.out / f"engine-cpu-{workload.name}.json"
    path.write_text(json.dumps(result, indent=2))
    print(f"All runs: {path}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="small")
    parser.add_argument("--out", type=Path, default=Path("bench-out"), help="folder for checkpoint and results")
    parser.add_argument("--runs", type=int, default=5, help="runs of each engine; the medians are reported")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads for one operation, in every engine")
    return parser.parse_args()


def prepare_checkpoint(out: Path, workload: Workload) -> Path:
    """The workload's model with random weights, written once."""
    folder = out / f"checkpoint-{workload.name}"
    if not (folder / "model.safetensors").exists():
        write_random_checkpoint(folder, workload.model, seed=workload.seed)
    return folder


def run_peer(script: str, checkpoint: Path, workload: Workload, threads: int) -> dict[str, Any]:
    """One run in a process of its own; its last line of output is the measurement."""
    command = [sys.executable, str(Path(__file__).parent / "peers" / script)]
    command += ["--checkpoint", str(checkpoint), "--workload", workload.name, "--threads", str(threads)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{script} failed with exit code {done.returncode}:\n{done.stderr[-4000:]}")
    measurement: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return measurement


def medians(runs: Runs) -> dict[str, dict[str, float]]:
    """For each engine the median of every figure."""
    return {
        name: {
            key: median(run[key] for run in taken) for key, value in taken[0].items() if isinstance(value, int | float)
        }
        for name, taken in runs.items()
    }


def ratio(runs: Runs, peer: str) -> float:
    """Fairlead's median rate over the peer's."""
    rates = medians(runs)
    return rates["fairlead"]["tokens_per_second"] / rates[peer]["tokens_per_second"]


def describe(workload: Workload) -> str:
    requests = workload.requests()
    num_in, num_out = sum(len(r.prompt) for r in requests), sum(r.num_outputs for r in requests)
    return (
        f"{workload.name}: {len(requests)} requests at once, {num_in} tokens in, {num_out} out, greedy, bfloat16, "
        f"{workload.max_batch_tokens} tokens per step"
    )


def table(runs: Runs, facts: dict[str, Any], ratios: dict[str, float]) -> str:
    lines = [f"{name:9} {value}" for name, value in facts.items()]
    lines += [
        "",
        "| engine | version | tok/s | tok/CPU-s | TTFT p50 s | MiB | Fairlead is |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, figures in medians(runs).items():
        verdict = "" if name not in ratios else f"{ratios[name]:.2f} x, {judge(name, ratios[name])}"
        lines.append(
            f"| {name} | {runs[name][0]['version']} | {figures['tokens_per_second']:.0f} "
            f"| {figures['tokens_per_cpu_second']:.0f} | {figures['ttft_p50_seconds']:.2f} "
            f"| {figures['peak_memory_mib']:.0f} | {verdict} |"
        )
    return "\n".join(lines)


def judge(peer: str, ratio: float) -> str:
    return f"target {TARGETS[peer]} x {'met' if ratio >= TARGETS[peer] else 'MISSED'}"


if __name__ == "__main__":
    main()
