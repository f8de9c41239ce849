"""Fairlead's engine beside its peers on this machine: the same weights, prompts, lengths and seeds.

    make bench-engine                 or   python engine/benchmarks/bench_engine.py
    make bench-engine BENCH=quick     or   python engine/benchmarks/bench_engine.py --quick

Every run is a process of its own. Rounds go through all engines in turn, so that what else the machine does falls on
all of them, and are repeated until the time is over; medians count. An engine that is not installed, fails or found no
time is a row with its reason. Writes all runs as JSON, and from them the machine's page (`page.py`).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import page
import peer_environment
from measurement import machine
from roofline import Rates, measure_rates, workload_seconds
from workload import WORKLOADS, Workload

from fairlead_engine_testing.checkpoints import write_random_checkpoint

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
RUN_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class Engine:
    """One way to serve a workload."""

    name: str
    script: str
    """In `peers/`."""
    dtype: str = "bfloat16"
    package: str | None = None
    """Of the peers' environment that it needs; None = it runs in this one."""
    only_greedy: bool = False
    device: str = "any"
    """cpu, cuda or any."""


ENGINES = (
    Engine("fairlead", "fairlead.py"),
    Engine("hand loop", "hand_loop.py", only_greedy=True, device="cpu"),
    Engine("transformers generate", "transformers_static.py"),
    Engine("transformers continuous", "transformers_batching.py"),
)


@dataclass(frozen=True)
class Setting:
    """What a table is about: all engines under equal conditions."""

    workload: str
    sampled: bool
    threads: int

    @property
    def name(self) -> str:
        plural = "s" if self.threads > 1 else ""
        return f"{self.workload}, {'sampled' if self.sampled else 'greedy'}, {self.threads} thread{plural}"


QUICK = (Setting("small", False, 1), Setting("small", True, 1), Setting("q06", False, 1))
FULL = tuple(
    Setting(workload, sampled, threads)
    for threads in (1, 2)
    for workload in ("small", "q06")
    for sampled in (False, True)
)


def main() -> None:
    args = parse_arguments()
    began = time.monotonic()
    settings = [each for each in (QUICK if args.quick else FULL) if each.threads <= (os.cpu_count() or 1)]
    missing = {} if args.no_install else peer_environment.prepare(args.out / "peers", slow_builds=not args.quick)
    checkpoints = {name: prepare_checkpoint(args.out, WORKLOADS[name]) for name in {s.workload for s in settings}}
    bench = Bench(args.out, checkpoints, missing, began + 60 * args.minutes)
    tables = bench.run(settings, args.rounds)
    rates = bench.rates
    results = {
        "command": "make bench-engine" + (" BENCH=quick" if args.quick else ""),
        "machine": machine(),
        "rates": {str(threads): asdict(rate) for threads, rate in rates.items()},
        "minutes": (time.monotonic() - began) / 60,
        "tables": [
            {
                "setting": asdict(setting),
                "name": setting.name,
                "roofline_seconds": workload_seconds(WORKLOADS[setting.workload], rates[setting.threads]),
                "engines": tables[setting],
            }
            for setting in settings
        ],
    }
    path = args.out / f"engine-{page.kind(results)}.json"
    path.write_text(json.dumps(results, indent=1))
    print(page.text(results))
    print(f"All runs: {path}")
    if args.docs is not None:
        print(f"Page: {page.write(results, args.docs)}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one thread, less work, nothing that builds for long")
    parser.add_argument("--minutes", type=float, help="when to stop (default: 8 quick, 34 otherwise)")
    parser.add_argument("--rounds", type=int, help="runs of each engine at most (default: 3 quick, 5 otherwise)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out", help="folder for checkpoints and results")
    parser.add_argument("--docs", type=Path, help="folder for the machine's page (default: none is written)")
    parser.add_argument("--no-install", action="store_true", help="leave out peers that need an environment of theirs")
    args = parser.parse_args()
    args.minutes = args.minutes or (8 if args.quick else 34)
    args.rounds = args.rounds or (3 if args.quick else 5)
    return args


