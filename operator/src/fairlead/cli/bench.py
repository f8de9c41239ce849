"""`fairlead bench`: a load on a gateway or OpenAI server, the progress, and the results."""

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path

from rich.console import Console

from fairlead.cli.options import (
    UsageError,
    add_gateway,
    api_key,
    at_least,
    base_url,
    chosen_model,
    duration,
    number,
    tell,
    text,
)
from fairlead.cli.report_table import report_table, short, to_json
from fairlead.client.load_generator import LoadGenerator
from fairlead.client.openai import OpenAIClient, RequestFailed
from fairlead.client.plot import PlotUnavailable, cached_tokens, draw, first_tokens, require_matplotlib
from fairlead.client.report import DEFAULT_BLOCK_SIZE, Objectives, report
from fairlead.client.workload import (
    ArrivalPhase,
    Conversation,
    WorkloadKind,
    WorkloadShape,
    arrival_times,
    context_tokens,
    conversations,
)
from fairlead_common.http.addresses import without_credentials

DEFAULT_CONCURRENCY = 8
DEFAULT_NUM_REQUESTS = 100
"""Where neither --duration nor --num-requests says when to stop."""
MOST_PER_SECOND = 100_000
"""Arrivals; no generator sends more."""
TOO_LONG = "context_length_exceeded"
"""The code of such an error, everywhere."""
PROGRESS_SECONDS = 2.0
"""Seconds between lines of progress outside a terminal."""
EPILOG = """\
exit status: 0 when every request was answered or rejected with 429 (a server that says "try later" is doing its
work, and goodput counts it as a miss); 1 when any failed in another way; 2 for wrong arguments; 130 after Ctrl-C,
which prints what was measured until then.
Times count from when a request was due, so waiting to be sent is not hidden.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    add_gateway(parser)
    pace, workload, results = (parser.add_argument_group(title) for title in ("pace", "workload", "results"))
    pace.add_argument(
        "--mode",
        choices=("open", "closed"),
        help="open: requests arrive at --rate, whether or not answers come; closed: --concurrency at a time "
        "(default: open where there is a --rate)",
    )
    workload.add_argument(
        "--workload",
        choices=tuple(map(str, WorkloadKind)),
        default=str(WorkloadKind.SHARED_PREFIX),
        help="default: %(default)s",
    )
    sizes, fitting, whole = WorkloadShape(), "fewer where the model's context is small", at_least(1)
    unevenness = number(lambda given: 0 < given < math.inf, "is no burstiness: a number above 0, such as 0.5")
    # fmt: off
    for group, flag, kind, default, metavar, words in (
        (pace, "--rate", phases, None, "R", "arrivals per second on average: 4, or in phases: 2@30s,8@60s"),
        (pace, "--burstiness", unevenness, None, "B",
         "how unevenly they come: 1 = as in a Poisson process, less = in bursts, more = evenly (default: 1)"),
        (pace, "--concurrency", whole, None, "N", f"of a closed loop (default: {DEFAULT_CONCURRENCY})"),
        (pace, "--duration", duration, None, "TIME", "send nothing new after this long"),
        (pace, "--num-requests", whole, None, "N",
         f"send so many (default: {DEFAULT_NUM_REQUESTS}, where no duration is set)"),
        (pace, "--timeout", duration, 120.0, "TIME", "longest silence of a request (default: 2m)"),
        (workload, "--seed", int, 0, None, "of arrivals and questions (default: %(default)s)"),
        (workload, "--prefixes", whole, sizes.num_prefixes, "N",
         "different prefixes of shared-prefix (default: %(default)s)"),
        (workload, "--prefix-tokens", whole, None, "N",
         f"of each system message, about (default: {sizes.prefix_tokens}, {fitting})"),
        (workload, "--turns", whole, None, "N",
         f"questions per conversation of multi-turn (default: {sizes.num_turns}, {fitting})"),
        (workload, "--prompt", text, None, "TEXT", "the question of fixed"),
        (workload, "--output-tokens", whole, None, "N", f"longest answer (default: {sizes.output_tokens}, {fitting})"),
        (results, "--slo-ttft", duration, None, "TIME", "goodput: longest time to the first token"),
        (results, "--slo-tpot", duration, None, "TIME", "goodput: longest time per further token"),
        (results, "--block-size", whole, DEFAULT_BLOCK_SIZE, "N",
         "tokens per KV block, for judging predictions (default: %(default)s)"),
        (results, "--output", Path, None, "FILE", "write report and requests as JSON; - = here"),
        (results, "--plot", Path, None, "FILE.png", "draw the requests over time"),
    ):
        group.add_argument(flag, type=kind, default=default, metavar=metavar, help=words)
    # fmt: on
    workload.add_argument(
        "--ignore-eos", action="store_true", help="let answers go on to exactly that (our engine and vLLM can)"
    )


def phases(given: str) -> tuple[ArrivalPhase, ...]:
    """`4`, or `RATE@TIME,RATE@TIME…`. The last phase without a time goes on for ever."""
    parts = [part.partition("@") for part in given.split(",")]
    try:
        found = [ArrivalPhase(float(rate), duration(time) if at else float("inf")) for rate, at, time in parts]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{given!r} is no rate: write 4, or phases such as 2@30s,8@60s") from error
    if any(phase.seconds == float("inf") for phase in found[:-1]):
        raise argparse.ArgumentTypeError(f"{given!r}: every phase but the last needs its time, as in 2@30s,8")
    if any(phase.rate > MOST_PER_SECOND for phase in found):
        raise argparse.ArgumentTypeError(
            f"{given!r}: at most {MOST_PER_SECOND}; --mode closed sends as fast as answers come"
        )
    if not any(phase.rate > 0 for phase in found):
        raise argparse.ArgumentTypeError(f"{given!r}: at this rate nothing ever arrives")
    return tuple(found)


def run(args: argparse.Namespace) -> int:
    """The exit statuses are in the epilog."""
    bench = Bench(args, Console(highlight=False), Console(stderr=True, highlight=False))
    try:
        bench.check()
        asyncio.run(bench.play())
    except KeyboardInterrupt:
        bench.console.print("Interrupted; so far:")
        bench.finish()
        return 130
    except (UsageError, PlotUnavailable) as error:
        tell(error)
        return 2
    except RequestFailed as error:
        tell(error, args.gateway)
        return 1
    return bench.finish()


class Bench:
    """One run: its arguments, the load, and the output."""

    def __init__(self, args: argparse.Namespace, console: Console, progress: Console) -> None:
        """`console`: for results; `progress`: for what is of the moment."""
        self.args = args
        self.console = console if str(args.output) != "-" else progress
        self.progress = progress
        self.load: LoadGenerator | None = None

    def check(self) -> None:
        """Completes the arguments. Raises UsageError, or PlotUnavailable before any work is done."""
        args = self.args
        args.workload = WorkloadKind(args.workload)
        args.mode = args.mode or ("open" if args.rate else "closed")
        if args.mode == "open" and not args.rate:
            raise UsageError("--mode open needs --rate", "how many requests arrive per second: --rate 4")
        if args.mode == "closed" and args.rate:
            raise UsageError("--rate goes with --mode open", "a closed loop is as fast as its answers: --concurrency 8")
        if args.mode == "closed" and args.burstiness:
            raise UsageError("--burstiness goes with --rate", "a closed loop sends when an answer has come")
        if args.mode == "open" and args.concurrency:
            raise UsageError("--concurrency goes with --mode closed", "leave it out, or leave --rate out")
        if args.prompt and args.workload is not WorkloadKind.FIXED:
            raise UsageError("--prompt goes with --workload fixed", "add --workload fixed, or leave --prompt out")
        ends = args.mode == "open" and args.rate[-1].seconds < float("inf")
        if args.num_requests is None and args.duration is None and not ends:
            args.num_requests = DEFAULT_NUM_REQUESTS
        if args.plot:
            require_matplotlib()
        for flag, path in (("--output", args.output), ("--plot", args.plot)):
            if path is None or str(path) == "-":
                continue
            try:  # rather now than after the work
                path.parent.mkdir(parents=True, exist_ok=True)
                path.open("ab").close()
            except OSError as error:
                sentence = f"{flag} {path}: it cannot be written: {error.strerror}"
                raise UsageError(sentence, "name another file") from error

    async def play(self) -> None:
        """Sends everything. Raises RequestFailed without a model to ask."""
        args = self.args
        key, url = api_key(), base_url(args.gateway)
        async with OpenAIClient(url, api_key=key, silence_seconds=args.timeout) as client:
            args.model = await chosen_model(client, args.model)
            known = await client.model(args.model)  # no server, or no such model, is better told once than per request
            shape = self._fit(known.max_model_len if known is not None else None)
            self.load = LoadGenerator(client, args.model, max_requests=args.num_requests)
            telling = asyncio.create_task(self._tell_progress(self.load))
            try:
                await self._send(self.load, conversations(args.workload, shape, args.seed))
            finally:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)

    async def _send(self, load: LoadGenerator, asked: Iterator[Conversation]) -> None:
        args = self.args
        if args.mode == "closed":
            concurrency = args.concurrency or DEFAULT_CONCURRENCY
            await load.closed_loop(asked, concurrency=concurrency, seconds=args.duration)
        else:
            ends = math.inf if args.duration is None else args.duration
            arrivals = arrival_times(args.rate, args.seed, burstiness=args.burstiness or 1.0)
            await load.open_loop(asked, takewhile(lambda due: due < ends, arrivals))

    def _fit(self, context: int | None) -> WorkloadShape:
        """Chooses open sizes to fit into the model's context. Raises UsageError."""
        args = self.args
        given = {size: getattr(args, name) for size, name in SIZES.items() if getattr(args, name) is not None}
        question = args.prompt or WorkloadShape().question
        asked = WorkloadShape(num_prefixes=args.prefixes, question=question, ignore_eos=args.ignore_eos, **given)
        shape = fitted(args.workload, asked, given, context)
        for size, name in SIZES.items():
            fitting = getattr(shape, size)
            if size not in given and fitting != getattr(WorkloadShape(), size):
                flag = name.replace("_", "-")
                self.progress.print(f"--{flag} {fitting}: the model's context is {context} tokens", markup=False)
            setattr(args, name, fitting)
        return shape

    async def _tell_progress(self, load: LoadGenerator) -> None:
        """In place on a terminal, a line now and then elsewhere."""
        while not self.progress.is_terminal:
            await asyncio.sleep(PROGRESS_SECONDS)
            self.progress.print(progress_line(load), markup=False)
        with self.progress.status("sending") as status:
            while True:
                await asyncio.sleep(1.0)
                status.update(progress_line(load))

    def finish(self) -> int:
        """Tells and writes what was measured; the exit status."""
        if self.load is None or not self.load.samples:
            self.console.print("nothing was sent")
            return 1
        args, samples = self.args, self.load.samples
        objectives = Objectives(ttft_seconds=args.slo_ttft, tpot_seconds=args.slo_tpot)
        found = report(samples, self.load.seconds, objectives=objectives, block_size=args.block_size)
        self.console.print(report_table(found, f"{args.model} at {without_credentials(args.gateway)}"))
        if any(sample.error is not None and sample.error.code == TOO_LONG for sample in samples):
            hint = "prompts were too long for the model's context: lower --prefix-tokens, --turns or --output-tokens"
            self.progress.print(f"hint: {hint}", markup=False)
        written = True
        if args.output:
            given = {key: value for key, value in vars(args).items() if key not in ("run", "command")}
            given["gateway"] = without_credentials(args.gateway)
            given["rate"] = [
                {"rate": phase.rate, "seconds": phase.seconds if math.isfinite(phase.seconds) else None}
                for phase in args.rate or ()
            ]
            text = json.dumps(to_json(found, samples, given), indent=1, default=str)
            write = sys.stdout.write if str(args.output) == "-" else partial(args.output.write_text, encoding="utf-8")
            written = self._written(args.output, lambda: write(text + "\n"))
        if args.plot:
            panels = (
                lambda axis: first_tokens(axis, samples, args.slo_ttft),
                lambda axis: cached_tokens(axis, samples),
            )
            title = f"fairlead bench: {args.model}, {args.workload}"
            if drawn := self._written(args.plot, lambda: draw(args.plot, panels, title=title)):
                self.console.print(f"plot: {args.plot}", markup=False)
            written = written and drawn
        return 1 if found.num_failed or not written else 0

    def _written(self, path: Path, write: Callable[[], object]) -> bool:
        """Whether the file was written; an error is printed, and other files are still written."""
        try:
            write()
        except OSError as error:
            self.progress.print(f"error: cannot write {path}: {error.strerror}", markup=False, soft_wrap=True)
            return False
        return True


