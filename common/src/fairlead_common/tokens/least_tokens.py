"""A lower bound of the tokens of a text, without tokenising: prompts too long for any model are refused early.

A token covers a stretch of text with the length of the entry in the vocabulary. So each character costs at least 1/n of
a token, n being the length of the longest entry with this character, and the sum over all characters never exceeds the
number of tokens. For vocabularies of bytes, characters are bytes.

The bound holds where tokens have the length of their text: not where unknown words become one `<unk>`, nor where a
normalizer rewrites the text in unknown ways. With `<unk>`, words are counted for the word boundaries of BERT
(`LeastWords`); other such tokenizers count 0.

Gateway and engine ask before they tokenise, and take a text piece by piece, 64 Ki characters at a time.
"""

import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any
from unicodedata import ucd_3_2_0

import msgspec
import tokenizers

from fairlead_common.tokens.tokenizing import PromptTokenizer

_LETTERS = "".join(char for char in map(chr, range(0x80, 0x530)) if ucd_3_2_0.category(char).startswith("L"))
"""Latin, Greek and Cyrillic letters of Unicode 3.2, which every tokenizer knows as letters."""
_ENDS = re.escape(" \t\n\r" + string.punctuation)
_WORDS = re.compile(f"[A-Za-z0-9{_LETTERS}][^{_ENDS}]*|[{re.escape(string.punctuation)}]")


class LeastWords:
    """Counts for one tokenizer."""

    def __init__(self, added: Collection[str]) -> None:
        """`added`: texts with a token of their own at every place, as `[SEP]`."""
        longest_first = sorted(filter(None, added), key=len, reverse=True)
        self._added = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._seam = 1 + max(map(len, longest_first), default=0)

    def of(self, piece: str) -> int:
        """Lower bound of the tokens of a piece of text, which may begin and end within a word or an added token."""
        whole = piece if self._added is None else self._added.sub(" x ", piece)
        return max(0, sum(1 for _ in _WORDS.finditer(whole)) - self._seam)


_PIECE = 65536
"""Characters counted at a time, in about three milliseconds."""
_SEAM = 64
"""Bytes that joining two pieces may save, since marks combine with letters: generous."""
_ROUNDING = 0.01
"""In tokens; above the rounding error of adding many fractions."""
_SPACE_MARK = "▁"
_KEEPING = frozenset({"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split"})
"""Pre-tokenizers that lose nothing, unless `behavior` is to remove."""


class _TokenizerModel(msgspec.Struct):
    type: str | None = None
    byte_fallback: bool = False
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None


class _TokenizerParts(msgspec.Struct):
    """The parts of `tokenizer.json` needed here; the vocabulary is skipped unread."""

    model: _TokenizerModel
    normalizer: Any = None
    pre_tokenizer: Any = None


def most_units(text: str) -> int:
    """Upper bound of the bytes under any normalisation, and of every lower bound of tokens here."""
    return len(text) if text.isascii() else 12 * len(text)


