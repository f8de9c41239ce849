"""What the fleet did while the demo ran: moments for the plot, and the live view of them."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from rich.console import Console
from rich.live import Live

from fairlead.cli.fleet_view import FleetView, ModelView, ReplicaStage, model_words, renderable
from fairlead_local.demo.timeline import Moment

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
                live.update(renderable(self._view()), refresh=True)
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
    """What is worth a line at once when it changes: the replicas, and what the autoscaler wants."""
    counts = "/".join(str(model.num(stage)) for stage in ReplicaStage)
    return counts, str(model.desired)


def moment(model: ModelView, time: float) -> Moment:
    """For the plot."""
    return Moment(
        time=time,
        ready=model.num(ReplicaStage.READY),
        starting=model.num(ReplicaStage.STARTING),
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
