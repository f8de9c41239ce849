"""The picture of the demo: panels of the load and of the fleet, with scaling decisions marked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairlead.client.load_generator import LoadSample
from fairlead.client.plot import Panel, cached_tokens, first_tokens
from fairlead_local.demo.recorder import Moment, ScalingDecision, decisions, rows_apart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAD_SECONDS = 5.0
"""How much of the time before the load is drawn."""
_FEW = 8
"""Most replicas with a tick each; more replicas get automatic ticks."""
_LABEL_SHARE = 0.075
"""Of the width: room that the label of a decision takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is drawn."""

    samples: Sequence[LoadSample]
    moments: Sequence[Moment]
    """At least one."""
    target_seconds: float | None = None
    """What times to first token should stay below; None = there is no such."""
    from_zero: LoadSample | None = None
    """One more request, which found no replica; None = there was none."""

    @property
    def decisions(self) -> list[ScalingDecision]:
        """In the time that is drawn."""
        return [decision for decision in decisions(self.moments) if decision.time >= -LEAD_SECONDS]

    @property
    def span(self) -> tuple[float, float]:
        """From when until when is drawn."""
        last = max(self.moments[-1].time, *(sample.due for sample in self.samples), 0.0)
        return max(-LEAD_SECONDS, min(0.0, self.moments[0].time)), last + LEAD_SECONDS


def panels(scene: Scene) -> list[Panel]:
    """For `fairlead.client.plot.draw`."""

    def marked(panel: Callable[["Axes", Scene], None]) -> Panel:
        def drawn(axis: "Axes") -> None:
            panel(axis, scene)
            for decision in scene.decisions:
                axis.axvline(decision.time, color="black", linestyle=":", linewidth=1, zorder=1)
            axis.set_xlim(*scene.span)

        return drawn

    return [marked(each) for each in (_first_tokens, _replicas, _requests)] + [
        marked(lambda axis, scene: cached_tokens(axis, scene.samples))
    ]


def _first_tokens(axis: "Axes", scene: Scene) -> None:
    if scene.from_zero is None or scene.from_zero.ttft_seconds is None:
        first_tokens(axis, scene.samples, scene.target_seconds)
        return
    due, ttft = scene.from_zero.due, scene.from_zero.ttft_seconds
    first_tokens(axis, scene.samples, scene.target_seconds, others=[ttft])
    axis.plot(
        due, ttft, "*", color="tab:purple", markersize=15, markeredgecolor="white", label="request from zero", zorder=3
    )
    axis.annotate(
        f"from zero: {ttft:.1f} s",
        (due, ttft),
        xytext=(-9, 0),
        textcoords="offset points",
        ha="right",
        va="center",
        color="tab:purple",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )


def _replicas(axis: "Axes", scene: Scene) -> None:
    """Stacked areas, whose top is the number of replicas; decisions are named above."""
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
    first, last = scene.span
    rows = rows_apart([decision.time for decision in scene.decisions], _LABEL_SHARE * (last - first))
    for decision, row in zip(scene.decisions, rows, strict=True):
        axis.text(
            decision.time,
            most * (1.25 + 0.3 * row),
            str(decision),
            ha="center",
            va="center",
            bbox={"facecolor": "white", "edgecolor": "black", "linewidth": 0.6, "boxstyle": "round,pad=0.2"},
        )
    axis.set_ylim(0, most * (1.42 + 0.3 * max(rows, default=-1)))
    if most <= _FEW:
        axis.set_yticks(range(int(most) + 1))
    axis.set_ylabel("replicas")
    axis.set_title("Replicas, and what the autoscaler decided", fontsize="medium")


def _requests(axis: "Axes", scene: Scene) -> None:
    times = [moment.time for moment in scene.moments]
    for name, colour in (("running", "tab:blue"), ("waiting", "tab:orange")):
        figures = [getattr(moment, name) for moment in scene.moments]
        axis.step(times, figures, where="post", color=colour, label=name)
    axis.set_ylim(bottom=0)
    axis.yaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]  # a MaxNLocator on linear axes
    axis.set_ylabel("requests")
    axis.set_title("Requests in the gateways", fontsize="medium")
