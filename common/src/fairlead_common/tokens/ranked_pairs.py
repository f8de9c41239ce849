"""Tokenizers that are published as tokens with ranks, made into `tokenizer.json`: Mistral's `tekken.json`, and
`tiktoken.model` of Kimi.

A text is cut by a pattern; within a piece the two neighbours whose joint token has the lowest rank are joined first.
`tokenizer.json` lists joints of two tokens instead, by the rank of what they make.
"""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from fairlead_common.tokens.mistral_chat import mistral_template
from fairlead_common.tokens.stored_tokenizer import TEKKEN, StoredTokenizer

_TEKKEN_SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
"""Special tokens of files without a list, from mistral-common."""
_TEKKEN_ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_KIMI = "TikTokenTokenizer"
"""The class of tokenizers with a known pattern; the files have no pattern."""
_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI_PATTERN = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDINGS}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDINGS}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_KIMI_RESERVED = 256
"""Number of special tokens, behind all ordinary tokens; without a text of its own a token is `<|reserved_token_N|>`."""
_MOST_TOKENS, _LONGEST_TOKEN = 2**21, 2048
_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_OF_LETTER = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(_OTHERS)}
"""GPT-2's alphabet, in which byte-level tokenizers write their tokens: printable Latin-1 letters stand for the
equal byte, letters from U+0100 on for the other bytes."""
_LETTER_OF_BYTE = {byte: letter for letter, byte in BYTE_OF_LETTER.items()}


def in_letters(raw: bytes) -> str:
    return "".join(map(_LETTER_OF_BYTE.__getitem__, raw))


def converted(path: Path, config: Mapping[str, Any]) -> StoredTokenizer:
    """`tokenizer.json` of tekken.json or tiktoken.model. `config`: tokenizer_config.json. Raises OSError, ValueError,
    and bare Exception for parts that do not fit together."""
    return _tekken(path) if path.name == TEKKEN else StoredTokenizer(_kimi(path, config))


class _Token(msgspec.Struct):
    rank: int
    token_bytes: str
    """Base64."""


class _SpecialToken(msgspec.Struct):
    rank: int
    token_str: str


class _TekkenConfig(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int
    version: str = ""


class _Tekken(msgspec.Struct):
    config: _TekkenConfig
    vocab: list[_Token]
    special_tokens: list[_SpecialToken] | None = None


def _tekken(path: Path) -> StoredTokenizer:
    """Special tokens have the first ids; ranks are counted behind the last special token."""
    file = msgspec.json.decode(path.read_bytes(), type=_Tekken)
    number, size = file.config.default_num_special_tokens, file.config.default_vocab_size
    if not 0 <= number <= size <= _MOST_TOKENS:
        raise ValueError(f"config has {number} special tokens of {size}")
    listed = dict(enumerate(_TEKKEN_SPECIAL))
    if file.special_tokens is not None:
        listed = {token.rank: token.token_str for token in file.special_tokens}
    special = {id: listed.get(id, f"<SPECIAL_{id}>") for id in range(number)}
    ranks = {_decoded(token.token_bytes): token.rank for token in file.vocab if token.rank < size - number}
    tokenizer = _ranked(ranks, number, special, file.config.pattern)
    roles = {role: text for role, text in _TEKKEN_ROLES.items() if text in special.values()}
    if (bos := roles.get("bos_token")) is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    return StoredTokenizer(tokenizer.to_str(), roles, mistral_template(file.config.version))


def _kimi(path: Path, config: Mapping[str, Any]) -> str:
    """Special tokens have the last ids; tokenizer_config.json has the texts."""
    if (kind := config.get("tokenizer_class")) != _KIMI:
        raise ValueError(
            f"how a text is cut is known of {_KIMI} alone, and tokenizer_class in tokenizer_config.json is "
            f"{kind!r:.80}: save the tokenizer as tokenizer.json with transformers"
        )
    lines = [line.split() for line in path.read_bytes().splitlines() if line]
    if any(len(line) != 2 for line in lines) or len(lines) > _MOST_TOKENS:
        raise ValueError("a line is no token with its rank")
    ranks = {_decoded(token): int(rank) for token, rank in lines}
    added = config.get("added_tokens_decoder")
    texts = {
        int(id): token["content"]
        for id, token in (added.items() if isinstance(added, Mapping) else ())
        if isinstance(token, Mapping) and isinstance(token.get("content"), str)
    }
    first = len(ranks)
    special = {id: texts.get(id, f"<|reserved_token_{id}|>") for id in range(first, first + _KIMI_RESERVED)}
    return _ranked(ranks, 0, special, _KIMI_PATTERN).to_str()


def _decoded(token: str | bytes) -> bytes:
    if not (raw := base64.b64decode(token, validate=True)):
        raise ValueError("a token is empty")
    if len(raw) > _LONGEST_TOKEN:  # every division of it is looked at
        raise ValueError(f"a token has {len(raw)} bytes")
    return raw


def _ranked(ranks: Mapping[bytes, int], first: int, special: Mapping[int, str], pattern: str) -> Tokenizer:
    """`first`: id of the lowest rank. `special`: texts by id."""
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise ValueError(f"its {len(ranks)} tokens have no consecutive ranks from 0 on")
    if len(set(special.values())) != len(special):
        raise ValueError("two special tokens have one text")
    letters = {token: in_letters(token) for token in ranks}
    vocab = {letters[token]: first + rank for token, rank in ranks.items()}
    if doubled := vocab.keys() & set(special.values()):
        raise ValueError(f"a special token has the text of another token, {min(doubled)!r:.80}")
    joints = []
    for token, rank in ranks.items():
        halves = ((token[:at], token[at:]) for at in range(1, len(token)))
        known = [(ranks[left], ranks[right], left, right) for left, right in halves if left in ranks and right in ranks]
        joints += [(rank, *joint) for joint in sorted(known)]
    joints.sort(key=lambda joint: joint[0])
    merges = [(letters[left], letters[right]) for *_, left, right in joints]
    vocab |= {text: id for id, text in special.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special.values()])
    return tokenizer
