"""`fairlead simulate autoscaling`: how the autoscaler, with a person's own settings and beside formulas of other
projects, would have followed a load. In virtual time: nothing is served, and no cluster is needed."""

import argparse
import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from multiprocessing import get_context, parent_process
from pathlib import Path

from rich.console import Console

from fairlead.cli.options import UsageError, at_least, duration, number, tell
from fairlead.cli.simulate_plot import FORMATS, draw
from fairlead.cli.simulate_report import Runs, grids, to_json
from fairlead.cli.simulate_setup import SimulationSetup, jsonable, setup
from fairlead.client.plot import PlotUnavailable, require_matplotlib
from fairlead.simulator.scaling.policies import POLICIES
from fairlead.simulator.scaling.recording import LATEST_SECONDS
from fairlead.simulator.scaling.trial import TrialResult, play
from fairlead_common.wire.messages import StepCost

DEFAULT_SEEDS = 4
DESTINATIONS = {"--from": "since", "--for": "seconds"}
"""Of flags that are keywords of Python."""
PROGRESS_SECONDS = 5.0
"""Seconds between lines of progress outside a terminal."""
FILE_WIDTH = 160
"""Columns of tables outside a terminal."""
EPILOG = """\
Without --trace, loads of the benchmark are played: steps, ramps, tides, bursts. With -f the first row is what the
LLMDeployment's spec.autoscaling would have done, and --try adds rows with other settings.
An interval behind a figure is the 95 % confidence interval of the mean over seeds.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    simulations = parser.add_subparsers(dest="simulation", metavar="WHAT", required=True)
    words = "replicas over a load, with one's own settings and beside other autoscalers' formulas"
    autoscaling = simulations.add_parser(
        "autoscaling", help=words, description=words, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    titles = ("load", "fleet", "runs", "results")
    load, fleet, runs, results = (autoscaling.add_argument_group(title) for title in titles)
    positive = number(lambda given: 0 < given < 1e6, "is no factor: a number above 0, such as 0.5")
    start = number(lambda given: 0 <= given <= 86_400, "is no time to start: seconds, such as 60")
    # fmt: off
    for group, flag, kind, default, metavar, words in (
        (load, "--trace", Path, None, "FILE",
         "recorded arrivals: Azure's CSV, Mooncake's JSON lines, or what `fairlead bench --output` wrote"),
        (load, "--from", duration, None, "TIME", "begin so long after the recording's first request: 2h"),
        (load, "--for", duration, None, "TIME", "play so much of the recording: 30m"),
        (load, "--speed", positive, 1.0, "N", "play it N times as fast (default: %(default)s)"),
        (load, "--begin", moment, None, "DATE", "time of day of the first request, for schedules"),
        (fleet, "--engine-profile", Path, None, "FILE", "as `fairlead-engine characterise` has measured it"),
        (fleet, "--step-cost", step_cost, None, "base=SECONDS,…",
         "what steps cost: base, prefill_token, prefill_step, prefill_context, decode_seq, kv_token"),
        (fleet, "--slots", at_least(1), None, "N", "requests at a time (default: engine.maxNumSeqs, or 32)"),
        (fleet, "--start-seconds", start, None, "N", "until a new replica is ready (default: the profile's, or 60)"),
        (fleet, "--target", duration, None, "TIME",
         "longest time to first token to be judged by (default: targets.timeToFirstToken, or 2s)"),
        (runs, "--seeds", at_least(1), DEFAULT_SEEDS, "N", "runs of each row (default: %(default)s)"),
        (runs, "--processes", at_least(1), None, "N", "at a time (default: one per CPU)"),
        (results, "--output", Path, None, "FILE", "write there, not here"),
        (results, "--plot", Path, None, "FILE.svg", "draw shares over cost, and a recording's replicas over time"),
    ):
        dest = DESTINATIONS.get(flag, flag[2:].replace("-", "_"))
        group.add_argument(flag, dest=dest, type=kind, default=default, metavar=metavar, help=words)
    # fmt: on
    load.add_argument("--loads", nargs="+", metavar="TEXT", help="of the benchmark's, those whose name has such a text")
    load.add_argument("--held-out", action="store_true", help="the benchmark's loads by which nothing was chosen")
    fleet.add_argument(
        "-f", "--filename", action="append", metavar="FILE", help="LLMDeployments; - = standard input; may be repeated"
    )
    fleet.add_argument(
        "--try", dest="tried", action="append", default=[], metavar="FIELD=VALUE,…",
        help="one more row, with other fields of spec.autoscaling; may be repeated",
    )  # fmt: skip
    runs.add_argument(
        "--policies", nargs="*", metavar="TEXT",
        help=f"beside ours only those whose name has such a text; of {'; '.join(POLICIES[1:])}",
    )  # fmt: skip
    results.add_argument("--format", choices=("text", "markdown", "json"), default="text", help="default: %(default)s")


def moment(given: str) -> datetime:
    """A date with a time of day; UTC where no time zone is told."""
    try:
        found = datetime.fromisoformat(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{given!r} is no date: write 2026-01-05T08:00+01:00") from error
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    if not 0.0 <= found.timestamp() <= LATEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{given!r} is before 1970, or centuries away")
    return found


def step_cost(given: str) -> StepCost:
    """From `base=0.012,prefill_token=1e-4`."""
    known = sorted(StepCost().seconds)
    costs = {}
    for part in given.split(","):
        name, _, seconds = part.partition("=")
        if name.strip() not in known:
            raise argparse.ArgumentTypeError(f"{name.strip()!r} is no cost of a step: there are {', '.join(known)}")
        costs[name.strip()] = number(lambda value: 0 <= value < 3600, "is no number of seconds")(seconds)
    if not any(costs.get(name) for name in ("base", "decode_seq")):
        raise argparse.ArgumentTypeError(f"{given!r}: steps that take no time: base or decode_seq must be above 0")
    return StepCost(**costs)


def run(args: argparse.Namespace) -> int:
    """0; 2 for bad input; 1 where results cannot be written."""
    progress = Console(stderr=True, highlight=False)
    try:
        if args.plot is not None:
            if args.plot.suffix not in FORMATS:
                raise UsageError(f"--plot {args.plot} is neither an SVG nor a PNG", "name it FILE.svg or FILE.png")
            require_matplotlib()
        for flag, path in (("--output", args.output), ("--plot", args.plot)):
            _check_writable(flag, path)
        made = setup(args)
    except (UsageError, PlotUnavailable) as error:
        tell(error)
        return 2
    for note in made.notes:
        progress.print(note, markup=False, soft_wrap=True)
    try:
        runs = simulated(made, args.seeds, args.processes or os.cpu_count() or 1, progress)
    except BrokenProcessPool:
        tell(UsageError("a process of the simulation was ended from outside", "is memory short? try --processes 1"))
        return 1
    return _report(args, made, runs)


def _check_writable(flag: str, path: Path | None) -> None:
    """Rather now than after the work."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
    except OSError as error:
        sentence = f"{flag} {path}: it cannot be written: {error.strerror}"
        raise UsageError(sentence, "name another file") from error


