"""Our gateway beside other projects' routers: time to first token in front of the same simulated engines.

    make bench-routers            or    python operator/benchmarks/routers.py --runs 3 --docs docs/benchmarks

vllm-router and sglang-router come from PyPI and run with their default policy, `cache_aware`. Each load has fresh
engines (real prefix caches, simulated steps) and an open loop of seeded conversations; the order of the routers
rotates from run to run. With `--docs`, `routers.md` and `routers.svg` are written there.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter
from request_cost import process_cpu_seconds, spawned
from routing import machine, rotated

from fairlead.client.load_generator import LoadGenerator
from fairlead.client.openai import OpenAIClient, RequestFailed
from fairlead.client.report import Report, report
from fairlead.client.workload import ArrivalPhase, WorkloadKind, WorkloadShape, arrival_times, conversations
from fairlead_testing.real_servers import free_port

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements" / "routers.txt"
OURS = "Fairlead"
PEERS = {"vllm-router": (), "sglang-router": ("launch",)}
"""Program → its first words."""
ROUTERS = (OURS, *PEERS)
COLOURS = {OURS: "#1f6f8b", "vllm-router": "#d98a29", "sglang-router": "#7a6aa8"}
MODEL = "fake"
STEP_COST = "base=0.004,prefill_token=5e-5,decode_seq=5e-4"
ENGINE = ("--max-num-seqs", "32", "--num-kv-blocks", "1500", "--max-model-len", "8192", "--num-tokens", "32")
SHAPE = WorkloadShape(prefix_tokens=1000, output_tokens=32, ignore_eos=True)
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """Arrivals of one kind at a number of engines."""

    name: str
    kind: WorkloadKind
    num_engines: int
    rate: float
    """Conversations per second."""
    num_prefixes: int = 1
    """Different shared prefixes, of those that share any."""


LOADS = (
    Load("3 engines, 12 shared prefixes", WorkloadKind.SHARED_PREFIX, 3, 3.0, 12),
    Load("3 engines, talks of 4 turns", WorkloadKind.MULTI_TURN, 3, 2.0),
    Load("8 engines, 32 shared prefixes", WorkloadKind.SHARED_PREFIX, 8, 8.0, 32),
    Load("3 engines, nothing shared", WorkloadKind.UNSHARED, 3, 3.0),
)


@dataclass(frozen=True, slots=True)
class Result:
    """One load on one router."""

    load: str
    router: str
    run: int
    report: Report
    first_tokens: tuple[float, ...]
    """Seconds from when each request was due."""
    cpu_ms: float
    """Of the router's processes, per request."""


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of arrivals per load (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals and questions (default: %(default)s)")
    parser.add_argument("--routers", nargs="+", default=list(ROUTERS), choices=ROUTERS)
    parser.add_argument("--loads", type=int, default=len(LOADS), help="only the first so many (default: all)")
    parser.add_argument("--docs", type=Path, help="folder for routers.md and routers.svg")
    return parser.parse_args(argv)


def prepare(folder: Path) -> Path:
    """The folder of the other routers' programs; they are installed where they are missing."""
    if not all((folder / "bin" / peer).exists() for peer in PEERS):
        print(f"installing {', '.join(PEERS)} into {folder}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "-q"]
        subprocess.run([*pip, "-r", str(REQUIREMENTS)], check=True)
    return folder / "bin"


async def started(stack: AsyncExitStack, router: str, engines: list[str], programs: Path) -> tuple[str, int]:
    """Base URL and process id of a router that serves. Raises TimeoutError, and SystemExit where the router ended."""
    if router == OURS:
        options = [option for number, url in enumerate(engines) for option in ("--engine", f"engine-{number}={url}")]
        told = await spawned(stack, ROOT, "static_gateway", *options)
        url = f"http://127.0.0.1:{told['port']}"
        await _answers(url)
        return url, told["pid"]
    port, metrics = free_port(), free_port()
    log = stack.enter_context((programs.parent / f"{router}.log").open("wb"))
    process = await asyncio.create_subprocess_exec(
        str(programs / router), *PEERS[router], "--host", "127.0.0.1", "--port", str(port),
        "--prometheus-port", str(metrics), "--worker-urls", *engines, stdout=log, stderr=log,
    )  # fmt: skip
    stack.callback(end, process)
    url = f"http://127.0.0.1:{port}"
    serving, ending = asyncio.create_task(_answers(url)), asyncio.create_task(process.wait())
    await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
    if ending.done():
        raise SystemExit(f"{router} ended by itself with {ending.result()}: see {log.name}")
    await serving
    return url, process.pid


def end(process: asyncio.subprocess.Process) -> None:
    """Sends SIGTERM, unless the process has ended by itself."""
    if process.returncode is None:
        process.terminate()


async def _answers(url: str) -> None:
    """Returns once a chat is answered there. Raises TimeoutError."""
    async with asyncio.timeout(PATIENCE_SECONDS), OpenAIClient(f"{url}/v1") as client:
        while True:
            try:
                await client.chat(MODEL, [{"role": "user", "content": "Ahoy"}], max_tokens=1)
                return
            except (RequestFailed, OSError):
                await asyncio.sleep(0.2)


async def play(load: Load, router: str, run: int, args: argparse.Namespace, programs: Path) -> Result:
    """One load on fresh engines."""
    async with AsyncExitStack() as stack:
        names = [f"engine-{number}" for number in range(load.num_engines)]
        starting = (
            spawned(stack, ROOT, "fake_engine", "--name", name, "--step-cost", STEP_COST, *ENGINE) for name in names
        )
        engines = [str(told["url"]) for told in await asyncio.gather(*starting)]
        url, pid = await started(stack, router, engines, programs)
        before = process_cpu_seconds(pid)
        async with OpenAIClient(f"{url}/v1") as client:
            generator = LoadGenerator(client, MODEL)
            seed = args.seed + run
            talks = conversations(load.kind, replace(SHAPE, num_prefixes=load.num_prefixes), seed)
            await generator.open_loop(talks, arrival_times([ArrivalPhase(load.rate, args.seconds)], seed))
        cpu_seconds = process_cpu_seconds(pid) - before
        first = tuple(each.ttft_seconds for each in generator.samples if each.ttft_seconds is not None)
        found = report(generator.samples, generator.seconds)
        return Result(load.name, router, run, found, first, cpu_seconds / max(found.num_requests, 1) * 1000)


def of(results: list[Result], load: str, router: str) -> list[Result]:
    return [result for result in results if (result.load, result.router) == (load, router)]


def row(found: list[Result]) -> list[str]:
    """The medians of some runs: first tokens, cached share, failed requests, CPU time."""
    times = [result.report.ttft for result in found if result.report.ttft]
    cached = [result.report.cached_ratio for result in found if result.report.cached_ratio is not None]
    return [
        f"{statistics.median(each.p50 for each in times) * 1000:.0f}",
        f"{statistics.median(each.p90 for each in times) * 1000:.0f}",
        f"{statistics.median(cached):.1%}" if cached else "not said",
        str(sum(result.report.num_failed + result.report.num_rejected for result in found)),
        f"{statistics.median(result.cpu_ms for result in found):.1f}",
    ]


def page(results: list[Result], args: argparse.Namespace) -> str:
    """The Markdown page: what ran, and a table of medians."""
    versions = f"vllm-router {pinned('vllm-router')} and sglang-router {pinned('sglang-router')}"
    conditions = (
        f"Fairlead {version('fairlead')}, {versions} with their defaults (`cache_aware`) in front of the same "
        "simulated engines: byte tokens, a real prefix cache of 1,500 blocks of 16 tokens, 32 slots, steps of "
        f"`{STEP_COST}` seconds. Prompts of about 4,000 tokens, {SHAPE.output_tokens} out, {args.seconds:g} s of "
        f"arrivals per load, fresh engines for each; medians of {args.runs} runs, seed {args.seed}. {machine()}."
    )
    lines = [
        "# The gateway beside other routers",
        "",
        *textwrap.wrap(conditions, 120, break_on_hyphens=False),
        "",
        "    make bench-routers",
        "",
        "![Share of first tokens over time](routers.svg)",
        "",
        "| Load | Router | First token p50, ms | p90, ms | Cached | Failed | CPU per request, ms |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for load in dict.fromkeys(result.load for result in results):
        lines += [f"| {load} | {router} | {' | '.join(row(of(results, load, router)))} |" for router in args.routers]
    return "\n".join([*lines, ""])


def pinned(package: str) -> str:
    found = (line.split("==") for line in REQUIREMENTS.read_text().splitlines() if "==" in line)
    return next(number for name, number in found if name == package)


def draw(results: list[Result], routers: list[str], path: Path) -> None:
    """Share of requests whose first token had come, over time: a panel per load."""
    matplotlib.rcParams.update({"svg.hashsalt": "fairlead", "svg.fonttype": "none", "font.size": 8})
    loads = list(dict.fromkeys(result.load for result in results))
    figure = Figure(figsize=(2.7 * len(loads), 2.4), layout="constrained", facecolor="white")
    FigureCanvasSVG(figure)
    panels = figure.subplots(1, len(loads), sharex=True, sharey=True, squeeze=False).flat
    for panel, load in zip(panels, loads, strict=True):
        for router in routers:
            times = sorted(1000 * each for result in of(results, load, router) for each in result.first_tokens)
            shares = [(index + 1) / len(times) for index in range(len(times))]
            panel.step(times, shares, where="post", color=COLOURS[router], label=router, linewidth=1.4)
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter(ScalarFormatter())
        panel.set_title(load, fontsize=8)
        panel.set_xlabel("ms to the first token")
        panel.grid(alpha=0.25)
    figure.axes[0].set_ylabel("share of requests")
    figure.axes[0].legend(loc="lower right", fontsize=7, frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None})


async def bench(args: argparse.Namespace, programs: Path) -> list[Result]:
    """Every load on every router, told as it ends."""
    results = []
    for run in range(args.runs):
        for load in LOADS[: args.loads]:
            for router in rotated(args.routers, run):
                results.append(await play(load, router, run, args, programs))
                print(f"run {run + 1}: {load.name}: {router}: {' '.join(row(results[-1:]))}", flush=True)
    return results


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status; 130 when it was interrupted."""
    args = arguments(argv)
    needs_peers = any(router in PEERS for router in args.routers)
    programs = prepare(ROOT / "bench-out" / "routers") if needs_peers else ROOT
    try:
        results = asyncio.run(bench(args, programs))
    except KeyboardInterrupt:
        return 130
    text = page(results, args)
    if args.docs:
        (args.docs / "routers.md").write_text(text, encoding="utf-8")
        draw(results, args.routers, args.docs / "routers.svg")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
