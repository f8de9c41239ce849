"""A cache from pieces of prompt text to token ids: a conversation grown by one turn costs one turn.

Byte-pair encoding is not stable under cutting: the last letters of a piece may belong to a token with the first of the
next. But every tokenizer first takes the added tokens (`<|end|>`, …) out of a text, and only then normalises, splits
and encodes the stretches in between. A text can therefore be cut behind an added token if

- the token is found verbatim anywhere: taken out before normalisation, or nothing is normalised; not bound to word
  boundaries; and not overlapped by any added token, itself included;
- white space that belongs to the token (`rstrip`) stays on its side, and begins no other token;
- the next piece is tokenised with the token in front, to keep the effects of its place in the text, as a space put in
  front of the first word.

Samples must confirm the conditions for each tokenizer; otherwise a text is one piece. Chat templates write added tokens
between messages, so a conversation shares pieces with its earlier turns and with all that begin alike.
"""

import re
import sys
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import msgspec
import tokenizers

from fairlead.gateway.prompts.prompt_jobs import Key
from fairlead_common.tokens.least_tokens import LeastTokenCounter
from fairlead_common.tokens.tokenizing import PromptTokenizer

MIN_PIECE = 256
"""Characters; shorter pieces join the next one, as each costs a few microseconds."""
MAX_CUT_TOKENS = 16
_LONGEST = 128
"""Characters of a token."""
_WINDOW = 65536
"""Characters that one search may look at: it holds the interpreter's lock."""
_MODELS = frozenset({"BPE", "Unigram", "WordPiece", "WordLevel"})
_SPACE = re.compile(r"[ \t\r\n]*")
_SAMPLES = ("word", " a b", "x\n", "  ", "Zwölf 12. ", "\n\nline", "")


class _TokenizerModel(msgspec.Struct):
    type: str | None = None
    dropout: float | None = None
    alpha: float | None = None


class _TokenizerParts(msgspec.Struct):
    """Parts of `tokenizer.json`; the vocabulary is skipped unread."""

    model: _TokenizerModel
    normalizer: Any = None


class Cuts:
    """The special tokens of one tokenizer behind which texts may be cut; empty = no cuts."""

    def __init__(self, tokens: Iterable[tokenizers.AddedToken] = ()) -> None:
        """`tokens`: which meet the conditions of this module's docstring."""
        self.tokens = {token.content: token.rstrip for token in tokens}
        """Token text → whether following white space belongs to the token."""
        self._pattern = re.compile("|".join(map(re.escape, self.tokens)))

    @classmethod
    def of(cls, tokenizer: PromptTokenizer) -> "Cuts":
        """Tokens that the tokenizer's own file shows to be safe, if the samples agree."""
        cuts = cls(_safe_tokens(tokenizer))
        texts = [
            token.join(("a", *(before + sample for before in _SAMPLES), sample))
            for token in cuts.tokens
            for sample in _SAMPLES
        ]
        try:
            wholes = tokenizer.encode_each(texts)
            cut = (joined(tokenizer.encode_each(cuts.pieces(text, 1))) for text in texts)
            return cuts if all(ids == whole for ids, whole in zip(cut, wholes, strict=True)) else cls()
        except Exception:  # tokenizers raises bare Exception, here for words outside a vocabulary without <unk>
            return cls()

    def pieces(self, text: str, min_piece: int = MIN_PIECE) -> list[str]:
        """`text` in pieces of at least `min_piece` characters, but for the last. Later pieces repeat the token at the
        end of the piece before. Cuts depend on the text before only: texts that begin alike share their first
        pieces."""
        if not self.tokens or len(text) <= min_piece:
            return [text]
        pieces, context, start = [], "", 0
        while (found := self._next(text, start + min_piece)) is not None:
            token, end = found
            pieces.append(context + text[start:end])
            context, start = token, end
        pieces.append(context + text[start:])
        return pieces

    def _next(self, text: str, start: int) -> tuple[str, int] | None:
        """The first token from `start` on with more text behind, and the place where the text goes on."""
        while start < len(text):
            found = self._pattern.search(text, start, start + _WINDOW)
            if found is None:
                start += _WINDOW - _LONGEST
                continue
            token, end = found[0], found.end()
            if takes_space := self.tokens[token]:
                end = cast(re.Match[str], _SPACE.match(text, end)).end()
            if end < len(text) and not (takes_space and text[end].isspace()):  # other kinds of white space: not here
                return token, end
            start = end
        return None


def _safe_tokens(tokenizer: PromptTokenizer) -> list[tokenizers.AddedToken]:
    """Of the safe tokens, those likeliest in a chat's prompt."""
    parts = msgspec.json.decode(tokenizer.tokenizer_json, type=_TokenizerParts)
    if parts.model.type not in _MODELS or parts.model.dropout or parts.model.alpha:
        return []
    added = [token for token in tokenizer.backend.get_added_tokens_decoder().values() if token.content]
    is_plain = parts.normalizer in (None, {"type": "Sequence", "normalizers": []})
    spaced = any(token.content[0].isspace() for token in added)
    candidates = [
        token
        for token in added
        if not token.single_word and (is_plain or not token.normalized) and not (token.rstrip and spaced)
        if token.content == token.content.strip() and len(token.content) <= _LONGEST
    ]
    expected = (tokenizer.chat_template.source if tokenizer.chat_template else "", *tokenizer.special_tokens.values())
    candidates.sort(key=lambda token: (not any(token.content in text for text in expected), not token.special))
    texts = [token.content for token in added]
    heads = {text[:end] for text in texts for end in range(1, len(text))}
    tails = {text[start:] for text in texts for start in range(1, len(text))}

    def can_overlap(text: str) -> bool:
        """Whether the token can share characters with another token, or with itself."""
        return any(text[:end] in tails or text[end:] in heads for end in range(1, len(text))) or any(
            text in other or other in text for other in texts if other != text
        )

    return list(islice((token for token in candidates if not can_overlap(token.content)), MAX_CUT_TOKENS))


