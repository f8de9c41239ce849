"""Writes lessons as JSON lines, to look at or to use elsewhere: `{"kind", "messages", "answer"}` and perhaps `tools`.

    python engine/dinghy/generate.py --split held-out --count 20

The trainer and the evaluator draw the same conversations themselves; they need no file.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import islice

from lessons.conversation import Conversation, Split
from lessons.syllabus import KINDS, draw_all


def main() -> None:
    arguments = parse_arguments()
    for conversation in islice(of_kinds(arguments.kinds, arguments.split, arguments.seed), arguments.count):
        print(json.dumps(conversation.to_json(), ensure_ascii=False))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Print the dinghy's lessons as JSON lines.")
    parser.add_argument("--split", type=Split, choices=list(Split), default=Split.TRAIN, help="default: %(default)s")
    parser.add_argument("--count", type=int, default=20, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="default: all")
    return parser.parse_args()


def of_kinds(kinds: Sequence[str], split: Split, seed: int) -> Iterator[Conversation]:
    """An endless stream of the wanted kinds."""
    return (conversation for conversation in draw_all(split, seed) if conversation.kind in kinds)


if __name__ == "__main__":
    main()
