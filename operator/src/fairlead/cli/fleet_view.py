"""A fleet at one moment: for a terminal (`renderable`), as plain lines (`lines`), for programs (`to_json`). Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fairlead.cli.fleet_state import FleetView, ModelView, ReplicaStage, ReplicaView
from fairlead.cli.report_table import NOTHING, share, short

_COLOURS = {
    ReplicaStage.READY: "green",
    ReplicaStage.HANGING: "red",
    ReplicaStage.STARTING: "yellow",
    ReplicaStage.DRAINING: "magenta",
}
_COLUMNS = ("REPLICAS", "WANTED", "QUEUE", "RUNNING", "ARRIVALS", "TTFT P50", "P90", "CACHED", "TOKENS/S")
_REPLICA_COLUMNS = ("replica", "stage", "running", "waiting", "KV use", "full step")


def renderable(view: FleetView) -> RenderableType:
    """Each model's figures, below them the autoscaler's sentence and its replicas. Fits 80 columns: what is longer goes
    on in the next line."""
    parts: list[RenderableType] = []
    if not view.models:
        parts.append(Text("There is no LLMDeployment. kubectl apply -f examples/01-dinghy.yaml makes one."))
    for model in view.models:
        figures, (arrivals, *live) = _table(_COLUMNS), _live_cells(model)
        counts = _number(model.desired), _number(model.waiting), _number(model.running)
        figures.add_row(_counts(model), *counts, arrivals if model.figures is None else f"{arrivals}/s", *live)
        parts += [Text(model.key, style="bold"), figures, _sentence(model.sentence, "italic")]
        if model.progress:
            parts.append(_sentence(model.progress, "italic"))
        if model.trouble:
            parts.append(_sentence(model.trouble, "yellow"))
        replicas = _table(_REPLICA_COLUMNS)
        for replica in model.replicas:
            stage, *cells = _replica_cells(replica)
            replicas.add_row(replica.name, Text(stage, style=_COLOURS[replica.stage]), *cells)
        parts += [replicas] if model.replicas else []
    if view.note:
        parts.append(Text(view.note, style="yellow"))
    return Group(*parts)


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
    """Arrivals, TTFT p50 and p90, cached, tokens per second; without signals only what the status says of them."""
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
    """Words on the left, numbers on the right. Where there is too little room, words go on in the next line."""
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
