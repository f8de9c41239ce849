"""Experiments about one property each, started by hand: `docs/benchmarks/README.md` says what they have shown.

python engine/benchmarks/experiments NAME [--json] [flags]
python engine/benchmarks/experiments NAME --help
"""

import argparse
from importlib import import_module

from harness import parser_of, tell

CASES = {
    "batch_invariance": "whether an answer depends on what is computed beside it",
    "cold_load": "what reading ahead brings while a model loads from a disk",
    "core_steps": "what the core's own Python costs per step",
    "device_steps": "how near steps come to what this device's memory allows",
    "front_hop": "what the front before an external engine costs",
    "overlapped_sums": "whether ranks gain by summing one half of a batch while the other is multiplied",
    "server_path": "what the HTTP process costs per streamed token",
    "sharded_load": "what one rank of a large model takes while it loads",
    "speculative_trees": "what trees of drafts bring over chains",
    "structured_masks": "what structured output costs",
}
"""Module of each experiment, and its question."""


def main() -> None:
    cases = "\n".join(f"  {name:18} {question}" for name, question in CASES.items())
    parser = argparse.ArgumentParser(
        "experiments", description=f"{__doc__}\n{cases}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=CASES, metavar="NAME")
    parser.add_argument("flags", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    module = import_module(args.name)
    flags = parser_of(args.name, module.__doc__, module.run)
    flags.add_argument("--json", action="store_true", help="rows as JSON in place of a table")
    settings = vars(flags.parse_args(args.flags))
    as_json = settings.pop("json")
    tell(module.run(**settings), as_json=as_json)


if __name__ == "__main__":
    main()
