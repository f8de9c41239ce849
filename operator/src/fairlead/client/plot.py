"""A picture of a load: times to first token as they came, and what the fleet did meanwhile. Writes one PNG.

matplotlib is an extra (`pip install 'fairlead[plot]'`), imported only here and only when a plot is asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.client.duration_axis import duration, raster, ticks
from fairlead.client.load_generator import Sample
from fairlead.client.report import percentile
from fairlead.client.timeline import Decision, Moment, decisions, rows_apart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_SLICES = 60
"""Slices of time that percentiles and ratios are taken over, at most."""
PER_SLICE = 8
"""Requests in a slice, on the average, where there are too few for so many slices: fewer have no percentiles."""
LEAD_SECONDS = 5.0
"""How much of the time before the load is drawn."""
_FEW = 8
"""Replicas that have a tick each; there are none above them, where the decisions are named."""
_LABEL_SHARE = 0.075
"""Of the width: room that the label of a decision takes."""


class PlotUnavailable(Exception):
    """There is no matplotlib; the text says how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is drawn. Without moments only the requests are."""

    samples: Sequence[Sample]
    moments: Sequence[Moment] = ()
    target_seconds: float | None = None
    """What times to first token should stay below; None = there is no such."""
    from_zero: Sample | None = None
    """One more request, which found no replica; None = there was none."""


def require_matplotlib() -> None:
    """Raises PlotUnavailable now rather than after the work."""
    try:
        import matplotlib  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise PlotUnavailable("plots need matplotlib: pip install 'fairlead[plot]'") from error


def draw(path: Path, scene: Scene, *, title: str = "") -> None:
    """Writes the PNG. Raises PlotUnavailable, or OSError where the file cannot be written."""
    drawn = picture(scene, title=title)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, format="png", dpi=110)


def picture(scene: Scene, *, title: str = "") -> "Figure":
    """Panels of one time axis, one above the other. Raises PlotUnavailable."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [_first_tokens, _replicas, _requests, _cache] if scene.moments else [_first_tokens, _cache]
    heights = [1.8, *[1.0] * (len(panels) - 1)]
    figure = Figure(figsize=(11, 1.9 * sum(heights) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)  # no window, no global state: pyplot would have both
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axis, panel in zip(axes, panels, strict=True):
        panel(axis, scene)
        for decision in _decided(scene):
            axis.axvline(decision.time, color="black", linestyle=":", linewidth=1, zorder=1)
        axis.grid(visible=True, alpha=0.3)
        if axis.get_legend_handles_labels()[0]:  # beside the panel: nothing is drawn there
            axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small", frameon=False)
    figure.align_ylabels(axes)
    axes[-1].set_xlabel("seconds since the load began")
    if scene.moments:
        axes[-1].set_xlim(*_span(scene))
    if title:
        figure.suptitle(title)
    return figure


def _span(scene: Scene) -> tuple[float, float]:
    """From when until when is drawn."""
    last = max(scene.moments[-1].time, *(sample.due for sample in scene.samples), 0.0)
    return max(-LEAD_SECONDS, min(0.0, scene.moments[0].time)), last + LEAD_SECONDS


def _decided(scene: Scene) -> list[Decision]:
    """In the time that is drawn."""
    return [decision for decision in decisions(scene.moments) if decision.time >= -LEAD_SECONDS]


def _first_tokens(axis: "Axes", scene: Scene) -> None:
    answered = [(sample.due, sample.ttft_seconds) for sample in scene.samples if sample.ttft_seconds is not None]
    lost = [sample.due for sample in scene.samples if sample.error is not None]
    if answered:
        label = f"one request ({len(answered)})"
        axis.plot(*zip(*answered, strict=True), ".", color="tab:blue", alpha=0.4, markersize=5, label=label)
        middles = [middle for middle, _ in sliced(answered)]
        for percent, colour in ((50, "tab:green"), (90, "tab:orange")):
            figures = [percentile(values, percent) for _, values in sliced(answered)]
            axis.plot(middles, figures, color=colour, label=f"p{percent}")
    if lost:
        across = axis.get_xaxis_transform()
        label = f"rejected or failed ({len(lost)})"
        axis.vlines(lost, 0, 1, transform=across, color="tab:red", alpha=0.4, linewidth=1, label=label)
    if scene.target_seconds is not None:
        label = f"target {duration(scene.target_seconds)}"
        axis.axhline(scene.target_seconds, color="tab:red", linestyle="--", linewidth=1.2, label=label)
    _from_zero(axis, scene)
    _duration_axis(axis, [*(ttft for _, ttft in answered), *_marked(scene)])
    axis.set_ylabel("TTFT")
    title = f"Time to first token, from when a request was due; {len(lost)} rejected or failed"
    axis.set_title(title, fontsize="medium")


def _marked(scene: Scene) -> list[float]:
    """Durations other than those of the load that the axis has to hold."""
    zero = scene.from_zero.ttft_seconds if scene.from_zero is not None else None
    return [each for each in (scene.target_seconds, zero) if each is not None]


def _from_zero(axis: "Axes", scene: Scene) -> None:
    if scene.from_zero is None or scene.from_zero.ttft_seconds is None:
        return
    place = scene.from_zero.due, scene.from_zero.ttft_seconds
    axis.plot(
        *place, "*", color="tab:purple", markersize=15, markeredgecolor="white", label="request from zero", zorder=3
    )
    axis.annotate(
        f"from zero: {place[1]:.1f} s",
        place,
        xytext=(-9, 0),
        textcoords="offset points",
        ha="right",
        va="center",
        color="tab:purple",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )


def _duration_axis(axis: "Axes", durations: Sequence[float]) -> None:
    """A logarithmic one, whose ticks are plain words."""
    if not durations:
        axis.set_yticks([])
        return
    grid = raster(durations)
    axis.set_yscale("log")
    axis.set_ylim(grid[0] / 1.1, grid[-1] * 1.1)
    axis.set_yticks(ticks(grid), [duration(tick) for tick in ticks(grid)])
    axis.set_yticks([], minor=True)


def _cache(axis: "Axes", scene: Scene) -> None:
    completed = [sample for sample in scene.samples if sample.is_completed and sample.completion.num_prompt_tokens]
    shares = [(s.due, 100 * s.completion.num_cached_tokens / s.completion.num_prompt_tokens) for s in completed]
    if shares:
        middles, values = zip(*((middle, sum(each) / len(each)) for middle, each in sliced(shares)), strict=True)
        axis.plot(middles, values, color="tab:purple")
    axis.set_ylim(-3, 103)
    axis.set_ylabel("cached, %")
    axis.set_title("Prompt tokens that came from a cache", fontsize="medium")


def _replicas(axis: "Axes", scene: Scene) -> None:
    """Stacked, so that the top is how many there are; the decisions are named in the room above."""
    times = [moment.time for moment in scene.moments]
    below = [0.0] * len(times)
    for name, colour in (("ready", "tab:green"), ("starting", "tab:orange"), ("draining", "tab:red")):
        top = [low + getattr(moment, name) for low, moment in zip(below, scene.moments, strict=True)]
        axis.fill_between(times, below, top, step="post", color=colour, alpha=0.5, linewidth=0, label=name)
        below = top
    wanted = [float("nan") if moment.wanted is None else moment.wanted for moment in scene.moments]
    if any(moment.wanted is not None for moment in scene.moments):
        axis.step(times, wanted, where="post", color="black", linewidth=1.5, label="wanted")
    most = max([*below, *(moment.wanted or 0 for moment in scene.moments), 1.0])
    rows = _name_decisions(axis, scene, most)
    axis.set_ylim(0, most * (1.12 + 0.3 * rows))
    if most <= _FEW:
        axis.set_yticks(range(int(most) + 1))
    axis.set_ylabel("replicas")
    axis.set_title("Replicas, and what the autoscaler decided", fontsize="medium")


def _name_decisions(axis: "Axes", scene: Scene, most: float) -> int:
    """Names each above all bars; returns how many rows of labels that took."""
    taken = _decided(scene)
    first, last = _span(scene)
    rows = rows_apart([decision.time for decision in taken], _LABEL_SHARE * (last - first))
    for decision, row in zip(taken, rows, strict=True):
        axis.text(
            decision.time,
            most * (1.25 + 0.3 * row),
            str(decision),
            ha="center",
            va="center",
            bbox={"facecolor": "white", "edgecolor": "black", "linewidth": 0.6, "boxstyle": "round,pad=0.2"},
        )
    return max(rows, default=-1) + 1


def _requests(axis: "Axes", scene: Scene) -> None:
    times = [moment.time for moment in scene.moments]
    for name, colour in (("running", "tab:blue"), ("waiting", "tab:orange")):
        figures = [getattr(moment, name) for moment in scene.moments]
        axis.step(times, figures, where="post", color=colour, label=name)
    axis.set_ylim(bottom=0)
    axis.yaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]  # a MaxNLocator on linear axes
    axis.set_ylabel("requests")
    axis.set_title("Requests in the gateways", fontsize="medium")


def sliced(points: Sequence[tuple[float, float]], number: int | None = None) -> list[tuple[float, list[float]]]:
    """(time, value) pairs → the middles of equal slices of time and the values in them; empty slices are left out.
    `number`: of slices; None = as many as the points are enough for."""
    number = number or max(1, min(MAX_SLICES, len(points) // PER_SLICE))
    first, last = min(time for time, _ in points), max(time for time, _ in points)
    width = (last - first) / number or 1.0
    slices: dict[int, list[float]] = {}
    for time, value in points:
        slices.setdefault(min(number - 1, int((time - first) / width)), []).append(value)
    return [(first + (index + 0.5) * width, slices[index]) for index in sorted(slices)]
