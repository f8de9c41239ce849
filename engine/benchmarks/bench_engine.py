"""Fairlead's engine beside its peers on this machine: the same weights, prompts, lengths and seeds.

    make bench-engine                 or   python engine/benchmarks/bench_engine.py
    make bench-engine BENCH=quick     or   python engine/benchmarks/bench_engine.py --quick
    python engine/benchmarks/bench_engine.py --resume --minutes 10 --docs docs/benchmarks

Every run is a process of its own. Rounds go through all engines in turn, so that what else the machine does falls on
all of them, and are repeated until the time is over; medians count. An engine that is not installed, fails or found no
time is a row with its reason. Writes all runs as JSON, after each of them, and in the end the machine's page
(`page.py`). `--resume` goes on with them: a benchmark may be done in pieces, when a machine has nothing else to do.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import page
import peer_environment
import tokenizers
from measurement import floats, machine
from results import OURS, Results, kind
from roofline import Rates, measure_rates, workload_seconds
from workload import WORKLOADS, Workload

from fairlead_engine_testing.checkpoints import write_random_checkpoint

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
RUN_TIMEOUT_SECONDS = 300.0
GROWN_SEQS, GROWN_TOKENS = 32, 2304
"""Most sequences at once and longest context of the measurements of how cost grows."""


@dataclass(frozen=True)
class Engine:
    """One way to serve a workload. With `dtype` int8 Fairlead and the hand loop round activations as well (W8A8)."""

    name: str
    script: str
    """In `peers/`."""
    dtype: str = ""
    """Of the weights of linear layers; empty = the machine's floats."""
    package: str | None = None
    """Of the peers' environment that it needs; None = it runs in this one."""
    only_greedy: bool = False
    converts: bool = False
    """Whether it loads another format, which `--convert` writes."""
    device: str = "any"
    """cpu, cuda or any."""


