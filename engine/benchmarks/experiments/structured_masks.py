"""What structured output costs: compiling schemas of every shape, and finding the allowed tokens before each draw.

Schemas are those of the tests (`fairlead_engine_testing.json_schemas`), the tokenizer a byte-level BPE trained on
Python's standard library. Tokens are drawn evenly among the allowed ones, which is harder than what a model writes:
strings full of rare tokens. Times are of one thread; in an engine they pass while the forward pass runs.
"""

import random
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import tokenizers
from harness import Row, spread
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from fairlead_engine.api.schemas import CompletionRequest
from fairlead_engine.api.structured_output import grammar, wish_of
from fairlead_engine.core.grammars import parser_limits
from fairlead_engine_testing.json_schemas import random_schema

MOST_TOKENS = 200
"""Of an answer."""


def run(schemas: int = 300, vocabulary: int = 32_768, seed: int = 0) -> Iterator[Row]:
    """`vocabulary`: tokens of the tokenizer."""
    tokenizer = trained(vocabulary)
    size = tokenizer.get_vocab_size()
    seen = LLTokenizer(tokenizer.to_str(), n_vocab=size, eos_token=[tokenizer.token_to_id("</s>")])
    compiled, masks, first = [], [], []
    for number in range(seed, seed + schemas):
        schema = random_schema(random.Random(number))
        wanted = {"model": "", "prompt": "", "structured_outputs": {"json": schema}}
        wish = wish_of(msgspec.convert(wanted, CompletionRequest))
        assert wish is not None
        text = grammar(wish).text
        began = time.perf_counter()
        matcher = LLMatcher(seen, text, log_level=0, limits=parser_limits())
        compiled.append(time.perf_counter() - began)
        times = list(mask_seconds(matcher, size, random.Random(number)))
        first.append(times[0])
        masks += times
    yield {"what": "compile a schema, ms", **spread(compiled)}
    yield {"what": "an answer's first mask, µs", **spread(first, 1e6)}
    yield {"what": "a mask, µs", **spread(masks, 1e6)}


def trained(vocab_size: int) -> tokenizers.Tokenizer:
    """A tokenizer whose last id ends a text."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=vocab_size - 1, initial_alphabet=alphabet, show_progress=False)
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = (path.read_text(errors="replace") for path in sorted(library.rglob("*.py")) if "packages" not in path.parts)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


def mask_seconds(matcher: LLMatcher, vocab_size: int, draw: random.Random) -> Iterator[float]:
    """Of each mask of an answer."""
    mask = allocate_token_bitmask(1, vocab_size)
    for _ in range(MOST_TOKENS):
        began = time.perf_counter()
        fill_next_token_bitmask(matcher, mask)
        yield time.perf_counter() - began
        if matcher.is_error():
            raise RuntimeError(matcher.get_error())
        if matcher.is_stopped():
            return
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        matcher.consume_token(int(draw.choice(allowed)))
