"""What all experiments share: a command line made of a function's parameters, and rows that are told as a table.

An experiment is a module with a function `run`: its parameters, all with defaults, become flags, and the rows that it
yields become lines. The module's docstring is its help.
"""

import argparse
import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from statistics import fmean
from types import UnionType
from typing import Any, get_args

Row = dict[str, Any]
"""One line: name of a column → word or number. All rows of an experiment have the same columns."""


def parser_of(name: str, doc: str | None, run: Callable[..., Iterator[Row]]) -> argparse.ArgumentParser:
    """The flags of `run`: `num_ranks: int = 2` is `--num-ranks`, a tuple takes several words, and False is a switch."""
    parser = argparse.ArgumentParser(name, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for each in inspect.signature(run).parameters.values():
        flag, default, kind = f"--{each.name.replace('_', '-')}", each.default, each.annotation
        told = f"(default: {' '.join(map(str, default)) if isinstance(default, tuple) else default})"
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(flag, type=type(default[0]), nargs="+", default=default, help=told)
        else:
            kind = get_args(kind)[0] if isinstance(kind, UnionType) else kind
            parser.add_argument(flag, type=kind, default=default, help=told)
    return parser


def tell(rows: Iterable[Row], *, as_json: bool) -> None:
    """Prints a Markdown table, each line as soon as it is known, or all rows as JSON."""
    if as_json:
        print(json.dumps(list(rows), indent=1))
        return
    for number, row in enumerate(rows):
        if not number:
            print(f"| {' | '.join(row)} |\n|{'---|' * len(row)}")
        print(f"| {' | '.join(_word(each) for each in row.values())} |", flush=True)


def _word(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def spread(seconds: Iterable[float], unit: float = 1e3) -> Row:
    """How measured times are told. `unit`: how many there are in a second, milliseconds by default."""
    ordered = sorted(unit * each for each in seconds)
    shares = {"p5": 0.05, "p50": 0.5, "p90": 0.9, "p99": 0.99}
    at = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in shares.items()}
    return {"times": len(ordered), "mean": fmean(ordered), "min": ordered[0], **at, "max": ordered[-1]}
