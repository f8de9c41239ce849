"""What `fairlead simulate autoscaling` found, as tables for people and as plain JSON. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from fairlead.cli.report_table import NOTHING, short
from fairlead.simulator.scaling.estimate import Estimate, RivalComparison, Summary, compare, overall, summary
from fairlead.simulator.scaling.policies import KNOWING, ORACLE
from fairlead.simulator.scaling.trial import Contender, TrialResult

Runs = Mapping[tuple[str, str], Sequence[TrialResult]]
"""By names of trace and contender, the results in the order of seeds."""


@dataclass(frozen=True, slots=True)
class FigureTable:
    """A table before it is written: a title, heads, and rows of cells."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def rich(self) -> Table:
        """For a terminal."""
        table = Table(title=self.title, title_justify="left")
        for place, head in enumerate(self.heads):
            is_text = place in (0, len(self.heads) - 1)
            table.add_column(head, justify="left" if is_text else "right", no_wrap=place == 0)
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """With the title as a heading."""
        lines = [f"| {' | '.join(self.heads)} |", "|" + "---|" * len(self.heads)]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        return f"### {self.title}\n\n" + "\n".join(lines) + "\n"


def grids(runs: Runs, contenders: Sequence[Contender], traces: Sequence[str]) -> list[FigureTable]:
    """A table per trace, and first, where there are several, one over all of them. The first contender is ours, beside
    whom the others are put."""
    each = [_trace_grid(trace, runs, contenders) for trace in traces]
    return each if len(traces) == 1 else [_overall_grid(runs, contenders, traces), *each]


def _trace_grid(trace: str, runs: Runs, contenders: Sequence[Contender]) -> FigureTable:
    found = {each.name: summary(runs[trace, each.name]) for each in contenders}
    rows = [
        (*_cells(each.name, found), NOTHING if (p90 := found[each.name].ttft_p90) is None else short(p90.mean),
         verdict(each, contenders[0], runs, trace))
        for each in contenders
    ]  # fmt: skip
    heads = (*_HEADS, "first token, p90", f"beside {contenders[0].name}")
    return FigureTable(trace, heads, tuple(rows))


_HEADS = ("policy", "within target", "replica-seconds", f"over {ORACLE}", "changes")


def _overall_grid(runs: Runs, contenders: Sequence[Contender], traces: Sequence[str]) -> FigureTable:
    found = {each.name: overall([runs[trace, each.name] for trace in traces]) for each in contenders}
    rows = []
    for each in contenders:
        words = []
        if each is not contenders[0] and each.policy not in KNOWING:
            compared = [compare(runs[trace, contenders[0].name], runs[trace, each.name]) for trace in traces]
            for text, picked in (
                ("wins on", [one for one in compared if one.is_better]),
                ("attains more for more on", [one for one in compared if one.is_dearer]),
            ):
                sure = sum(one.is_sure for one in picked)
                words += [f"{text} {len(picked)} ({sure} surely)"] if picked else []
        rows.append((*_cells(each.name, found), "; ".join(words)))
    return FigureTable(f"{len(traces)} traces: mean of shares, sums of the rest", (*_HEADS, "traces"), tuple(rows))


def _cells(name: str, found: Mapping[str, Summary]) -> tuple[str, ...]:
    own, oracle = found[name], found.get(ORACLE)
    ratio = NOTHING
    if oracle is not None and oracle.replica_seconds.mean:
        ratio = f"{own.replica_seconds.mean / oracle.replica_seconds.mean:.2f}"
    return (
        name, interval(own.attained, 3), interval(own.replica_seconds, 0), ratio, interval(own.num_changes, 1)
    )  # fmt: skip


def interval(value: Estimate, digits: int) -> str:
    """`0.937 ± 0.012`; without the interval where one seed says nothing of chance."""
    return f"{value.mean:.{digits}f}" + ("" if value.half is None else f" ± {value.half:.{digits}f}")


def verdict(contender: Contender, ours: Contender, runs: Runs, trace: str) -> str:
    """Whether a contender is better than ours on a trace; empty = it is not."""
    if contender is ours or contender.policy in KNOWING:
        return ""
    return comparison_words(compare(runs[trace, ours.name], runs[trace, contender.name]))


def comparison_words(found: RivalComparison) -> str:
    """`wins: +0.012 for 3 % less`; empty where ours is better, or neither is."""
    if not (found.is_better or found.is_dearer):
        return ""
    percent = round(100 * found.price.mean)
    price = "as much" if not percent else f"{abs(percent)} % {'more' if percent > 0 else 'less'}"
    words = f"{'wins' if found.is_better else 'attains more'}: {found.gain.mean:+.3f} for {price}"
    return words if found.is_sure else f"{words}, perhaps by chance"


def to_json(
    runs: Runs, contenders: Sequence[Contender], traces: Sequence[str], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """For other programs: arguments, and each contender's figures on each trace with those of every seed."""
    found = []
    for trace in traces:
        for each in contenders:
            results = runs[trace, each.name]
            found.append(
                {
                    "trace": trace,
                    "policy": each.name,
                    **asdict(summary(results)),
                    "verdict": verdict(each, contenders[0], runs, trace),
                    "seeds": [asdict(result) for result in results],
                }
            )
    return {"arguments": dict(arguments), "results": found}