SIZES = {"prefix_tokens": "prefix_tokens", "num_turns": "turns", "output_tokens": "output_tokens"}
"""Sizes limited by a model's context → their arguments, in the order of reduction."""


def fitted(kind: WorkloadKind, shape: WorkloadShape, given: Collection[str], context: int | None) -> WorkloadShape:
    """The shape with sizes not `given` halved until twice the tokens fit, as other tokenizers may need twice the
    dinghy's. Raises UsageError where given sizes cannot fit."""
    if context is None:
        return shape
    for size in SIZES:
        while size not in given and 2 * context_tokens(kind, shape) > context and getattr(shape, size) > 1:
            shape = replace(shape, **{size: getattr(shape, size) // 2})
    if (wanted := context_tokens(kind, shape)) > context:
        largest = max(SIZES, key=lambda size: (size in given, getattr(shape, size)))
        flag = f"--{SIZES[largest].replace('_', '-')} {getattr(shape, largest)}" if given else f"--workload {kind}"
        text = f"{flag} does not fit: a prompt and its answer come to about {wanted} tokens"
        raise UsageError(f"{text}, and the model's context is {context}", "ask for less, or serve the model with more")
    return shape


def progress_line(load: LoadGenerator) -> str:
    """How it is going."""
    so_far = report(load.samples, load.seconds)
    ttft = so_far.ttft
    words = (
        f"{so_far.seconds:.0f} s",
        f"{so_far.num_requests} sent",
        f"{so_far.num_completed} answered",
        f"{so_far.num_unfinished} under way",
        f"{so_far.num_rejected} rejected" if so_far.num_rejected else "",
        f"{so_far.num_failed} failed" if so_far.num_failed else "",
        f"TTFT p50 {short(ttft.p50)}, p90 {short(ttft.p90)}" if ttft is not None else "",
    )
    return " · ".join(filter(None, words))
