"""A load's report as tables for a terminal, and as plain JSON. Pure."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from fairlead.api.durations import format_duration
from fairlead.client.load_generator import Sample
from fairlead.client.report import Percentiles, Report

NOTHING = "–"


def report_table(report: Report, title: str) -> Table:
    """Two columns: what, and how much."""
    rows = Table(title=title, title_justify="left", show_header=False)
    rows.add_column("what")
    rows.add_column("how much")
    for what, how_much in report_rows(report):
        rows.add_row(what, how_much)
    return rows


def report_rows(report: Report) -> list[tuple[str, str]]:
    """What to tell of a report, in the order people ask for it."""
    rows = [
        ("requests", f"{report.num_requests} in {report.seconds:.1f} s: {_outcomes(report)}"),
        ("first token (TTFT)", percentiles(report.ttft)),
        ("per further token (TPOT)", percentiles(report.tpot)),
        ("whole answer (latency)", percentiles(report.latency)),
        (
            "throughput",
            f"{report.requests_per_second:.2f} requests/s, {report.output_tokens_per_second:.0f} output tokens/s",
        ),
        ("cached prompt tokens", f"{share(report.cached_ratio)} of {report.prompt_tokens}"),
    ]
    seen = report.predictions
    if seen.num_cached:
        rows.append(
            ("predicted cached tokens", f"{share(seen.within_one_block_ratio)} within one block, of {seen.num_cached}")
        )
    if seen.num_ttft:
        rows.append(("predicted TTFT", f"median error {share(seen.ttft_median_error_ratio)}, of {seen.num_ttft}"))
    if report.goodput is not None:
        rows.append(("goodput", _goodput(report)))
    if report.num_checked:
        rows.append(("right answers", f"{report.num_right} of {report.num_checked} with a known answer"))
    if report.by_replica:
        rows.append(("per replica", ", ".join(f"{name}: {number}" for name, number in report.by_replica.items())))
    rows += [(f"error: {kind}", str(number)) for kind, number in report.errors.items()]
    return rows


def percentiles(values: Percentiles | None) -> str:
    """Of durations, in one line."""
    if values is None:
        return NOTHING
    shown = (("p50", values.p50), ("p90", values.p90), ("p99", values.p99), ("max", values.max))
    return ", ".join(f"{name} {short(seconds)}" for name, seconds in shown)


def short(seconds: float | None) -> str:
    """A duration with three digits or so: 3.42 ms, 120 ms, 4.20 s."""
    if seconds is None:
        return NOTHING
    if seconds < 0.01:
        return f"{seconds * 1000:.2f} ms"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def share(ratio: float | None) -> str:
    """A ratio in percent."""
    return NOTHING if ratio is None else f"{ratio * 100:.1f} %"


def to_json(report: Report, samples: Sequence[Sample], arguments: dict[str, Any]) -> dict[str, Any]:
    """Everything, for other programs: what was asked for, the report, and each request."""
    return {"arguments": arguments, "report": asdict(report), "requests": [_sample(sample) for sample in samples]}


def _outcomes(report: Report) -> str:
    words = [f"{report.num_completed} answered", f"{report.num_rejected} rejected (429)", f"{report.num_failed} failed"]
    return ", ".join([*words, f"{report.num_unfinished} not finished"] if report.num_unfinished else words)


def _goodput(report: Report) -> str:
    assert report.goodput is not None
    wanted = report.goodput.objectives
    limits = [
        f"{name} ≤ {format_duration(limit)}"
        for name, limit in (("TTFT", wanted.ttft_seconds), ("TPOT", wanted.tpot_seconds))
        if limit is not None
    ]
    rate = f"{report.goodput.per_second:.2f} requests/s"
    return f"{share(report.goodput.ratio)} of all requests sent met {' and '.join(limits)}: {rate}"


def _sample(sample: Sample) -> dict[str, Any]:
    completion = sample.completion
    return {
        "due": sample.due,
        "sent": sample.sent,
        "ended": sample.ended,
        "ttft_seconds": sample.ttft_seconds,
        "tpot_seconds": completion.tpot_seconds,
        "prompt_tokens": completion.num_prompt_tokens,
        "output_tokens": completion.num_completion_tokens,
        "cached_tokens": completion.num_cached_tokens,
        "predicted_cached_tokens": completion.predicted_cached_tokens,
        "predicted_ttft_seconds": completion.predicted_ttft_seconds,
        "replica": completion.replica,
        "request_id": completion.request_id,
        "right": sample.right,
        "error": None if sample.error is None else str(sample.error),
    }
