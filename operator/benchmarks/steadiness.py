"""Whether the autoscaler leaves a constant load alone, lets go of replicas, and is early: in virtual time, in Markdown.

    python operator/benchmarks/steadiness.py --hours 6 --window 10

One table each for loads that stay, for a fall from four replicas to a load of 0.2, and for the load of the demo. Loads
are in capacities of one replica, on the machines of `fairlead.simulator.scaling.loads`. The smallest number that keeps
the target is found by fleets of a fixed size under the same requests.
"""

import argparse
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from fairlead.api.llmdeployment import ScaleDown, ScalingTargets
from fairlead.simulator.scaling.loads import TRACES, Trace, step
from fairlead.simulator.scaling.trial import Contender, TrialResult, benchmark_spec, fleet_of, play, result

SIZES, SHARES = (1, 2, 5, 20), (0.3, 0.5, 0.7, 0.8, 0.9, 1.0)
TO_KEEP = ScalingTargets().percentile / 100.0
"""Share of first tokens within the target that a fleet is asked for."""
FALL, BEFORE_FALL = (3.5, 0.2), 300.0
"""The loads, and seconds for which the first is there."""
HOUR, SEARCH_SECONDS = 3600.0, 3600.0
"""The second: how long fleets of a fixed size are watched, at most."""


@dataclass(frozen=True, slots=True)
class Steady:
    """One constant load."""

    size: int
    share: float
    smallest: int
    """Replicas that keep the target, where they stay."""
    smallest_attained: float
    found: TrialResult
    hours: float

    @property
    def ratio(self) -> float:
        """Mean replicas, as a multiple of the smallest number."""
        return self.found.replica_seconds / (HOUR * self.hours) / self.smallest

    @property
    def reversals(self) -> float:
        """Changes against the direction of the change before, in ten hours."""
        moves = [late - soon for (_, soon), (_, late) in pairwise(self.found.replicas)]
        return sum(one * other < 0 for one, other in pairwise(moves)) * 10.0 / self.hours

    @property
    def cells(self) -> Iterator[str]:
        """Of the row."""
        yield f"{self.size}"
        yield f"{self.share:g}"
        yield f"{self.smallest}"
        yield f"{self.smallest_attained:.3f}"
        yield f"{self.found.attained:.3f}"
        yield f"{self.smallest * self.ratio:.2f}"
        yield f"{self.ratio:.2f}"
        yield f"{self.found.num_changes}"
        yield f"{self.reversals:.1f}"


def contender(trace: Trace, window: float, fixed: int | None = None) -> Contender:
    """Fairlead with a scale-down window; `fixed`: with so many replicas always."""
    spec = replace(benchmark_spec(trace), scale_down=ScaleDown(stabilization_window=window))
    return Contender(name="", spec=spec if fixed is None else replace(spec, min_replicas=fixed, max_replicas=fixed))


def steady(case: tuple[int, float], *, hours: float, window: float, seed: int) -> Steady:
    """`size` replicas and a share of what they do, for so many hours."""
    size, share = case
    load = size * share
    trace = Trace(name="", load=partial(step, load, load), seconds=HOUR * hours, replicas=size, quiet=0.0)
    shorter = replace(trace, seconds=min(trace.seconds, SEARCH_SECONDS))
    for smallest in range(max(1, math.ceil(load)), trace.most_replicas):
        fixed = play(shorter, contender(trace, window, smallest), seed)
        if fixed.attained >= TO_KEEP:
            break
    return Steady(size, share, smallest, fixed.attained, play(trace, contender(trace, window), seed), hours)


def let_go(seed: int, *, window: float) -> float:
    """Seconds from the fall to one replica; infinite = never within ten windows."""
    trace = Trace(name="", load=partial(step, *FALL), seconds=10.0 * window, replicas=4, quiet=BEFORE_FALL)
    found = play(trace, contender(trace, window), seed)
    return next((time - BEFORE_FALL for time, number in found.replicas if number == 1 and time > BEFORE_FALL), math.inf)


def lead(seed: int) -> float:
    """Seconds from the decision for a second replica of the demo to the first late token; infinite = none was late."""
    trace = next(each for each in TRACES if each.name.startswith("demo"))
    fleet = fleet_of(trace, Contender(name=""), seed)
    fleet.run(trace.end)
    changes = result(fleet, trace, 1).replicas
    asked = next((time for time, number in changes if number >= 2), math.inf)
    late = [time for time, seconds in fleet.first_tokens if seconds > trace.machine.target]
    return min(late, default=math.inf) - asked if late or asked < math.inf else 0.0


def table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    lines = (f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows))
    return "\n".join(lines) + "\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=6.0, help="of each constant load (default: %(default)s)")
    parser.add_argument("--window", type=float, default=10.0, help="scaleDown's, in seconds (default: %(default)s)")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="replicas at the start (default: all)")
    parser.add_argument("--shares", type=float, nargs="*", default=SHARES, help="of what they do (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the constant loads (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=24, help="of the others (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="at a time (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    with ProcessPoolExecutor(args.processes) as pool:
        cases = [(size, share) for size in sorted(args.sizes, reverse=True) for share in args.shares]
        play_one = partial(steady, hours=args.hours, window=args.window, seed=args.seed)
        constant = sorted(pool.map(play_one, cases), key=lambda each: (each.size, each.share))
        if constant:
            print(table(HEADS, (each.cells for each in constant)))
        if args.seeds:
            falls = pool.map(partial(let_go, window=args.window), range(args.seeds))
            print(spread("seconds to one replica", sorted(falls)))
            print(spread("seconds ahead of the first late token", sorted(pool.map(lead, range(args.seeds)))))


HEADS = (
    "replicas at first", "load per replica", "smallest that keeps the target", "within target, these",
    "within target, Fairlead", "mean replicas", "of the smallest", "changes", "reversals in 10 h",
)  # fmt: skip


def spread(name: str, found: Sequence[float]) -> str:
    """A table of one row."""
    heads = (name, "smallest", "median", "largest", "not below 0")
    cells = (f"{len(found)} seeds", *(f"{each:.1f}" for each in (found[0], statistics.median(found), found[-1])))
    return table(heads, [(*cells, f"{sum(each >= 0.0 for each in found)}")])


if __name__ == "__main__":
    main()
