"""Asks the dinghy held-out questions through our own engine and counts the answers that are right to the letter.

    python engine/dinghy/evaluate.py

Greedy decoding. Every kind of question gets the same number, so the overall figure is their mean. Exit code 1 when a
figure is below what is required.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine.demo import resolve_model
from fairlead_engine.llm import LLM
from fairlead_engine.types import SamplingParams
from lessons.conversation import Conversation, Split, assistant
from lessons.syllabus import KINDS, draw_all

LONGEST_ANSWER = 128
"""Tokens."""

Answerer = Callable[[Sequence[list[int]]], list[str]]
"""Prompts as token ids → answers."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question and what the model said."""

    question: Conversation
    said: str

    @property
    def right(self) -> bool:
        return self.said == self.question.answer


def main() -> int:
    arguments = parse_arguments()
    if arguments.questions:
        questions = read_questions(arguments.questions)
    else:
        questions = held_out(arguments.per_kind, arguments.seed)
    tokenizer = PromptTokenizer.from_folder(resolve_model(arguments.model))
    prompts = [tokenizer.encode_chat(question.question, tools=question.tools) for question in questions]
    answers = BACKENDS[arguments.backend](arguments)(prompts)
    outcomes = [Outcome(question, said) for question, said in zip(questions, answers, strict=True)]
    for outcome in islice((outcome for outcome in outcomes if not outcome.right), arguments.show_wrong):
        asked = str(outcome.question.question[-1]["content"])[-160:]
        print(f"{outcome.question.kind}: {asked!r}\n  said {outcome.said!r}, should be {outcome.question.answer!r}")
    return report(outcomes, arguments)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Count the dinghy's exact answers to held-out questions.")
    parser.add_argument("--model", default="demo://dinghy", help="folder or demo://NAME (default: %(default)s)")
    parser.add_argument("--per-kind", type=int, default=100, help="questions of each kind (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="which questions (default: %(default)s)")
    parser.add_argument("--questions", type=Path, help="ask those in this JSON lines file instead")
    parser.add_argument("--dtype", default="auto", help="auto, float32 or bfloat16 (default: %(default)s)")
    parser.add_argument("--backend", choices=sorted(BACKENDS), default="engine", help="transformers is the reference")
    parser.add_argument("--show-wrong", type=int, default=0, help="print this many wrong answers")
    parser.add_argument("--require", type=float, default=0.95, help="least overall share of exact answers")
    parser.add_argument("--require-each", type=float, default=0.90, help="least share of exact answers of each kind")
    return parser.parse_args()


def held_out(per_kind: int, seed: int) -> list[Conversation]:
    """`per_kind` held-out questions of every kind, in a fixed order; no question twice."""
    wanted = Counter(dict.fromkeys(KINDS, per_kind))
    chosen: dict[str, Conversation] = {}
    for conversation in draw_all(Split.HELD_OUT, seed):
        key = json.dumps(conversation.to_json(), sort_keys=True)
        if wanted[conversation.kind] > 0 and key not in chosen:
            wanted[conversation.kind] -= 1
            chosen[key] = conversation
        if not wanted.total():
            break
    return sorted(chosen.values(), key=lambda conversation: KINDS.index(conversation.kind))


def read_questions(path: Path) -> list[Conversation]:
    """Questions from a file of `Conversation.to_json` lines."""
    records = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [
        Conversation(record["kind"], (*record["messages"], assistant(record["answer"])), tuple(record.get("tools", ())))
        for record in records
    ]


def report(outcomes: Iterable[Outcome], arguments: argparse.Namespace) -> int:
    """Prints the figures; 0 when all are high enough, else 1."""
    right, total = Counter[str](), Counter[str]()
    for outcome in outcomes:
        total[outcome.question.kind] += 1
        right[outcome.question.kind] += outcome.right
    for kind in total:
        print(f"{kind:12} {right[kind]:5}/{total[kind]:<5} {right[kind] / total[kind]:7.1%}")
    overall = right.total() / total.total()
    print(f"{'overall':12} {right.total():5}/{total.total():<5} {overall:7.1%}")
    weak = [kind for kind in total if right[kind] / total[kind] < arguments.require_each]
    if overall < arguments.require or weak:
        wanted = f"required are {arguments.require:.0%} overall and {arguments.require_each:.0%} of each kind"
        print(f"not good enough: {wanted}", file=sys.stderr)
        return 1
    return 0


def engine(arguments: argparse.Namespace) -> Answerer:
    """Our own engine, in this process."""
    llm = LLM(arguments.model, dtype=arguments.dtype)
    sampling = SamplingParams(temperature=0.0, max_tokens=LONGEST_ANSWER)
    return lambda prompts: [completion.text for completion in llm.generate(prompts, sampling)]


def reference(arguments: argparse.Namespace) -> Answerer:
    """Hugging Face transformers, one question at a time: what any other engine should answer too."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = resolve_model(arguments.model)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=arguments.dtype)

    def answer(prompt: list[int]) -> str:
        output = model.generate(torch.tensor([prompt]), max_new_tokens=LONGEST_ANSWER, do_sample=False)
        return str(tokenizer.decode(output[0, len(prompt) :], skip_special_tokens=True))

    return lambda prompts: [answer(prompt) for prompt in prompts]


BACKENDS: dict[str, Callable[[argparse.Namespace], Answerer]] = {"engine": engine, "transformers": reference}

if __name__ == "__main__":
    sys.exit(main())