def prepare_checkpoint(out: Path, workload: Workload) -> Path:
    """The workload's model with random weights, written once."""
    folder = out / f"checkpoint-{workload.name}"
    if not (folder / "model.safetensors").exists():
        print(f"writing random weights to {folder}", file=sys.stderr, flush=True)
        write_random_checkpoint(folder, workload.model, seed=workload.seed)
    return folder


class Bench:
    """The runs, and how long there is for them."""

    def __init__(self, out: Path, checkpoints: dict[str, Path], missing: dict[str, str], deadline: float) -> None:
        """`missing`: package → why the peers' environment lacks it. `deadline`: on the monotonic clock."""
        self.out = out
        self.checkpoints = checkpoints
        self.missing = missing
        self.deadline = deadline
        self.rates: dict[int, Rates] = {}
        """By threads: the best that was seen between rounds, as neighbours only ever make it worse."""
        self.device = "cuda" if "gpu" in machine() else "cpu"

    def run(self, settings: list[Setting], rounds: int) -> dict[Setting, list[dict[str, Any]]]:
        """For each setting a row for each engine: its runs, and why there are none or no more."""
        tables = {setting: [{"engine": asdict(engine), "runs": []} for engine in ENGINES] for setting in settings}
        for number in range(rounds):
            for threads in {setting.threads for setting in settings}:
                self.rates[threads] = measure_rates(threads).better(self.rates.get(threads))
            for setting in settings:
                for engine, row in zip(ENGINES, tables[setting], strict=True):
                    if "reason" in row:
                        continue
                    reason = self._why_not(engine, setting, number, row["runs"])
                    if reason is None:
                        print(f"round {number + 1}: {setting.name}: {engine.name}", file=sys.stderr, flush=True)
                        measured, reason = self._measure(engine, setting)
                        row["runs"] += measured
                    if reason is not None:
                        row["reason"] = reason
        return tables

    def _why_not(self, engine: Engine, setting: Setting, number: int, runs: list[dict[str, Any]]) -> str | None:
        """Why this engine cannot take part, or not again."""
        if engine.package is not None and engine.package in self.missing:
            return f"not installed: {self.missing[engine.package]}"
        if engine.device not in ("any", self.device):
            return f"runs on {engine.device} only, and this benchmark ran on {self.device}: not measured"
        if engine.only_greedy and setting.sampled:
            return "has no sampling"
        expected = runs[-1]["start_seconds"] + runs[-1]["wall_seconds"] if runs else 0.0
        return "the time was over" if time.monotonic() + expected > self.deadline else None

    def _measure(self, engine: Engine, setting: Setting) -> tuple[list[dict[str, Any]], str | None]:
        """One run in a process of its own, whose last line of output is the measurement; or why there is none."""
        python = sys.executable if engine.package is None else str(peer_environment.python(self.out / "peers"))
        command = [python, str(FOLDER / "peers" / engine.script), "--workload", setting.workload]
        command += ["--checkpoint", str(self.checkpoints[setting.workload]), "--threads", str(setting.threads)]
        command += ["--dtype", engine.dtype, "--launched-at", str(time.time())]
        command += ["--sampled"] if setting.sampled else []
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(setting.threads),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False, timeout=RUN_TIMEOUT_SECONDS
            )
        except subprocess.TimeoutExpired:
            return [], f"took more than {RUN_TIMEOUT_SECONDS:.0f} s"
        if done.returncode == 0:
            return [json.loads(done.stdout.strip().splitlines()[-1])], None
        last = [line for line in done.stderr.strip().splitlines() if line.strip()][-1:]
        return [], f"failed with exit code {done.returncode}: {' '.join(last)[:160]}"


if __name__ == "__main__":
    main()
