"""The pictures of a machine's page, as SVG."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import msgspec
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from measurement import floats
from results import OURS, rows
from roofline import Rates, Work
from workload import WORKLOADS

from fairlead_common.wire.messages import StepCost
from fairlead_common.wire.profiles import Measured
from fairlead_engine.characterise.picture import decode_seconds, most_common, prompt_seconds

COLUMNS = 2
OURS_COLOUR, PEER_COLOUR = "#1f6f8b", "#b8b8b8"


def figure(rows: int, columns: int) -> Figure:
    """An empty one whose SVG is the same for the same figures."""
    matplotlib.rcParams.update({"svg.hashsalt": "fairlead", "svg.fonttype": "none", "font.size": 8})
    drawn = Figure(figsize=(4.6 * columns, 2.1 * rows), layout="constrained")
    FigureCanvasSVG(drawn)
    return drawn


def save(drawn: Figure, path: Path) -> None:
    drawn.savefig(path, format="svg", metadata={"Date": None})


def rates(results: dict[str, Any], path: Path) -> None:
    """Bars of output tokens per second with their range, a panel per setting, and the roofline."""
    entries = [entry for entry in results["tables"] if any(row["runs"] for row in entry["engines"])]
    num_rows = -(-len(entries) // COLUMNS)
    drawn = figure(num_rows, COLUMNS)
    panels = list(drawn.subplots(num_rows, COLUMNS, squeeze=False).flat)
    for panel, entry in zip(panels, entries, strict=False):
        names, medians, errors = [], [], []
        for (name, figures, runs, _), row in zip(rows(entry), entry["engines"], strict=True):
            dtype = row["engine"]["dtype"]
            names.append(name if dtype == floats(results["machine"]) else f"{name} {dtype}")
            medians.append(figures.get("tokens_per_second", 0.0))
            measured = [run["tokens_per_second"] for run in runs] or [0.0]
            errors.append((medians[-1] - min(measured), max(measured) - medians[-1]))
        colours = [OURS_COLOUR if name.startswith(OURS) else PEER_COLOUR for name in names]
        panel.barh(names, medians, color=colours, xerr=list(zip(*errors, strict=True)), error_kw={"linewidth": 0.8})
        num_tokens = sum(request.num_outputs for request in WORKLOADS[entry["setting"]["workload"]].requests())
        panel.axvline(num_tokens / entry["roofline_seconds"], color="black", linestyle="--", linewidth=0.8)
        panel.invert_yaxis()
        panel.set_title(entry["name"], fontsize=8)
        panel.set_xlabel("output tokens/s; dashed: roofline")
    for panel in panels[len(entries) :]:
        panel.set_axis_off()
    save(drawn, path)


def growth(grown: dict[str, Any], results: dict[str, Any], workload: str, path: Path) -> None:
    """Measured times over batch, prompt and output as dots; the fitted step cost and the roofline as lines."""
    cost = msgspec.convert(grown["step_cost"], StepCost)
    measured = msgspec.convert(grown["measured"], list[Measured])
    work = Work.of(WORKLOADS[workload].model, floats(results["machine"]))
    rates = Rates(**results["rates"]["1"])
    budget = grown["max_num_batched_tokens"]
    batches = most_common(measured)
    context = batches[0].prompt_tokens + batches[0].output_tokens / 2
    alone = [each for each in measured if each.batch == 1]

    drawn = figure(1, 3)
    by_batch, by_prompt, by_context = drawn.subplots(1, 3)
    _growth(by_batch, "requests at once", "ms per output token",
            [(each.batch, each.tpot_seconds) for each in batches], lambda batch: decode_seconds(cost, batch, context),
            lambda batch: work.decode_seconds(rates, round(batch), round(batch * context)))  # fmt: skip
    _growth(by_prompt, "tokens of a single prompt", "ms to the first token",
            [(each.prompt_tokens, each.ttft_seconds) for each in alone],
            lambda tokens: prompt_seconds(cost, tokens, budget),
            lambda tokens: work.prefill_seconds(rates, round(tokens)))  # fmt: skip
    _growth(by_context, "context of a single request", "ms per output token",
            [(each.prompt_tokens + each.output_tokens / 2, each.tpot_seconds) for each in alone],
            lambda tokens: decode_seconds(cost, 1, tokens),
            lambda tokens: work.decode_seconds(rates, 1, round(tokens)))  # fmt: skip
    save(drawn, path)


def _growth(
    panel: Any,
    below: str,
    beside: str,
    points: list[tuple[float, float]],
    fitted: Callable[[float], float],
    roofline: Callable[[float], float],
) -> None:
    right = max(x for x, _ in points)
    line = [right * step / 50 for step in range(1, 51)]
    panel.plot([x for x, _ in points], [1e3 * y for _, y in points], "o", color=OURS_COLOUR, ms=3, label="measured")
    panel.plot(line, [1e3 * fitted(x) for x in line], color="#c0504d", linewidth=1, label="fitted")
    panel.plot(line, [1e3 * roofline(x) for x in line], "--", color="black", linewidth=0.8, label="roofline")
    panel.set_xlabel(below)
    panel.set_ylabel(beside)
    panel.set_ylim(bottom=0)
    panel.legend(frameon=False)
