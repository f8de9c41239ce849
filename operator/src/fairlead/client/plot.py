"""A picture of a load: times to first token as they came, and what the fleet did meanwhile. Writes one PNG.

matplotlib is an extra (`pip install 'fairlead[plot]'`), imported only here and only when a plot is asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.client.load import Sample
from fairlead.client.report import percentile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUM_SLICES = 60
"""Slices of time that percentiles and ratios are taken over."""


class PlotUnavailable(Exception):
    """There is no matplotlib; the text says how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What the fleet was like at one time."""

    time: float
    """Seconds since the load began; negative = before."""
    ready: int
    starting: int = 0
    draining: int = 0
    waiting: int = 0
    """Requests in the gateways."""
    running: int = 0
    """Requests with a replica."""


def require_matplotlib() -> None:
    """Raises PlotUnavailable now rather than after the work."""
    try:
        import matplotlib  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise PlotUnavailable("plots need matplotlib: pip install 'fairlead[plot]'") from error


def draw(path: Path, samples: Sequence[Sample], moments: Sequence[Moment] = (), *, title: str = "") -> None:
    """Writes the PNG. Raises PlotUnavailable, or OSError where the file cannot be written."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [_first_tokens, _cache] if not moments else [_first_tokens, _cache, _replicas, _requests]
    figure = Figure(figsize=(10, 2.4 * len(panels) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)  # no window, no global state: pyplot would have both
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, panel in zip(axes, panels, strict=True):
        panel(axis, samples, moments)
        axis.grid(visible=True, alpha=0.3)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(loc="upper right", fontsize="small")
    axes[-1].set_xlabel("seconds since the load began")
    _save(figure, path, title)


def _save(figure: "Figure", path: Path, title: str) -> None:
    if title:
        figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=110)


def _first_tokens(axis: "Axes", samples: Sequence[Sample], moments: Sequence[Moment]) -> None:
    answered = [(sample.due, sample.ttft_seconds) for sample in samples if sample.ttft_seconds is not None]
    if answered:
        axis.plot(*zip(*answered, strict=True), ".", color="tab:blue", alpha=0.35, markersize=4, label="one request")
        middles = [middle for middle, _ in sliced(answered)]
        for percent, colour in ((50, "tab:green"), (90, "tab:orange")):
            figures = [percentile(values, percent) for _, values in sliced(answered)]
            axis.plot(middles, figures, color=colour, label=f"p{percent}")
        axis.set_yscale("log")
    lost = [sample.due for sample in samples if sample.error is not None]
    for due in lost:
        axis.axvline(due, color="tab:red", alpha=0.4, linewidth=1)
    axis.set_ylabel("TTFT, s")
    axis.set_title(
        f"time to first token, from when a request was due; {len(lost)} rejected or failed", fontsize="small"
    )


def _cache(axis: "Axes", samples: Sequence[Sample], moments: Sequence[Moment]) -> None:
    completed = [sample for sample in samples if sample.is_completed and sample.completion.num_prompt_tokens]
    shares = [(s.due, s.completion.num_cached_tokens / s.completion.num_prompt_tokens) for s in completed]
    if shares:
        middles, values = zip(*((middle, sum(each) / len(each)) for middle, each in sliced(shares)), strict=True)
        axis.plot(middles, values, color="tab:purple")
    axis.set_ylim(-0.03, 1.03)
    axis.set_ylabel("share")
    axis.set_title("prompt tokens that came from a cache", fontsize="small")


def _replicas(axis: "Axes", samples: Sequence[Sample], moments: Sequence[Moment]) -> None:
    times = [moment.time for moment in moments]
    for name, colour in (("ready", "tab:green"), ("starting", "tab:orange"), ("draining", "tab:red")):
        axis.step(times, [getattr(moment, name) for moment in moments], where="post", color=colour, label=name)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("replicas")
    axis.set_title("replicas", fontsize="small")


def _requests(axis: "Axes", samples: Sequence[Sample], moments: Sequence[Moment]) -> None:
    times = [moment.time for moment in moments]
    axis.step(times, [moment.running for moment in moments], where="post", color="tab:blue", label="running")
    axis.step(times, [moment.waiting for moment in moments], where="post", color="tab:orange", label="waiting")
    axis.set_ylim(bottom=0)
    axis.set_ylabel("requests")
    axis.set_title("requests in the gateways", fontsize="small")


def sliced(points: Sequence[tuple[float, float]], number: int = NUM_SLICES) -> list[tuple[float, list[float]]]:
    """(time, value) pairs → the middles of equal slices of time and the values in them; empty slices are left out."""
    first, last = min(time for time, _ in points), max(time for time, _ in points)
    width = (last - first) / number or 1.0
    slices: dict[int, list[float]] = {}
    for time, value in points:
        slices.setdefault(min(number - 1, int((time - first) / width)), []).append(value)
    return [(first + (index + 0.5) * width, slices[index]) for index in sorted(slices)]