def _report(args: argparse.Namespace, made: SimulationSetup, runs: Runs) -> int:
    names = [each.name for each in made.traces]
    text = io.StringIO()
    if args.format == "json":
        text.write(json.dumps(to_json(runs, made.contenders, names, jsonable(args)), indent=1, default=str) + "\n")
    for grid in () if args.format == "json" else grids(runs, made.contenders, names):
        if args.format == "markdown":
            text.write(grid.markdown() + "\n")
        elif args.output is None:
            console = Console(highlight=False)
            console.width = console.width if console.is_terminal else FILE_WIDTH
            console.print(grid.rich())
        else:
            Console(file=text, width=FILE_WIDTH, highlight=False).print(grid.rich())
    try:
        if args.output is None:
            sys.stdout.write(text.getvalue())
        else:
            args.output.write_text(text.getvalue(), encoding="utf-8")
        if args.plot is not None:
            draw(args.plot, runs, made.contenders, made.traces)
    except OSError as error:
        if error.filename is None:  # of standard output, which `main` tells
            raise
        tell(UsageError(f"cannot write {error.filename}: {error.strerror}", "name another file"))
        return 1
    return 0


# -- runs --------------------------------------------------------------------------------------------------------------

_made: list[SimulationSetup] = []
"""In a process of the pool: the simulation that runs belong to, which is sent once."""


def _begin(made: SimulationSetup) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the process at once, and without a traceback
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _made.append(made)


def _end_with_parent() -> None:
    """Else a process would wait for ever for jobs of a parent that was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _played(trace: int, contender: int, seed: int) -> TrialResult:
    return _play(_made[0], trace, contender, seed)


def _play(made: SimulationSetup, trace: int, contender: int, seed: int) -> TrialResult:
    return play(made.traces[trace], made.contenders[contender], seed, made.recording)


def simulated(made: SimulationSetup, seeds: int, processes: int, progress: Console) -> Runs:
    """Every contender on every trace with every seed, in parallel; how many are done is told meanwhile."""
    jobs = [
        (trace, contender, seed)
        for trace in range(len(made.traces))
        for contender in range(len(made.contenders))
        for seed in range(seeds)
    ]
    telling = Telling(progress, len(jobs))
    processes = min(processes, len(jobs))
    done: dict[tuple[int, int, int], TrialResult] = {}
    with telling:
        if processes == 1:
            for job in jobs:
                done[job] = _play(made, *job)
                telling.tell(len(done))
        else:
            done = dict(_in_processes(made, jobs, processes, telling))
    return {
        (each.name, one.name): [done[trace, contender, seed] for seed in range(seeds)]
        for trace, each in enumerate(made.traces)
        for contender, one in enumerate(made.contenders)
    }


def _in_processes(
    made: SimulationSetup, jobs: Sequence[tuple[int, int, int]], processes: int, telling: "Telling"
) -> Iterator[tuple[tuple[int, int, int], TrialResult]]:
    # Fresh processes: forked ones would inherit the thread that draws progress, and what the thread holds.
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin, (made,)) as pool:
        # Processes begin with the first job, and inherit that Ctrl-C waits until `_begin`.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        pending: dict[Future[TrialResult], tuple[int, int, int]] = {pool.submit(_played, *job): job for job in jobs}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        num_done = 0
        try:
            while pending:
                over, _ = wait(pending, timeout=PROGRESS_SECONDS, return_when=FIRST_COMPLETED)
                for future in over:
                    yield pending.pop(future), future.result()
                num_done += len(over)
                telling.tell(num_done)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class Telling:
    """How far a simulation is: in place on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, number: int) -> None:
        """`number`: of runs."""
        self.console, self.number = console, number
        self._began = self._told_at = time.monotonic()
        self._status = console.status(f"0 of {number} runs") if console.is_terminal else None

    def __enter__(self) -> "Telling":
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def tell(self, num_done: int) -> None:
        """So many runs are over."""
        now = time.monotonic()
        words = f"{num_done} of {self.number} runs"
        if 0 < num_done < self.number:
            words += f", about {(now - self._began) * (self.number - num_done) / num_done:.0f} s more"
        if self._status is not None:
            self._status.update(words)
        elif now - self._told_at >= PROGRESS_SECONDS:
            self._told_at = now
            self.console.print(words, markup=False)
