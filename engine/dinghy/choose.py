"""Chooses sample questions that the dinghy answers to the letter, for demos and tests, and writes them as JSON lines.

    python engine/dinghy/choose.py

All are held out from training, and right by greedy decoding in float32 and in bfloat16. Those about a log share one.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random

from fairlead_engine.demo import resolve_model
from fairlead_engine.llm import LLM
from fairlead_engine.types import SamplingParams
from lessons.conversation import Conversation, Split
from lessons.logs import LONGEST_LOG, harbour_log
from lessons.syllabus import draw_all

WANTED = {"facts": 12, "sums": 6, "products": 4, "words": 6, "json": 4, "tools": 4, "follow-ups": 3}
NUM_ABOUT_THE_LOG = 6
NUM_DRAWN = 1000
NUM_ASKED_AFTER_THE_LOG = 60
LONGEST_ANSWER = 128
"""Tokens."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Write sample questions that the dinghy answers to the letter.")
    parser.add_argument("--model", default="demo://dinghy", help="folder or demo://NAME (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="file to write (default: questions.jsonl in the model's folder)")
    parser.add_argument("--seed", type=int, default=1, help="which questions to choose from (default: %(default)s)")
    arguments = parser.parse_args()
    drawn = list(islice(draw_all(Split.HELD_OUT, arguments.seed), NUM_DRAWN))
    candidates = [*drawn, *about_one_log(drawn[:NUM_ASKED_AFTER_THE_LOG], arguments.seed)]
    chosen = choose(right_in_every_format(arguments.model, candidates))
    out = arguments.out or resolve_model(arguments.model) / "questions.jsonl"
    out.write_text("".join(json.dumps(question.to_json(), ensure_ascii=False) + "\n" for question in chosen))
    print(f"wrote {len(chosen)} questions to {out}")


def about_one_log(candidates: Iterable[Conversation], seed: int) -> Iterator[Conversation]:
    """The short questions among the candidates, each after one and the same log, as long as logs get."""
    log = harbour_log(Random(seed), LONGEST_LOG)
    for each in candidates:
        if each.kind in ("facts", "sums") and each.messages[0]["role"] == "user":
            yield Conversation("one log", (log, *each.messages))


def right_in_every_format(model: str, candidates: Sequence[Conversation]) -> list[Conversation]:
    """Those that are answered to the letter whether weights are float32 or bfloat16."""
    for dtype in ("float32", "bfloat16"):
        llm = LLM(model, dtype=dtype)
        prompts = [llm.model.tokenizer.encode_chat(each.question, tools=each.tools) for each in candidates]
        completions = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=LONGEST_ANSWER))
        candidates = [
            each for each, completion in zip(candidates, completions, strict=True) if completion.text == each.answer
        ]
    return list(candidates)


def choose(candidates: Sequence[Conversation]) -> list[Conversation]:
    """As many of each kind as wanted, no question twice, in the order of `WANTED`; then those about the log."""
    room = Counter(WANTED)
    chosen: dict[str, Conversation] = {}
    for each in candidates:
        key = str(each.question)
        if room[each.kind] > 0 and key not in chosen:
            room[each.kind] -= 1
            chosen[key] = each
    kinds = list(WANTED)
    about_the_log = {str(each.question): each for each in candidates if each.kind == "one log"}
    return sorted(chosen.values(), key=lambda each: kinds.index(each.kind)) + [
        Conversation("logs", each.messages) for each in islice(about_the_log.values(), NUM_ABOUT_THE_LOG)
    ]


if __name__ == "__main__":
    main()
