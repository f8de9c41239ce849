"""Trains the dinghy: tokenizer, then network, from nothing but the lessons, in minutes on two CPU cores.

    python engine/dinghy/train.py

The same seed gives the same lessons, tokenizer and order; weights agree up to the rounding of the threads' sums.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

import torch
from torch.nn import functional

from fairlead_common.tokens.tokenizing import PromptTokenizer
from lessons.conversation import Split
from lessons.syllabus import FIRST_STEPS, SYLLABUS, draw_all
from training.checkpoint import load_network, save_network, save_tokenizer
from training.network import Network, Shape
from training.optimisation import Optimisation
from training.packing import IGNORED, PackedBatch, batches, encode, examples
from training.scoring import score
from training.vocabulary import train_tokenizer, vocabulary_texts

BUNDLED = Path(__file__).parents[1] / "src/fairlead_engine/demo/dinghy"
TOKENS_PER_BATCH = 4096
TARGETS_PER_BATCH = 512
"""About how many answer tokens a batch holds. Losses are summed and divided by it: all answer tokens count equally."""
FIRST_STEPS_SHARE = 0.15
SHORT_ROW, LONG_ROW = 256, 1024
"""Tokens per packed row while the short lessons are taught, and when all are."""
CONVERSATIONS_FOR_VOCABULARY = 20_000
HELD_OUT_FOR_PROGRESS = 400


@dataclass(slots=True)
class Progress:
    """What has been done so far, and the lines that say so."""

    num_steps: int
    num_tokens: int = 0
    losses: list[float] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    cpu_started: float = field(default_factory=time.process_time)

    def add(self, batch: PackedBatch, loss: float, num_targets: int) -> None:
        self.num_tokens += int((batch.segments > 0).sum())
        self.losses.append(loss)
        self.targets.append(num_targets)

    def line(self, last: int) -> str:
        """Loss per answer token over the last steps, tokens and CPU time so far, and the time left at this pace."""
        done = len(self.losses)
        seconds = time.monotonic() - self.started
        loss = sum(self.losses[-last:]) / sum(self.targets[-last:])
        return (
            f"step {done}/{self.num_steps}  loss {loss:.4f}  {self.num_tokens / 1e6:.2f} M tokens  "
            f"{seconds / 60:.1f} min  {(time.process_time() - self.cpu_started) / 60:.1f} CPU-min  "
            f"ETA {seconds / done * (self.num_steps - done) / 60:.1f} min"
        )


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    if arguments.begin_with is None:
        texts = vocabulary_texts(islice(draw_all(Split.TRAIN, arguments.seed), CONVERSATIONS_FOR_VOCABULARY))
        tokenizer = train_tokenizer(texts)
    else:
        tokenizer = PromptTokenizer.from_folder(arguments.begin_with)
    save_tokenizer(arguments.out, tokenizer)
    network = train(tokenizer, arguments)
    save_network(arguments.out, network, tokenizer)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the dinghy and write it as a Hugging Face style folder.")
    parser.add_argument("--out", type=Path, default=BUNDLED, help="folder to write (default: the bundled model's)")
    parser.add_argument("--steps", type=int, default=3750, help="optimiser steps (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="decides lessons and first weights (default: %(default)s)")
    parser.add_argument("--begin-with", type=Path, help="go on with the model in this folder, and with all lessons")
    parser.add_argument("--pace", type=float, default=1.0, help="share of the learning rates (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: %(default)s)")
    parser.add_argument("--report-every", type=int, default=50, help="steps per progress line (default: %(default)s)")
    parser.add_argument("--score-every", type=int, default=400, help="steps per held-out score (default: %(default)s)")
    return parser.parse_args()


def train(tokenizer: PromptTokenizer, arguments: argparse.Namespace) -> Network:
    """Draws, packs, steps and reports; a checkpoint is written with every score."""
    network = Network(Shape(vocab_size=tokenizer.vocab_size))
    if arguments.begin_with is not None:
        load_network(arguments.begin_with, network)
    optimisation = Optimisation.of(network, arguments.steps, arguments.pace)
    held_out = encode(tokenizer, list(islice(draw_all(Split.HELD_OUT, arguments.seed), HELD_OUT_FOR_PROGRESS)))
    progress = Progress(arguments.steps)
    first_share = FIRST_STEPS_SHARE if arguments.begin_with is None else 0.0
    for step, batch in enumerate(curriculum(tokenizer, arguments.seed, arguments.steps, first_share), start=1):
        loss, num_targets = backward(network, batch)
        optimisation.step()
        progress.add(batch, loss, num_targets)
        if step % arguments.report_every == 0 or step == arguments.steps:
            print(progress.line(arguments.report_every), flush=True)
        if step % arguments.score_every == 0 or step == arguments.steps:
            print(f"  held-out, teacher-forced: {score(network, held_out)}", flush=True)
            save_network(arguments.out, network, tokenizer)
    return network


def curriculum(
    tokenizer: PromptTokenizer, seed: int, num_steps: int, first_share: float = FIRST_STEPS_SHARE
) -> Iterator[PackedBatch]:
    """First the short lessons, for this share of the steps, then all of them."""
    num_first = round(first_share * num_steps)
    first, then = (
        batches(examples(tokenizer, draw_all(Split.TRAIN, seed + offset, syllabus)), TOKENS_PER_BATCH, row_length)
        for offset, syllabus, row_length in ((1, FIRST_STEPS, SHORT_ROW), (2, SYLLABUS, LONG_ROW))
    )
    return chain(islice(first, num_first), islice(then, num_steps - num_first))


def backward(network: Network, batch: PackedBatch) -> tuple[float, int]:
    """Gradients of one batch; returns the summed loss and the number of answer tokens."""
    targets = batch.targets.flatten()
    chosen = (targets != IGNORED).nonzero().squeeze(1)
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(batch.token_ids, batch.positions, batch.segments, chosen)
    loss = functional.cross_entropy(logits.float(), targets[chosen], reduction="sum")
    torch.autograd.backward(loss / TARGETS_PER_BATCH)
    return loss.item(), len(chosen)


if __name__ == "__main__":
    main()
