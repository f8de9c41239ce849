"""The picture of `fairlead simulate autoscaling`: attained share over cost of each policy; for a single trace, also the
load and the replicas over time. An SVG or a PNG, by the name of the file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.cli.simulate_report import Runs
from fairlead.client.plot import require_matplotlib
from fairlead.simulator.scaling.estimate import Summary, overall
from fairlead.simulator.scaling.loads import Trace
from fairlead.simulator.scaling.policies import KNOWING, ORACLE, OURS
from fairlead.simulator.scaling.trial import Contender

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".svg", ".png")
MOST_LINES = 5
"""Policies whose replicas are drawn over time: more lines cannot be told apart."""
_OURS, _RIVAL, _KNOWING = "#1f6f8b", "#d98a29", "#7a6aa8"
_POINTS = 600
"""Of a load over time."""


def draw(path: Path, runs: Runs, contenders: Sequence[Contender], traces: Sequence[Trace]) -> None:
    """Writes the picture. Raises PlotUnavailable, or OSError where the file cannot be written."""
    require_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    is_single = len(traces) == 1
    figure = Figure(figsize=(11, 11 if is_single else 6), layout="constrained")
    FigureCanvasAgg(figure)  # no window, no global state: pyplot would have both
    axes = figure.subplots(3 if is_single else 1, 1, squeeze=False)[:, 0]
    names = [each.name for each in traces]
    _field(axes[0], {each.name: overall([runs[name, each.name] for name in names]) for each in contenders}, contenders)
    axes[0].set_title(f"{names[0]}" if is_single else f"{len(traces)} traces", fontsize="medium")
    if is_single:
        _load(axes[1], traces[0])
        _replicas(axes[2], runs, contenders, traces[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "fairlead"}):  # the same figures make the same file
        dated = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, format=path.suffix[1:], dpi=110, metadata=dated)


def _field(axis: "Axes", found: Mapping[str, Summary], contenders: Sequence[Contender]) -> None:
    """Each contender's number stands at its point, and its name in the legend: names would cover one another."""
    oracle = found.get(ORACLE)
    unit = 1.0 if oracle is None else oracle.replica_seconds.mean or 1.0
    labels: dict[tuple[float, float], list[str]] = {}
    for number, each in enumerate(contenders, 1):
        own, size = found[each.name], 8 if each is contenders[0] else 5
        colour = _OURS if each.policy == OURS else _KNOWING if each.policy in KNOWING else _RIVAL
        at = own.replica_seconds.mean / unit
        axis.errorbar(
            at, own.attained.mean, xerr=(own.replica_seconds.half or 0.0) / unit, yerr=own.attained.half or 0.0,
            label=f"{number} {each.name}", fmt="o", color=colour, markersize=size, elinewidth=1, capsize=2,
        )  # fmt: skip
        labels.setdefault((round(at, 2), round(own.attained.mean, 2)), []).append(str(number))
    for place, numbers in labels.items():
        axis.annotate(", ".join(numbers), place, xytext=(6, 4), textcoords="offset points", fontsize="small")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small", frameon=False)
    axis.margins(0.1)
    axis.set_xlabel("replica-seconds" if oracle is None else f"replica-seconds, in those of {ORACLE}")
    axis.set_ylabel("first tokens within the target")
    axis.grid(visible=True, alpha=0.3)


def _load(axis: "Axes", trace: Trace) -> None:
    times = [trace.end * each / _POINTS for each in range(_POINTS)]
    axis.step(times, [trace.capacities(time) for time in times], where="post", color="tab:gray")
    axis.set_ylabel("load, in capacities of a replica")
    axis.set_ylim(bottom=0.0)
    axis.grid(visible=True, alpha=0.3)


def _replicas(axis: "Axes", runs: Runs, contenders: Sequence[Contender], trace: Trace) -> None:
    """Of the first seed."""
    chosen = [*contenders[:MOST_LINES], *(each for each in contenders[MOST_LINES:] if each.policy == ORACLE)]
    for each in chosen:
        changes = runs[trace.name, each.name][0].replicas
        times, numbers = zip(*changes, strict=True)
        axis.step(
            [*times, trace.end], [*numbers, numbers[-1]], where="post", label=each.name,
            linewidth=2.0 if each is contenders[0] else 1.0,
        )  # fmt: skip
    axis.set_ylabel("replicas asked for")
    axis.set_xlabel("seconds")
    axis.set_ylim(bottom=0.0)
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small", frameon=False)
    axis.grid(visible=True, alpha=0.3)
