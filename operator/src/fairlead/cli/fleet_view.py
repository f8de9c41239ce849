"""A fleet at one moment: for a terminal (`DrawnView`), as plain lines (`lines`), for programs (`to_json`). Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fairlead.api.conditions import ConditionType, Reason, find_condition, wrong_condition
from fairlead.api.signals_message import ReplicaSignals
from fairlead.cli.report_table import NOTHING, share, short
from fairlead.demand.buckets import Buckets
from fairlead.demand.readings import STALE_SECONDS, GatewayWindow, Readings, newest_loads
from fairlead.fleet.pods import ReplicaPods, is_stuck, owner_of, replicas_of
from fairlead.kube.client import JsonObject
from fairlead.kube.watch import Key, key_of
from fairlead.routing.predictor import step_seconds

WINDOW_SECONDS = 10.0
"""What rates and percentiles are taken over."""
UNSEEN = "no operator has seen it yet: `fairlead status` says whether one looks after its namespace"


class ReplicaStage(StrEnum):
    """How far a replica is."""

    READY = "ready"
    HANGING = "hanging"
    """Ready, by its pod, and hanging in a step."""
    STARTING = "starting"
    FAILING = "failing"
    """Not ready, and its container was started twice or more."""
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """One model over all reporting gateways. None = nothing to measure."""

    waiting: int
    """Requests that wait in the gateways."""
    running: int
    """Requests with a replica."""
    arrivals_per_second: float | None
    output_tokens_per_second: float | None
    ttft_p50_seconds: float | None
    """From arrival to first token."""
    ttft_p90_seconds: float | None
    cached_ratio: float | None
    """Predicted share of cached prompt tokens, of dispatched requests."""
    replicas: dict[str, ReplicaSignals] = field(default_factory=dict)
    """By the pod's uid: the newest word on each."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica. `load`: None = no gateway has fresh news."""

    name: str
    stage: ReplicaStage
    load: ReplicaSignals | None = None

    @property
    def kv_ratio(self) -> float | None:
        """Share of KV cache held by running requests."""
        if self.load is None or not self.load.kv_blocks_total:
            return None
        return 1 - self.load.kv_blocks_free / self.load.kv_blocks_total

    @property
    def step_seconds(self) -> float | None:
        """Cost of a step with all slots decoding and the present cache; None = not learnt yet."""
        if self.load is None or not self.load.step_cost.is_known:
            return None
        return step_seconds(self.load.step_cost, running=self.load.max_num_seqs, kv_tokens=self.load.kv_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """One LLMDeployment."""

    key: str
    """`namespace/name`."""
    desired: int | None
    """Replicas that are wanted; None before the operator has said."""
    replicas: tuple[ReplicaView, ...]
    """Ready ones first, then by name."""
    figures: ModelFigures | None
    """None where no gateway could be heard."""
    reported: Mapping[str, Any]
    """`status.scaling.signals`: the operator's own, older figures."""
    sentence: str
    """The autoscaler's last one; without it, why the model is or is not Ready."""
    progress: str = ""
    """Progress of a replica's download; empty = none, or part of `sentence`."""
    trouble: str = ""
    """Something that needs a person, such as a failing replica; empty = nothing, or part of `sentence`."""

    def num(self, stage: ReplicaStage) -> int:
        """Replicas in this stage."""
        return sum(1 for replica in self.replicas if replica.stage is stage)

    @property
    def waiting(self) -> int | None:
        """Requests that wait in the gateways; None = unknown."""
        return self.figures.waiting if self.figures is not None else self.reported.get("queue")

    @property
    def running(self) -> int | None:
        """Requests with a replica; None = unknown."""
        return self.figures.running if self.figures is not None else self.reported.get("running")


@dataclass(frozen=True, slots=True)
class FleetView:
    """Everything at one moment."""

    models: tuple[ModelView, ...]
    note: str = ""
    """What is to be known about the figures; empty = they are live and complete."""

    def model(self, key: str) -> ModelView | None:
        """The one LLMDeployment; None = there is none."""
        return next((model for model in self.models if model.key == key), None)


def fleet_view(deployments: Iterable[Mapping[str, Any]], pods: Iterable[JsonObject], readings: Readings) -> FleetView:
    """`pods`: of engines, whichever LLMDeployment they belong to."""
    by_owner: dict[Key, list[JsonObject]] = {}
    for pod in pods:
        by_owner.setdefault(owner_of(pod), []).append(pod)
    models = []
    for body in sorted(deployments, key=key_of):
        owner = key_of(body)
        models.append(_model(body, replicas_of(by_owner.get(owner, ())), figures(readings, "/".join(owner))))
    note, num_speaking = "", len(speaking(readings))
    num_gateways = len(readings.windows) + readings.num_missing
    if not num_gateways:
        note = "no gateway is ready: figures are from the objects' status"
    elif not num_speaking:
        note = "the gateways' signals cannot be reached from here: figures are from the objects' status, seconds old"
    elif num_speaking < num_gateways:
        note = f"{num_gateways - num_speaking} of {num_gateways} gateways cannot be heard: figures lack theirs"
    return FleetView(tuple(models), note)


def speaking(readings: Readings) -> list[GatewayWindow]:
    """Gateways that have said something lately."""
    return [window for window in readings.windows if readings.time - window.latest.time < STALE_SECONDS]


def is_measured(readings: Readings) -> bool:
    """Whether every reporting gateway has sent two lines, for rates."""
    windows = speaking(readings)
    return bool(windows) and all(window.span("", WINDOW_SECONDS).seconds > 0 for window in windows)


def figures(readings: Readings, model: str) -> ModelFigures | None:
    """Of `namespace/name`; None where no gateway speaks of it."""
    windows = [window for window in speaking(readings) if model in window.latest.line.models]
    if not windows:
        return None
    spans = [window.span(model, WINDOW_SECONDS) for window in windows]
    ttft = Buckets.seconds()
    for span in spans:
        ttft = ttft.plus(span.buckets("ttft"))
    prompt, uncached = (sum(span.count(name) for span in spans) for name in ("prompt_tokens", "uncached_prompt_tokens"))

    def per_second(name: str) -> float | None:
        """None where every gateway has spoken but once: nothing can be compared yet."""
        measured = [span for span in spans if span.seconds > 0]
        return sum(span.count(name) / span.seconds for span in measured) if measured else None

    return ModelFigures(
        waiting=sum(span.now.waiting for span in spans),
        running=sum(span.now.running for span in spans),
        arrivals_per_second=per_second("num_arrivals"),
        output_tokens_per_second=per_second("output_tokens"),
        ttft_p50_seconds=ttft.percentile(50),
        ttft_p90_seconds=ttft.percentile(90),
        cached_ratio=max(0.0, 1 - uncached / prompt) if prompt else None,
        replicas={uid: each.load for uid, each in newest_loads((w.latest for w in windows), model).items()},
    )


def _model(body: Mapping[str, Any], found: Iterable[ReplicaPods], seen: ModelFigures | None) -> ModelView:
    status = body.get("status") or {}
    scaling = status.get("scaling") or {}
    loads = seen.replicas if seen is not None else {}
    ready, progressing = (find_condition(status, kind) for kind in (ConditionType.READY, ConditionType.PROGRESSING))
    sentence = str(scaling.get("reason") or ready.get("message") or "")
    trouble = str(wrong_condition(status).get("message") or "")
    is_downloading = progressing.get("reason") == Reason.DOWNLOADING
    progress = str(progressing.get("message") or "") if is_downloading else ""
    replicas = (_replica(each, loads.get(each.uid)) for each in found if not each.is_finished)
    return ModelView(
        key="/".join(key_of(body)),
        desired=status.get("desiredReplicas"),
        replicas=tuple(sorted(replicas, key=lambda each: (list(ReplicaStage).index(each.stage), each.name))),
        figures=seen,
        reported=scaling.get("signals") or {},
        sentence=sentence or UNSEEN,
        progress="" if progress in sentence else progress,
        trouble="" if trouble in sentence else trouble,
    )


def _replica(replica: ReplicaPods, load: ReplicaSignals | None) -> ReplicaView:
    if replica.is_terminating or (load is not None and load.draining):
        stage = ReplicaStage.DRAINING
    else:
        ready = ReplicaStage.HANGING if load is not None and load.hangs else ReplicaStage.READY
        coming = ReplicaStage.FAILING if any(map(is_stuck, replica.pods)) else ReplicaStage.STARTING
        stage = ready if replica.ready_since is not None else coming
    return ReplicaView(replica.name, stage, load)


_COLOURS = {
    ReplicaStage.READY: "green",
    ReplicaStage.HANGING: "red",
    ReplicaStage.STARTING: "yellow",
    ReplicaStage.FAILING: "red",
    ReplicaStage.DRAINING: "magenta",
}
_COLUMNS = ("REPLICAS", "WANTED", "QUEUE", "RUNNING", "ARRIVALS", "TTFT P50", "P90", "CACHED", "TOKENS/S")
_REPLICA_COLUMNS = ("replica", "stage", "running", "waiting", "KV use", "full step")
_TABLE_WIDTH = 100
"""Columns of a terminal from which figures stand in tables."""
_BETWEEN = " · "
"""Between the figures of a line."""


@dataclass(frozen=True, slots=True)
class DrawnView:
    """A view for a terminal: each model's figures, the autoscaler's sentence, and replicas. Tables where there is room
    for them, else lines that are broken between figures."""

    view: FleetView

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        has_room = options.max_width >= _TABLE_WIDTH
        if not self.view.models:
            yield Text("There is no LLMDeployment. kubectl apply -f examples/01-dinghy.yaml makes one.")
        for model in self.view.models:
            yield Text(model.key, style="bold")
            yield _figures_table(model) if has_room else _folded(Text(model_words(model)), options.max_width)
            yield _sentence(model.sentence, "italic")
            if model.progress:
                yield _sentence(model.progress, "italic")
            if model.trouble:
                yield _sentence(model.trouble, "yellow")
            if has_room and model.replicas:
                yield _replicas_table(model)
            for replica in () if has_room else model.replicas:
                words = Text(f"{replica.name}: ").append(replica_words(replica), _COLOURS[replica.stage])
                yield _folded(words, options.max_width)
        if self.view.note:
            yield Text(self.view.note, style="yellow")


def _figures_table(model: ModelView) -> Table:
    figures, (arrivals, *live) = _table(_COLUMNS), _live_cells(model)
    counts = _number(model.desired), _number(model.waiting), _number(model.running)
    figures.add_row(_counts(model), *counts, arrivals if model.figures is None else f"{arrivals}/s", *live)
    return figures


def _replicas_table(model: ModelView) -> Table:
    replicas = _table(_REPLICA_COLUMNS)
    for replica in model.replicas:
        stage, *cells = _replica_cells(replica)
        replicas.add_row(replica.name, Text(stage, style=_COLOURS[replica.stage]), *cells)
    return replicas


def _folded(words: Text, width: int) -> RenderableType:
    """A line of figures, broken between two figures where it is too long."""
    folded, room = Text(), width - 2
    for piece in words.split(_BETWEEN):
        if folded and len(folded.plain.rpartition("\n")[2]) + len(_BETWEEN) + len(piece) > room:
            folded.append("\n")
        elif folded:
            folded.append(_BETWEEN)
        folded.append_text(piece)
    return Padding(folded, (0, 0, 0, 1))


def lines(view: FleetView) -> Iterator[str]:
    """Without a terminal: one line per model, and one per replica."""
    if not view.models:
        yield "no LLMDeployment"
    for model in view.models:
        yield f"{model.key}: {model_words(model)}"
        yield f"  {model.sentence}"
        if model.progress:
            yield f"  {model.progress}"
        if model.trouble:
            yield f"  {model.trouble}"
        for replica in model.replicas:
            yield f"  {replica.name}: {replica_words(replica)}"
    if view.note:
        yield f"note: {view.note}"


def to_json(view: FleetView) -> dict[str, Any]:
    """The same figures under their own names: times in seconds, shares from 0 to 1, null = unknown."""
    models = []
    for model in view.models:
        namespace, _, name = model.key.partition("/")
        figures = {} if model.figures is None else asdict(model.figures)
        counts = {"waiting": model.waiting, "running": model.running, "desired": model.desired}
        words = {"sentence": model.sentence, "progress": model.progress, "trouble": model.trouble}
        replicas = [
            {"name": replica.name, "stage": str(replica.stage), "kv_ratio": replica.kv_ratio}
            | {"step_seconds": replica.step_seconds, "load": msgspec.to_builtins(replica.load)}
            for replica in model.replicas
        ]
        models.append({"namespace": namespace, "name": name} | figures | counts | words | {"replicas": replicas})
    return {"models": models, "note": view.note}


def model_words(model: ModelView) -> str:
    """Its figures in one line."""
    words = f"{_counts(model)}, {_number(model.desired)} wanted · queue {_number(model.waiting)}"
    words += f" · running {_number(model.running)}"
    arrivals, p50, p90, cached, tokens = _live_cells(model)
    if model.figures is not None:
        words += f" · {arrivals} requests/s · TTFT p50 {p50}, p90 {p90} · cached {cached} · {tokens} tokens/s"
    elif "ttft" in model.reported:
        words += f" · TTFT {p90}"
    return words


def replica_words(replica: ReplicaView) -> str:
    """One replica in one line."""
    stage, *figures = _replica_cells(replica)
    if replica.load is None:
        return stage
    running, waiting, kv, step = figures
    return f"{stage} · running {running} · waiting {waiting} · KV {kv} · full step {step}"


def _live_cells(model: ModelView) -> tuple[str, ...]:
    """Arrivals, TTFT p50 and p90, cached, tokens per second; without signals only the status' figures."""
    figures = model.figures
    if figures is None:
        return NOTHING, NOTHING, str(model.reported.get("ttft", NOTHING)), NOTHING, NOTHING
    return (
        _rate(figures.arrivals_per_second, 1),
        short(figures.ttft_p50_seconds),
        short(figures.ttft_p90_seconds),
        share(figures.cached_ratio),
        _rate(figures.output_tokens_per_second),
    )


def _table(columns: Sequence[str]) -> Table:
    """Words on the left, numbers on the right; words wrap where room is short."""
    table = Table(box=None, padding=(0, 1, 0, 1), header_style="dim")
    for column in columns:
        is_text = column in ("REPLICAS", "replica", "stage")
        table.add_column(column, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    return table


def _sentence(text: str, style: str) -> RenderableType:
    return Padding(Text(text, style=style, overflow="fold", no_wrap=False), (0, 0, 0, 1))


def _replica_cells(replica: ReplicaView) -> list[str]:
    stage, load = str(replica.stage), replica.load
    if load is None:
        return [stage, NOTHING, NOTHING, NOTHING, NOTHING]
    if replica.stage is ReplicaStage.HANGING:  # with how long it has been in its step
        stage += f" {load.step_age_seconds + load.age_seconds:.0f}s"
    running = f"{load.running}/{load.max_num_seqs}"
    return [stage, running, str(load.waiting), share(replica.kv_ratio), short(replica.step_seconds)]


def _counts(model: ModelView) -> str:
    words = [f"{model.num(ReplicaStage.READY)} ready"]
    words += [f"{number} {stage}" for stage in list(ReplicaStage)[1:] if (number := model.num(stage))]
    return ", ".join(words)


def _rate(value: float | None, digits: int = 0) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def _number(value: int | None) -> str:
    return NOTHING if value is None else str(value)
