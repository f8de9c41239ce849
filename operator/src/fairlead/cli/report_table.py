"""A load's report as tables for a terminal, and as plain JSON. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Column, Table

from fairlead.api.quantities import format_duration
from fairlead.client.load_generator import LoadSample
from fairlead.client.report import Goodput, Percentiles, Report

NOTHING = "–"


def report_table(report: Report, title: str) -> Table:
    """Two columns, name and value, in the order of interest."""
    outcomes = f"{report.num_completed} answered, {report.num_rejected} rejected (429), {report.num_failed} failed"
    if report.num_unfinished:
        outcomes += f", {report.num_unfinished} not finished"
    rates = f"{report.requests_per_second:.2f} requests/s, {report.output_tokens_per_second:.0f} output tokens/s"
    rows = [
        ("requests", f"{report.num_requests} in {report.seconds:.1f} s: {outcomes}"),
        ("first token (TTFT)", percentiles(report.ttft)),
        ("per further token (TPOT)", percentiles(report.tpot)),
        ("whole answer (latency)", percentiles(report.latency)),
        ("throughput", rates),
        ("cached prompt tokens", f"{share(report.cached_ratio)} of {report.prompt_tokens}"),
    ]
    seen = report.predictions
    if seen.num_cached:
        within = f"{share(seen.within_one_block_ratio)} within one block, of {seen.num_cached}"
        rows.append(("predicted cached tokens", within))
    if seen.num_ttft:
        rows.append(("predicted TTFT", f"median error {share(seen.ttft_median_error_ratio)}, of {seen.num_ttft}"))
    if report.goodput is not None:
        rows.append(("goodput", goodput_words(report.goodput)))
    if report.num_checked:
        rows.append(("right answers", f"{report.num_right} of {report.num_checked} with a known answer"))
    if report.by_replica:
        rows.append(("per replica", ", ".join(f"{name}: {number}" for name, number in report.by_replica.items())))
    rows += [(f"error: {kind}", str(number)) for kind, number in report.errors.items()]
    return facts_table(title, rows)


def facts_table(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Names and values. Narrow terminals break what is longer than a line, such as a pod's name, and cut nothing."""
    columns = Column("what", overflow="fold"), Column("how much", overflow="fold")
    table = Table(*columns, title=title, title_justify="left", show_header=False)
    for row in rows:
        table.add_row(*row)
    return table


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


def goodput_words(goodput: Goodput) -> str:
    """The objectives, and the share that met them."""
    wanted = goodput.objectives
    limits = [
        f"{name} ≤ {format_duration(limit)}"
        for name, limit in (("TTFT", wanted.ttft_seconds), ("TPOT", wanted.tpot_seconds))
        if limit is not None
    ]
    rate = f"{goodput.per_second:.2f} requests/s"
    return f"{share(goodput.ratio)} of all requests sent met {' and '.join(limits)}: {rate}"


def to_json(report: Report, samples: Sequence[LoadSample], arguments: dict[str, Any]) -> dict[str, Any]:
    """For other programs: arguments, report, and each request."""
    requests = [
        {
            "due": sample.due,
            "sent": sample.sent,
            "ended": sample.ended,
            "ttft_seconds": sample.ttft_seconds,
            "tpot_seconds": sample.completion.tpot_seconds,
            "prompt_tokens": sample.completion.num_prompt_tokens,
            "output_tokens": sample.completion.num_completion_tokens,
            "cached_tokens": sample.completion.num_cached_tokens,
            "predicted_cached_tokens": sample.completion.predicted_cached_tokens,
            "predicted_ttft_seconds": sample.completion.predicted_ttft_seconds,
            "replica": sample.completion.replica,
            "request_id": sample.completion.request_id,
            "right": sample.right,
            "error": None if sample.error is None else str(sample.error),
        }
        for sample in samples
    ]
    return {"arguments": arguments, "report": asdict(report), "requests": requests}
