"""What structured output costs: compiling schemas of every shape, and finding the allowed tokens before each draw.

    python engine/benchmarks/structured_masks.py [--schemas N] [--vocabulary N] [--seed N]

Schemas are those of the tests (`fairlead_engine_testing.json_schemas`), the tokenizer a byte-level BPE trained on
Python's standard library. Tokens are drawn evenly among the allowed ones, which is harder than what a model writes:
strings full of rare tokens. Times are of one thread; in an engine they pass while the forward pass runs.
"""

import argparse
import platform
import random
import sysconfig
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import llguidance
import numpy as np
import tokenizers
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from tokenizers import decoders, models, pre_tokenizers, trainers

from fairlead_engine.core.grammars import parser_limits
from fairlead_engine.server.structured_output import schema_grammar
from fairlead_engine_testing.json_schemas import random_schema

MOST_TOKENS = 200


def train(vocab_size: int) -> tokenizers.Tokenizer:
    """A tokenizer whose last id ends a text."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size - 1, initial_alphabet=alphabet, show_progress=False)
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = (path.read_text(errors="replace") for path in sorted(library.rglob("*.py")) if "packages" not in path.parts)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


def allowed(mask: np.ndarray) -> np.ndarray:
    """Ids of the tokens that a mask [1, words] allows."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


def answer(matcher: LLMatcher, vocab_size: int, draw: random.Random) -> Iterator[float]:
    """Seconds of each mask of an answer."""
    mask = allocate_token_bitmask(1, vocab_size)
    for _ in range(MOST_TOKENS):
        began = time.perf_counter()
        fill_next_token_bitmask(matcher, mask)
        yield time.perf_counter() - began
        if matcher.is_error():
            raise RuntimeError(matcher.get_error())
        if matcher.is_stopped():
            return
        matcher.consume_token(int(draw.choice(allowed(mask))))


def row(name: str, seconds: Iterable[float], unit: float) -> str:
    """A line of the table."""
    values = np.array([*seconds]) * unit
    figures = [values.mean(), *np.percentile(values, (50, 90, 99)), values.max()]
    return f"| {name} | {len(values)} | " + " | ".join(f"{figure:.3g}" for figure in figures) + " |"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--schemas", type=int, default=300)
    parser.add_argument("--vocabulary", type=int, default=32_768)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tokenizer = train(options.vocabulary)
    size = tokenizer.get_vocab_size()
    seen = LLTokenizer(tokenizer.to_str(), n_vocab=size, eos_token=[tokenizer.token_to_id("</s>")])
    compiled, masks, first = [], [], []
    for seed in range(options.seed, options.seed + options.schemas):
        text = schema_grammar("schema", random_schema(random.Random(seed)))
        began = time.perf_counter()
        matcher = LLMatcher(seen, text, log_level=0, limits=parser_limits())
        compiled.append(time.perf_counter() - began)
        times = list(answer(matcher, size, random.Random(seed)))
        first.append(times[0])
        masks += times
    print(f"Python {platform.python_version()}, {llguidance.get_version().split()[0]}, {size} tokens\n")
    print("| what | times | mean | p50 | p90 | p99 | most |\n|---|---|---|---|---|---|---|")
    print(row("compile a schema, ms", compiled, 1e3))
    print(row("an answer's first mask, µs", first, 1e6))
    print(row("a mask, µs", masks, 1e6))


if __name__ == "__main__":
    main()
