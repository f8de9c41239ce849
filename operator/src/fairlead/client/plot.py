"""A picture of a load: panels with a common time axis, stacked, written as a PNG.

matplotlib is an extra (`pip install 'fairlead[plot]'`), imported only here and only when a plot is asked for.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.client.load_generator import LoadSample
from fairlead.client.report import percentile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_SLICES = 60
"""Slices of time that percentiles and ratios are taken over, at most."""
PER_SLICE = 8
"""Requests in a slice, on the average, where there are too few for so many slices: fewer have no percentiles."""
_SHORTEST = 1e-6
"""Seconds; a logarithmic axis has no zero."""
_ENOUGH = 3
"""Powers of ten on an axis that need no ticks between them."""

Panel = Callable[["Axes"], None]
"""Draws one panel: values over seconds since the load began."""


class PlotUnavailable(Exception):
    """There is no matplotlib; the text says how to get it."""


def require_matplotlib() -> None:
    """Raises PlotUnavailable now rather than after the work."""
    try:
        import matplotlib  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise PlotUnavailable("plots need matplotlib: pip install 'fairlead[plot]'") from error


def draw(path: Path, panels: Sequence[Panel], *, title: str = "") -> None:
    """Writes the PNG. Raises PlotUnavailable, or OSError where the file cannot be written."""
    drawn = picture(panels, title=title)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, format="png", dpi=110)


def picture(panels: Sequence[Panel], *, title: str = "") -> "Figure":
    """One above the other, the first the highest. Raises PlotUnavailable."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heights = [1.8, *[1.0] * (len(panels) - 1)]
    figure = Figure(figsize=(11, 1.9 * sum(heights) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)  # no window, no global state: pyplot would have both
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axis, panel in zip(axes, panels, strict=True):
        panel(axis)
        axis.grid(visible=True, alpha=0.3)
        if axis.get_legend_handles_labels()[0]:  # beside the panel: nothing is drawn there
            axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small", frameon=False)
    figure.align_ylabels(axes)
    axes[-1].set_xlabel("seconds since the load began")
    if title:
        figure.suptitle(title)
    return figure


def first_tokens(
    axis: "Axes", samples: Sequence[LoadSample], target_seconds: float | None = None, others: Sequence[float] = ()
) -> None:
    """Times to first token on a logarithmic axis. `target_seconds`: what they should stay below; None = there is no
    such. `others`: more durations that the axis has to hold."""
    answered = [(sample.due, sample.ttft_seconds) for sample in samples if sample.ttft_seconds is not None]
    lost = [sample.due for sample in samples if sample.error is not None]
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
    if target_seconds is not None:
        label = f"target {duration(target_seconds)}"
        axis.axhline(target_seconds, color="tab:red", linestyle="--", linewidth=1.2, label=label)
        others = [*others, target_seconds]
    if durations := [*(ttft for _, ttft in answered), *others]:
        ticks = raster(durations)
        tens = [tick for tick in ticks if math.isclose(tick, 10.0 ** round(math.log10(tick)))]
        named = tens if len(tens) >= _ENOUGH else ticks
        axis.set_yscale("log")
        axis.set_ylim(ticks[0] / 1.1, ticks[-1] * 1.1)
        axis.set_yticks(named, [duration(tick) for tick in named])
        axis.set_yticks([], minor=True)
    else:
        axis.set_yticks([])
    axis.set_ylabel("TTFT")
    title = f"Time to first token, from when a request was due; {len(lost)} rejected or failed"
    axis.set_title(title, fontsize="medium")


def cached_tokens(axis: "Axes", samples: Sequence[LoadSample]) -> None:
    """Shares of the prompts, in percent."""
    completed = [sample for sample in samples if sample.is_completed and sample.completion.num_prompt_tokens]
    shares = [(s.due, 100 * s.completion.num_cached_tokens / s.completion.num_prompt_tokens) for s in completed]
    if shares:
        middles, values = zip(*((middle, sum(each) / len(each)) for middle, each in sliced(shares)), strict=True)
        axis.plot(middles, values, color="tab:purple")
    axis.set_ylim(-3, 103)
    axis.set_ylabel("cached, %")
    axis.set_title("Prompt tokens that came from a cache", fontsize="medium")


def duration(seconds: float) -> str:
    """As people say it: `0.5 ms`, `20 ms`, `1 s`."""
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


def raster(durations: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten, from at or below the least of `durations` to at or above the greatest; at least
    two."""
    least, greatest = max(_SHORTEST, min(durations)), max(_SHORTEST, *durations)
    exponents = range(math.floor(math.log10(least)) - 1, math.ceil(math.log10(greatest)) + 2)
    every = [step * 10.0**exponent for exponent in exponents for step in (1, 2, 5)]
    first = max(index for index, tick in enumerate(every) if tick <= least)
    last = min(index for index, tick in enumerate(every) if tick >= greatest)
    return every[first : max(last, first + 1) + 1]


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
