"""The autoscaler without each of its rules: the benchmark's loads in virtual time, in Markdown.

    python operator/benchmarks/rules.py --seeds 4

Each row leaves out one rule, by the edit of one name in the source. Costs are replica-seconds, as a multiple of those
with all rules.
"""

import argparse
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any
from unittest.mock import patch

from fairlead.autoscaler import prediction
from fairlead.simulator.scaling.loads import HELD_OUT, TRACES, Trace
from fairlead.simulator.scaling.trial import Contender, TrialResult, play

FORECAST, AT_ONCE = prediction.forecast, {"ahead": 0.0}
EDITS: Mapping[str, tuple[str, Any]] = {
    "changes": ("fairlead.demand.arrivals.CHANGE_SECONDS", 1e12),
    "clumps": ("fairlead.demand.arrivals.Arrivals.clump", 1.0),
    "silence": ("fairlead.demand.arrivals.SILENCE", math.inf),
    "growth": ("fairlead.demand.record.grown", lambda *_: (0.0, 0.0)),
    "likely and possible": ("fairlead.demand.signals.Signals.careful", lambda signals: signals),
    "ahead": ("fairlead.autoscaler.prediction.forecast", lambda *given, **named: FORECAST(*given, **named | AT_ONCE)),
    "chance": ("fairlead.autoscaler.prediction.share_waiting", lambda *_, **load: float(is_over(**load))),
    "window": ("fairlead.autoscaler.want.LONGEST_WINDOW", 40.0),
    "late": ("fairlead.autoscaler.want._proved_late", lambda *_: ""),
    "regret": ("fairlead.autoscaler.want._regretted", lambda *_: ""),
}
"""By rule: the name in the source, and what takes its place."""


def is_over(*, per_second: float, slots: float, held: float) -> bool:
    """Whether a load exceeds all slots."""
    return per_second * held >= slots


def trial(rule: str, trace: Trace, seed: int) -> TrialResult:
    """One run without the rule; with all rules for an empty name."""
    if not rule:
        return play(trace, Contender(name=""), seed)
    name, instead = EDITS[rule]
    with patch(name, instead):
        return play(trace, Contender(name=""), seed)


def row(rule: str, results: Sequence[Sequence[TrialResult]], whole: Sequence[Sequence[TrialResult]]) -> str:
    """`results`: by load, of all seeds; `whole`: the same with all rules. The loads of `TRACES` come first."""
    cells = [rule or "all rules"]
    for part in (slice(len(TRACES)), slice(len(TRACES), None)):
        cost, before = (sum(each.replica_seconds for of in found[part] for each in of) for found in (results, whole))
        cells.append(f"{statistics.mean(map(attained, results[part])):.3f}, {cost / before:.2f}")
    cells.append(f"{sum(each.num_changes for of in results for each in of) / len(results[0]):.0f}")
    lost, worst = max((attained(whole[place]) - attained(results[place]), place) for place in range(len(whole)))
    told = f"{(*TRACES, *HELD_OUT)[worst].name}: {attained(results[worst]):.3f} for {attained(whole[worst]):.3f}"
    return "| " + " | ".join([*cells, told if lost >= 0.005 else "none of these"]) + " |"


def attained(results: Sequence[TrialResult]) -> float:
    return statistics.mean(each.attained for each in results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4, help="of each load")
    parser.add_argument("--rules", nargs="*", choices=EDITS, default=list(EDITS), help="only these")
    args = parser.parse_args()
    traces, seeds = (*TRACES, *HELD_OUT), range(args.seeds)
    print("| left out | eleven loads | five held out | changes | loses most |\n| --- | --- | --- | ---: | --- |")
    whole: list[list[TrialResult]] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for rule in ("", *args.rules):
            running = [[pool.submit(trial, rule, trace, seed) for seed in seeds] for trace in traces]
            results = [[each.result() for each in of] for of in running]
            whole = whole or results
            print(row(rule, results, whole), flush=True)


if __name__ == "__main__":
    main()
