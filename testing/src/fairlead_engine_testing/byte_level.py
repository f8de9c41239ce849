"""Tokenizers of bytes that nothing trained, and answers drawn from what a grammar allows."""

import random
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import tokenizers
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from tokenizers import decoders, models, pre_tokenizers

BYTES = tuple(sorted(pre_tokenizers.ByteLevel.alphabet()))


def byte_level(
    first: Sequence[str] = (), *, letters: Sequence[str] = BYTES, merges: Sequence[tuple[str, str]] = ()
) -> tokenizers.Tokenizer:
    """Ids in this order: the special tokens of `first`, a token for each letter, one for each merge."""
    words = [*first, *letters, *("".join(pair) for pair in merges)]
    tokenizer = tokenizers.Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(first))
    return tokenizer


def draw_allowed(grammar: str, tokenizer_json: str, seed: int, most: int, close: float = 0.0) -> list[int] | None:
    """An answer that a grammar allows, of tokens drawn evenly, where id 0 ends it; None for a longer one than `most`.

    Args:
        grammar: What the engine hands to llguidance.
        tokenizer_json: Has a token for every byte.
        seed: Of the draw.
        most: Tokens.
        close: How often the end, or a token that closes a JSON value, is preferred where the grammar allows it.
    """
    wrapped, closing = _wrapped(tokenizer_json)
    matcher = LLMatcher(wrapped, grammar, log_level=0)
    draw, mask, found = random.Random(seed), allocate_token_bitmask(1, wrapped.vocab_size), list[int]()
    while len(found) < most:
        fill_next_token_bitmask(matcher, mask)
        assert not matcher.is_error(), matcher.get_error()
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        assert len(allowed), "nothing is left"
        ends = [each for each in closing if each in allowed]
        found.append(int(draw.choice(ends if ends and draw.random() < close else allowed)))
        if found[-1] == 0:
            return found[:-1]
        matcher.consume_token(found[-1])
    return None


@lru_cache(maxsize=4)
def _wrapped(tokenizer_json: str) -> tuple[LLTokenizer, list[int]]:
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
    wrapped = LLTokenizer(tokenizer_json, n_vocab=tokenizer.get_vocab_size(), eos_token=[0])
    return wrapped, [0, *(tokenizer.get_vocab()[each] for each in '"]}')]