def frame_of(tokenizer: PromptTokenizer) -> tuple[list[int], list[int]] | None:
    """The ids that `add_special_tokens` puts before and after any text; None = they depend on the text."""
    try:
        plain = tokenizer.encode_each(_SAMPLES)
        framed = tokenizer.encode_each(_SAMPLES, add_special_tokens=True)
    except Exception:  # as above
        return None
    size = tokenizer.backend.num_special_tokens_to_add(is_pair=False)
    for before in range(size + 1):
        first, last = framed[0][:before], framed[0][len(plain[0]) + before :]
        if all([*first, *ids, *last] == whole for ids, whole in zip(plain, framed, strict=True)):
            return first, last
    return None


def joined(ids: Iterable[Sequence[int]]) -> list[int]:
    """A text's ids from its pieces' ids: all but the first piece repeat a token."""
    whole: list[int] = []
    for index, piece in enumerate(ids):
        whole.extend(piece[1:] if index else piece)
    return whole


Ids: TypeAlias = "array[int]"
"""Token ids as unsigned ints: a tenth of a list's memory, and quick to join and to hash."""
_ENTRY_BYTES = 300
"""What an entry takes besides text and ids: key, links, object headers."""


class PrefixCache:
    """Pieces and their ids; beyond `max_bytes` the least recently used go. Any number of tokenizers share one."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._ids: OrderedDict[Key, Ids] = OrderedDict()
        self._num_bytes = 0

    def find(self, keys: Sequence[Key]) -> "list[Ids | None]":
        """What is known of each piece; they count as used now."""
        found = [self._ids.get(key) for key in keys]
        for key, ids in zip(keys, found, strict=True):
            if ids is not None:
                self._ids.move_to_end(key)
        return found

    def add(self, pieces: Iterable[tuple[Key, Ids]]) -> None:
        """Adds pieces, except ones above a quarter of the cache."""
        for key, ids in pieces:
            size = _size(key, ids)
            if key not in self._ids and 4 * size <= self.max_bytes:
                self._ids[key] = ids
                self._num_bytes += size
        while self._num_bytes > self.max_bytes:
            self._num_bytes -= _size(*self._ids.popitem(last=False))

    def check(self) -> None:
        """Asserts that the books are right."""
        assert self._num_bytes == sum(_size(key, ids) for key, ids in self._ids.items())
        assert self._num_bytes <= self.max_bytes


def _size(key: Key, ids: Ids) -> int:
    return sys.getsizeof(key[1]) + len(ids) * ids.itemsize + _ENTRY_BYTES


@dataclass(slots=True)
class Encoding:
    """A text on its way to ids: its pieces and their cached ids."""

    keys: list[Key]
    known: "list[Ids | None]"
    framed: bool
    """Whether to put the ids of `add_special_tokens` around the text."""

    @property
    def missing(self) -> list[Key]:
        """Each piece still to be encoded, once."""
        return list(dict.fromkeys(key for key, ids in zip(self.keys, self.known, strict=True) if ids is None))

    @property
    def num_missing_characters(self) -> int:
        """Characters still to be encoded, which take the time."""
        return sum(len(text) for _, text in self.missing)

    @property
    def num_cached_tokens(self) -> int:
        """Tokens that the cache knew; after the first piece each repeats one."""
        return sum(len(ids) - (index > 0) for index, ids in enumerate(self.known) if ids is not None)


class CachingTokenizer:
    """A `PromptTokenizer` with a cache. The ids do not depend on earlier texts."""

    def __init__(self, tokenizer: PromptTokenizer, cache: PrefixCache) -> None:
        self.tokenizer = tokenizer
        self.cache = cache
        self.least_tokens = LeastTokenCounter(tokenizer)
        self.cuts = Cuts.of(tokenizer)
        self._frame = frame_of(tokenizer)

    def begin(self, text: str, *, add_special_tokens: bool) -> Encoding:
        """The quick part: a millisecond for a million characters."""
        if add_special_tokens and self._frame is None:  # what is added depends on the text, which so stays whole
            keys = [(f"{self.tokenizer.digest}+", text)]
            return Encoding(keys, self.cache.find(keys), framed=False)
        keys = [(self.tokenizer.digest, piece) for piece in self.cuts.pieces(text)]
        return Encoding(keys, self.cache.find(keys), framed=add_special_tokens)

    def finish(self, encoding: Encoding, learnt: Mapping[Key, Ids] = MappingProxyType({})) -> Ids:
        """The slow part: tokenises pieces neither cached nor `learnt` elsewhere."""
        missing = encoding.missing
        new = self.encoded([key for key in missing if key not in learnt])
        new |= {key: learnt[key] for key in missing if key in learnt}
        self.cache.add(new.items())
        before, after = self._frame if encoding.framed and self._frame else ((), ())
        whole = array("I", before)
        for index, (key, ids) in enumerate(zip(encoding.keys, encoding.known, strict=True)):
            piece = new[key] if ids is None else ids
            whole.extend(piece[1:] if index else piece)
        whole.extend(after)
        return whole

    def encoded(self, keys: Iterable[Key]) -> dict[Key, Ids]:
        """The ids of pieces; nothing is looked up."""
        new: dict[Key, Ids] = {}
        for is_framed, group in groupby(keys, lambda key: key[0] != self.tokenizer.digest):
            missing = list(group)
            encoded = self.tokenizer.encode_each([text for _, text in missing], add_special_tokens=is_framed)
            new |= {key: array("I", ids) for key, ids in zip(missing, encoded, strict=True)}
        return new