class LeastTokenCounter:
    """Counts for one tokenizer; 0 for a tokenizer of an unknown kind."""

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        parts = msgspec.json.decode(tokenizer.tokenizer_json, type=_TokenizerParts)
        self._of_bytes = _is_of_bytes(parts)
        self._combines = "NFC" in _types(parts.normalizer)
        backend = tokenizer.backend
        vocabulary = backend.get_vocab(with_added_tokens=False)
        added = list(backend.get_added_tokens_decoder().values())
        self._skips_space = any(token.lstrip or token.rstrip for token in added)
        """Whether a token may swallow the white space on a side, however much."""
        self._longest: dict[int | str, int] = {}
        """By byte or character: the length of the longest entry with it."""
        self._words: LeastWords | None = None
        if self._of_bytes and _byte_letters().keys() <= vocabulary.keys():
            letters = _byte_letters()
            self._note([letters[letter] for letter in entry if letter in letters] for entry in vocabulary)
            for text in (token.content for token in added):
                self._note([text.encode(), unicodedata.normalize("NFC", text).encode()])
        elif _falls_back_to_bytes(parts) and {f"<0x{byte:02X}>" for byte in range(256)} <= vocabulary.keys():
            self._note(entry.replace(_SPACE_MARK, " ") for entry in vocabulary)
            self._note(token.content.replace(_SPACE_MARK, " ") for token in added)
        elif _is_of_words(parts) and not any(token.normalized for token in added):
            self._words = LeastWords([token.content for token in added])

    def of(self, text: str, enough: int) -> int:
        """Lower bound of the tokens of `text`; counting ends beyond `enough`."""
        cost = 0.0
        for start in range(0, len(text), _PIECE) if self._longest or self._words else ():
            cost += self._cost(text[start : start + _PIECE])
            if cost - _ROUNDING > enough:
                break
        return max(0, math.ceil(cost - _ROUNDING))

    def _cost(self, piece: str) -> float:
        if self._words is not None:
            return self._words.of(piece)
        counted: Counter[int | str] = Counter(self._units(piece))
        seam = _SEAM if self._combines else 0
        return max(0.0, sum(count / self._longest.get(unit, 1) for unit, count in counted.items()) - seam)

    def _note(self, entries: Iterable[Iterable[int | str]]) -> None:
        for entry in map(list, entries):
            for unit in set(entry):
                self._longest[unit] = max(self._longest.get(unit, 0), len(entry))

    def _units(self, piece: str) -> bytes | str:
        """The bytes or characters of a piece that are certain to be in tokens."""
        if self._skips_space:
            piece = "".join(piece.split())
        if self._combines and not piece.isascii():
            if any(unicodedata.category(letter) == "Cn" for letter in set(piece)):
                return b""  # of characters newer than Python's tables it is not known how they combine
            piece = unicodedata.normalize("NFC", piece)
        return piece.encode(errors="ignore") if self._of_bytes else piece.replace(_SPACE_MARK, " ")


def _is_of_bytes(parts: _TokenizerParts) -> bool:
    """Byte-level BPE, as in GPT-2 and most later models."""
    steps = _types(parts.pre_tokenizer)
    return _loses_nothing(parts) and "ByteLevel" in steps and set(_types(parts.normalizer)) <= {"NFC"}


def _falls_back_to_bytes(parts: _TokenizerParts) -> bool:
    """BPE of characters as in SentencePiece: spaces are marked, and unknown characters are written in bytes."""
    marks_spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE_MARK}
    rewriting = [step for step in _steps(parts.normalizer) if step.get("type") != "Prepend" and step != marks_spaces]
    is_marked = all(step.get("replacement", _SPACE_MARK) == _SPACE_MARK for step in _steps(parts.pre_tokenizer))
    of_bytes = "ByteLevel" in _types(parts.pre_tokenizer)
    return _loses_nothing(parts) and parts.model.byte_fallback and not rewriting and is_marked and not of_bytes


def _is_of_words(parts: _TokenizerParts) -> bool:
    """WordPiece with the words of BERT: tokens are parts of a word, or one token stands for the whole word."""
    is_berts = _types(parts.pre_tokenizer) == ["BertPreTokenizer"] and _types(parts.normalizer) == ["BertNormalizer"]
    return parts.model.type == "WordPiece" and is_berts


def _loses_nothing(parts: _TokenizerParts) -> bool:
    model = parts.model
    is_plain = model.type == "BPE" and not (model.continuing_subword_prefix or model.end_of_word_suffix)
    steps = _steps(parts.pre_tokenizer)
    return is_plain and all(step.get("type") in _KEEPING and step.get("behavior") != "Removed" for step in steps)


def _steps(part: Any) -> list[Mapping[str, Any]]:
    """A normalizer or pre-tokenizer as a flat list of steps."""
    if part is None:
        return []
    if part.get("type") != "Sequence":
        return [part]
    return [step for each in part.get("normalizers") or part.get("pretokenizers") or () for step in _steps(each)]


def _types(part: Any) -> list[str]:
    return [str(step.get("type")) for step in _steps(part)]


def _byte_letters() -> dict[str, int]:
    """Letter → byte in byte-level vocabularies. Source: `bytes_to_unicode` of GPT-2."""
    letters, num_unprintable = {}, 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            letters[chr(byte)] = byte
        else:
            letters[chr(256 + num_unprintable)] = byte
            num_unprintable += 1
    assert set(letters) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    return letters
