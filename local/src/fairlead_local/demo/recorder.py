"""The fleet during the demo: moments for the plot, the live view, decisions between moments, patience."""

import asyncio
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.live import Live

from fairlead.cli.fleet_view import DrawnView, FleetView, ModelView, ReplicaStage, model_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What the fleet was like at one time."""

    time: float
    """Seconds since the load began; negative = before."""
    ready: int
    starting: int = 0
    draining: int = 0
    wanted: int | None = None
    """Replicas that the autoscaler wants; None = it has not said."""
    waiting: int = 0
    """Requests in the gateways."""
    running: int = 0
    """Requests with a replica."""


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """Another number of replicas is wanted from `time` on."""

    time: float
    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.before} → {self.after}"


def decisions(moments: Sequence[Moment]) -> list[ScalingDecision]:
    """Where the number that is wanted changed. The first one heard of is no decision: it was there before."""
    found: list[ScalingDecision] = []
    wanted: int | None = None
    for moment in moments:
        if wanted is not None and moment.wanted is not None and moment.wanted != wanted:
            found.append(ScalingDecision(moment.time, wanted, moment.wanted))
        wanted = wanted if moment.wanted is None else moment.wanted
    return found


def rows_apart(times: Sequence[float], gap: float) -> list[int]:
    """Rows of the labels at `times`, which ascend: labels of one row are at least `gap` apart. Rows count from 0; each
    label takes the lowest row with room."""
    ends: list[float] = []
    rows = []
    for time in times:
        row = next((row for row, end in enumerate(ends) if time >= end), len(ends))
        if row == len(ends):
            ends.append(time)
        ends[row] = time + gap
        rows.append(row)
    return rows


LOOK_SECONDS = 0.25
SAY_SECONDS = 5.0
"""Without a terminal a line comes this often, and whenever replicas or the autoscaler's sentence change."""


class FleetRecorder:
    """`run` it as a task while the demo goes on; `moments` are on the clock of the event loop."""

    def __init__(self, view: Callable[[], FleetView], key: str, console: Console) -> None:
        """`key`: which LLMDeployment, as `namespace/name`."""
        self._view = view
        self._key = key
        self._console = console
        self.moments: list[Moment] = []

    @property
    def model(self) -> ModelView | None:
        """As it is now; None = there is none."""
        return self._view().model(self._key)

    async def run(self) -> None:
        """Until cancelled: in place on a terminal, line by line elsewhere."""
        if not self._console.is_terminal:
            await self._say()
            return
        with Live(console=self._console, auto_refresh=False) as live:
            while True:
                self._look()
                live.update(DrawnView(self._view()), refresh=True)
                await asyncio.sleep(LOOK_SECONDS)

    async def _say(self) -> None:
        said, said_at = ("", ""), float("-inf")
        while True:
            model = self._look()
            now = asyncio.get_running_loop().time()
            if model is not None and (news(model) != said or now - said_at >= SAY_SECONDS):
                self._console.print(f"  {model_words(model)}", markup=False, soft_wrap=True)
                if news(model)[1] != said[1]:
                    self._console.print(f"    autoscaler: {model.sentence}", markup=False, soft_wrap=True)
                said, said_at = news(model), now
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self) -> ModelView | None:
        model = self.model
        if model is not None:
            self.moments.append(moment(model, asyncio.get_running_loop().time()))
        return model


def news(model: ModelView) -> tuple[str, str]:
    """Values whose change is worth a line at once: counts of replicas, and the wanted number."""
    counts = "/".join(str(model.num(stage)) for stage in ReplicaStage)
    return counts, str(model.desired)


def moment(model: ModelView, time: float) -> Moment:
    """For the plot."""
    return Moment(
        time=time,
        ready=model.num(ReplicaStage.READY),
        starting=model.num(ReplicaStage.STARTING) + model.num(ReplicaStage.FAILING),
        draining=model.num(ReplicaStage.DRAINING),
        wanted=model.desired,
        waiting=model.waiting or 0,
        running=model.running or 0,
    )


def shifted(moments: Sequence[Moment], start: float) -> list[Moment]:
    """The moments with `start` as time 0."""
    return [replace(each, time=each.time - start) for each in moments]


def stretches(moments: Sequence[Moment]) -> Iterator[tuple[int, float, float]]:
    """How many replicas were ready, from when and until when."""
    began = 0
    for index, each in enumerate(moments):
        is_last = index + 1 == len(moments)
        if is_last or moments[index + 1].ready != each.ready:
            yield each.ready, moments[began].time, (each if is_last else moments[index + 1]).time
            began = index + 1


def replicas_over_time(moments: Sequence[Moment]) -> str:
    """In words: `1 (0–12 s) → 2 (12–60 s)`."""
    return " → ".join(f"{ready} ({began:.0f}–{ended:.0f} s)" for ready, began, ended in stretches(moments))


QUIET_SECONDS = 180.0
"""Nothing has moved for so long: what is waited for will not come."""
MOST_ANSWERS = 60
"""Answers that count as progress while replicas stay unchanged; enough for the autoscaler to decide at any speed."""


class Patience:
    """Patience with one wait; call `is_over` at every look."""

    def __init__(self, now: float) -> None:
        self._moved_at = now
        self._seen: Hashable = None
        self._answers = self._first = 0

    def is_over(self, now: float, seen: Hashable, num_answered: int = 0) -> bool:
        """Whether neither `seen` has changed for long, nor requests that count as progress were answered."""
        if seen != self._seen:
            self._seen, self._moved_at = seen, now
            self._first = self._answers = num_answered
        elif self._answers < num_answered <= self._first + MOST_ANSWERS:
            self._answers, self._moved_at = num_answered, now
        return now - self._moved_at > QUIET_SECONDS