ENGINES = (
    Engine("fairlead", "fairlead.py"),
    Engine("hand loop", "hand_loop.py", only_greedy=True, device="cpu"),
    Engine("fairlead", "fairlead.py", "int8"),
    Engine("hand loop", "hand_loop.py", "int8", only_greedy=True, device="cpu"),
    Engine("transformers generate", "transformers_static.py"),
    Engine("transformers continuous", "transformers_batching.py"),
    Engine("llama.cpp", "llama_cpp_slots.py", package="llama-cpp-python", converts=True, device="cpu"),
    Engine("llama.cpp", "llama_cpp_slots.py", "q8_0", package="llama-cpp-python", converts=True, device="cpu"),
    Engine("ctranslate2", "ctranslate2_generator.py", "int8", package="ctranslate2", converts=True, device="cpu"),
    Engine("vllm", "vllm_offline.py", device="cuda"),
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
FULL = (
    *(Setting(workload, sampled, 1) for workload in ("small", "q06") for sampled in (False, True)),
    *(Setting("q06", sampled, 2) for sampled in (False, True)),
)


def main() -> None:
    args = parse_arguments()
    began = time.monotonic()
    settings = [each for each in (QUICK if args.quick else FULL) if each.threads <= (os.cpu_count() or 1)]
    on = machine()
    results = Results.begin(args.out / f"engine-{kind(on)}.json", on, resume=args.resume)
    left_out = dict.fromkeys((engine.package for engine in ENGINES if engine.package), "left out by --no-install")
    missing = left_out if args.no_install else peer_environment.prepare(args.out / "peers", slow_builds=not args.quick)
    checkpoints = {name: prepare_checkpoint(args.out, WORKLOADS[name]) for name in {s.workload for s in settings}}
    bench = Bench(args.out, checkpoints, missing, began + 60 * args.minutes, results)
    bench.run(settings, args.rounds)
    bench.explain(settings)
    found = results.found
    found["command"] = "make bench-engine" + (" BENCH=quick" if args.quick else "") + args.beside
    found["minutes"] += (time.monotonic() - began) / 60
    results.save()
    print(page.text(found))
    print(f"All runs: {results.path}")
    if args.docs is not None:
        print(f"Page: {page.write(found, args.docs)}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one thread, less work, nothing that builds for long")
    parser.add_argument(
        "--minutes",
        type=float,
        help="of comparing (default: 6 quick, 32 otherwise), before growth",
    )
    parser.add_argument("--rounds", type=int, help="runs of each engine at most (default: 3 quick, 5 otherwise)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out", help="folder for checkpoints and results")
    parser.add_argument("--docs", type=Path, help="folder for the machine's page (default: none is written)")
    parser.add_argument("--resume", action="store_true", help="go on with the results that are there")
    parser.add_argument("--no-install", action="store_true", help="leave out peers that need an environment of theirs")
    args = parser.parse_args()
    given = [f"--{name} {value:g}" for name in ("minutes", "rounds") if (value := getattr(args, name)) is not None]
    args.beside = f" with {' '.join(given)}" if given else ""
    args.beside += ", in pieces" if args.resume else ""
    args.minutes = (6 if args.quick else 32) if args.minutes is None else args.minutes
    args.rounds = args.rounds or (3 if args.quick else 5)
    return args


def prepare_checkpoint(out: Path, workload: Workload) -> Path:
    """The workload's model with random weights, written once."""
    folder = out / f"checkpoint-{workload.name}"
    if not (folder / "model.safetensors").exists():
        print(f"writing random weights to {folder}", file=sys.stderr, flush=True)
        write_random_checkpoint(folder, workload.model, seed=workload.seed)
        write_tokenizer(folder, workload.vocab_size)
    return folder


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Bytes, and as many words as it takes: weights are random, so nobody reads them."""
    characters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = ["<s>", "</s>", "<pad>", *characters]
    words += [f"<{number}>" for number in range(len(words), vocab_size)]
    model = tokenizers.models.BPE({word: number for number, word in enumerate(words)}, [])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<s>"}
    fields = {**special, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))


class Bench:
    """The runs, and how long there is for them."""

    def __init__(
        self, out: Path, checkpoints: dict[str, Path], missing: dict[str, str], deadline: float, results: Results
    ) -> None:
        """`missing`: package → why the peers' environment lacks it. `deadline`: on the monotonic clock, of the runs."""
        self.out = out
        self.checkpoints = checkpoints
        self.missing = missing
        self.deadline = deadline
        self.growth_seconds = 60.0
        self.results = results
        self._converted: set[tuple[Engine, str]] = set()
        on = results.found["machine"]
        self.device, self.floats = "cuda" if "gpu" in on else "cpu", floats(on)
        self.engines = tuple(replace(each, dtype=each.dtype or self.floats) for each in ENGINES)

    def run(self, settings: list[Setting], rounds: int) -> None:
        """For each setting a row for each engine: its runs, and why there are none or no more."""
        tables = {setting: self._rows(setting) for setting in settings}
        for number in range(rounds):
            for threads in sorted({setting.threads for setting in settings}):
                self._measure_rates(threads)
            for setting, rows in tables.items():
                for engine, row in zip(self.engines, rows, strict=True):
                    if "reason" in row or len(row["runs"]) > number:
                        continue
                    reason = self._why_not(engine, setting, row["runs"])
                    if reason is None:
                        print(f"round {number + 1}: {setting.name}: {engine.name}", file=sys.stderr, flush=True)
                        measured, reason = self._measure(engine, setting)
                        row["runs"] += measured
                    if reason is not None:
                        row["reason"] = reason
                    self.results.save()
        for setting in settings:
            entry = next(each for each in self.results.found["tables"] if each["name"] == setting.name)
            entry["roofline_seconds"] = workload_seconds(
                WORKLOADS[setting.workload], self._rates(setting.threads), self.floats
            )

    def _rows(self, setting: Setting) -> list[dict[str, Any]]:
        engines = [{"engine": asdict(engine), "runs": []} for engine in self.engines]
        return self.results.rows(setting.name, {"setting": asdict(setting), "engines": engines})

    def _measure_rates(self, threads: int) -> None:
        """The best that was seen between rounds counts, as neighbours only ever make it worse."""
        rates = self.results.found["rates"]
        known = self._rates(threads) if str(threads) in rates else None
        rates[str(threads)] = asdict(measure_rates(threads, self.floats).better(known))

    def _rates(self, threads: int) -> Rates:
        return Rates(**self.results.found["rates"][str(threads)])

    def _why_not(self, engine: Engine, setting: Setting, runs: list[dict[str, Any]]) -> str | None:
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
        if engine.converts and (engine, setting.workload) not in self._converted:
            _, reason = self._call(engine, setting, "--convert")
            if reason is not None:
                return [], f"converting the checkpoint {reason}"
            self._converted.add((engine, setting.workload))
        last, reason = self._call(engine, setting)
        return ([], reason) if reason is not None else ([json.loads(last)], None)

    def explain(self, settings: list[Setting]) -> None:
        """How cost grows, and what bounds our own runs, where it is not known yet."""
        growth, profiles = self.results.found["growth"], self.results.found["profiles"]
        for name in sorted(self.checkpoints):
            if name not in growth or "reason" in growth[name]:
                growth[name] = self.growth(name)
                self.results.save()
        for setting in settings:
            known = profiles.setdefault(setting.name, {})
            for engine in self.engines:
                if engine.name == OURS and not known.get(engine.dtype):
                    known[engine.dtype] = self.profile(engine, setting)
                    self.results.save()

    def profile(self, engine: Engine, setting: Setting) -> dict[str, float]:
        """Operation → share of the time of a run; empty where it cannot be told."""
        last, reason = self._call(engine, setting, "--profile")
        return {} if reason is not None else json.loads(last)

    def growth(self, workload: str) -> dict[str, Any]:
        """What `fairlead-engine characterise` finds on one thread, or the reason why nothing."""
        path = self.out / f"profile-{workload}.json"
        path.unlink(missing_ok=True)
        command = [sys.executable, "-m", "fairlead_engine", "characterise", "--output", str(path)]
        command += ["--model", str(self.checkpoints[workload]), "--num-threads", "1", "--dtype", self.floats]
        command += ["--max-num-seqs", str(GROWN_SEQS), "--max-model-len", str(GROWN_TOKENS)]
        command += ["--time-limit", f"{self.growth_seconds:g}"]
        _, reason = call(command, 1, self.growth_seconds + RUN_TIMEOUT_SECONDS)
        return {"reason": reason} if reason is not None else json.loads(path.read_text())

    def _call(self, engine: Engine, setting: Setting, *flags: str) -> tuple[str, str | None]:
        python = sys.executable if engine.package is None else str(peer_environment.python(self.out / "peers"))
        command = [python, str(FOLDER / "peers" / engine.script), "--workload", setting.workload]
        command += ["--checkpoint", str(self.checkpoints[setting.workload]), "--threads", str(setting.threads)]
        command += ["--dtype", engine.dtype, "--floats", self.floats, "--launched-at", str(time.time())]
        command += ["--sampled"] if setting.sampled else []
        return call([*command, *flags], setting.threads, RUN_TIMEOUT_SECONDS)


def call(command: list[str], threads: int, timeout: float) -> tuple[str, str | None]:
    """Runs a process; returns the last line of its output, and why it has failed."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        return "", f"took more than {timeout:.0f} s"
    if done.returncode == 0:
        return (done.stdout.strip().splitlines() or [""])[-1], None
    last = [line for line in done.stderr.strip().splitlines() if line.strip()][-1:]
    return "", f"failed with exit code {done.returncode}: {' '.join(last)[:160]}"


if __name__ == "__main__":
    main()
