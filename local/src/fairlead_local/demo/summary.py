"""What the demo shows at its end: every step with what was seen, then the load in figures. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from fairlead.cli.report_table import percentiles, share
from fairlead.client.report import Report
from fairlead.demand.buckets import Buckets
from fairlead_local.demo.recorder import Moment, replicas_over_time


@dataclass(frozen=True, slots=True)
class DemoStep:
    """One step of the story."""

    title: str
    detail: str
    """What was seen."""
    held: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What came of the load."""

    whole: Report
    """All of it."""
    steady: Report
    """Of requests that were due while the load was high and the replicas had been added."""
    ttft_errors: Buckets
    """Relative errors of predictions during the steady load, as measured by the gateways; empty = not read."""
    moments: Sequence[Moment]
    """Times count from the load's begin."""


def demo_table(steps: Sequence[DemoStep], load: RunFigures | None) -> Table:
    """One table: the steps, then the load, where there was one."""
    rows = Table(title="The demo", title_justify="left")
    for column in ("", "held", "seconds", "what was seen"):
        rows.add_column(column, justify="right" if column == "seconds" else "left", overflow="fold")
    for step in steps:
        rows.add_row(step.title, "yes" if step.held else "NO", f"{step.seconds:.1f}", step.detail)
    if load is not None:
        rows.add_section()
        for what, how_much in load_rows(load):
            rows.add_row(what, "", "", how_much)
    return rows


def load_rows(load: RunFigures) -> list[tuple[str, str]]:
    """The load in words."""
    whole, steady = load.whole, load.steady
    seen, cached = whole.predictions, "the gateway made none"
    if seen.num_cached:
        cached = f"{share(seen.within_one_block_ratio)} within one block, of {seen.num_cached}"
    errors = f"{whole.num_failed} failed, {whole.num_rejected} rejected, {whole.num_unfinished} not finished"
    if whole.errors:
        errors += ": " + ", ".join(f"{number} × {kind}" for kind, number in whole.errors.items())
    return [
        ("requests", f"{whole.num_requests} in {whole.seconds:.0f} s, {whole.output_tokens_per_second:.0f} tokens/s"),
        ("errors", errors),
        ("TTFT", f"{percentiles(whole.ttft)}; steady {percentiles(steady.ttft)}"),
        ("cached prompt tokens", f"{share(whole.cached_ratio)}; steady {share(steady.cached_ratio)}"),
        ("predicted cached tokens", cached),
        ("predicted TTFT", _ttft_predictions(load)),
        ("per replica", ", ".join(f"{name}: {number}" for name, number in whole.by_replica.items())),
        ("replicas over time", replicas_over_time(load.moments)),
    ]


def _ttft_predictions(load: RunFigures) -> str:
    """The gateway's own measure where there is one: a client cannot take the network out of its own."""
    if median := load.ttft_errors.percentile(50):
        return f"median error {share(median)} under steady load, of {load.ttft_errors.total}"
    seen = load.steady.predictions
    if not seen.num_ttft:
        return "the gateway made none"
    return (
        f"median error {share(seen.ttft_median_error_ratio)} under steady load, of {seen.num_ttft}, as clients see it"
    )
