"""The pictures of a machine's page, as SVG."""

from pathlib import Path
from typing import Any

import matplotlib
import page
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

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
    entries = results["tables"]
    num_rows = -(-len(entries) // COLUMNS)
    drawn = figure(num_rows, COLUMNS)
    panels = drawn.subplots(num_rows, COLUMNS, squeeze=False).flat
    for panel, entry in zip(panels, entries, strict=False):
        names, medians, errors = [], [], []
        for name, figures, runs, _ in page.rows(entry):
            names.append(name)
            medians.append(figures.get("tokens_per_second", 0.0))
            measured = [run["tokens_per_second"] for run in runs] or [0.0]
            errors.append((medians[-1] - min(measured), max(measured) - medians[-1]))
        colours = [OURS_COLOUR if name.startswith(page.OURS) else PEER_COLOUR for name in names]
        panel.barh(names, medians, color=colours, xerr=list(zip(*errors, strict=True)), error_kw={"linewidth": 0.8})
        num_tokens = sum(request.num_outputs for request in page.WORKLOADS[entry["setting"]["workload"]].requests())
        panel.axvline(num_tokens / entry["roofline_seconds"], color="black", linestyle="--", linewidth=0.8)
        panel.invert_yaxis()
        panel.set_title(entry["name"], fontsize=8)
        panel.set_xlabel("output tokens/s; dashed: roofline")
    for panel in list(panels)[len(entries) :]:
        panel.set_axis_off()
    save(drawn, path)
