"""Token ids → text, a token at a time, never breaking a character.

Two ways, by the tokenizer's decoder. A byte-level vocabulary (GPT-2's alphabet, as in Llama 3 and Qwen) tells each
token's exact bytes, which makes an incremental UTF-8 decoder exact and cheap. Any other decoder decodes a short window
of tokens with and without the new token: a token's text depends on the text before, as SentencePiece's decoders drop a
leading space.
"""

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, takewhile
from typing import Any, Protocol

from fairlead_common.tokens.ranked_pairs import BYTE_OF_LETTER
from fairlead_common.tokens.tokenizing import PromptTokenizer, TokenizerError

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_PENDING = 16
"""Most tokens that wait for the rest of a character; a character has at most four byte tokens."""
_MOST_BEGUN = 3
"""Most bytes of an incomplete character."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
"""How vocabularies with byte fallback, as Llama 2's, write the token of a single byte."""


_MOST_GROWTH = 8.0
"""Largest ratio of decoded to encoded text, by the decoder's replacements."""
_LONGEST_TOKEN = 4096
"""In characters."""
_REPEATS = re.compile(r"(?<!\\)[*+?{]")


class TokenStream(Protocol):
    def push(self, token_id: int) -> str:
        """Text that has become certain; empty in the middle of a character."""

    def finish(self) -> str:
        """The rest: a replacement character for an incomplete last character."""


class Vocabulary:
    """A tokenizer's mapping from ids to text and bytes. One per model; a stream holds the state of one sequence. Raises
    `TokenizerError` for a decoder that may expand ids to far longer texts, as decoders run for each token."""

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self.tokenizer = tokenizer
        decoder = json.loads(tokenizer.tokenizer_json).get("decoder") or {}
        _check_bounded(tokenizer, decoder)
        self._is_byte_level = decoder.get("type") == "ByteLevel"
        self._has_byte_tokens = any(
            part.get("type") == "ByteFallback" for part in [decoder, *decoder.get("decoders", [])]
        )
        added = tokenizer.backend.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._added_ids = frozenset(added)
        self._bytes: dict[int, bytes] = {}
        self._whole: dict[int, str | None] = {}

    def stream(
        self,
        *,
        after: Sequence[int] = (),
        skip_special_tokens: bool = True,
        shown: frozenset[int] = frozenset(),
        tells_begun: bool = True,
    ) -> TokenStream:
        """A new stream for one sequence: the text behind the tokens in `after`, including a character that begins in
        `after`. `shown`: special tokens that are never left out. `tells_begun`: whether a character that begins in
        `after` and is not continued is shown as broken."""
        if shown and skip_special_tokens:
            return _MarkedStream(self, after, shown, tells_begun)
        visible = (each for each in reversed(after) if not (skip_special_tokens and self.is_special(each)))
        before = [*islice(visible, _MAX_PENDING)][::-1]
        if self._is_byte_level:
            return _ByteLevelStream(self, before, skip_special_tokens, tells_begun)
        before = before[self._num_ending(before) :]
        num_begun = self._num_begun(before)
        return _WindowStream(self, before, num_begun, skip_special_tokens, tells_begun)

    def text_before(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of the tokens, without an incomplete last character, which belongs to the following stream."""
        token_ids = self._without_begun(token_ids, skip_special_tokens)
        text = self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        if not self._is_byte_level:
            return text
        begun = self.stream(after=token_ids, skip_special_tokens=skip_special_tokens).finish()
        return text[: len(text) - len(begun)]

    def _num_begun(self, token_ids: Sequence[int]) -> int:
        """Number of last tokens that are single bytes of an incomplete character."""
        if not self._has_byte_tokens:
            return 0
        for number in range(1, min(len(token_ids), _MOST_BEGUN) + 1):
            tokens = [self.tokenizer.backend.id_to_token(each) or "" for each in token_ids[-number:]]
            if not all(map(_BYTE_TOKEN.fullmatch, tokens)):
                break
            try:
                if not codecs.utf_8_decode(b"".join(map(self.token_bytes, token_ids[-number:])), "strict", False)[0]:
                    return number
            except UnicodeDecodeError:
                continue  # in the middle of one
        return 0

    def _num_ending(self, token_ids: Sequence[int]) -> int:
        """Number of first tokens that are single bytes completing an earlier character."""
        tokens = (self.tokenizer.backend.id_to_token(each) or "" for each in token_ids[:_MOST_BEGUN])
        found = (_BYTE_TOKEN.fullmatch(token) for token in tokens)
        return len([*takewhile(lambda byte: byte is not None and 0x80 <= int(byte[1], 16) < 0xC0, found)])

    def _without_begun(self, token_ids: Sequence[int], skip_special_tokens: bool) -> Sequence[int]:
        """The tokens before an incomplete last character: decoders with byte fallback take a whole run of bytes for
        broken if one byte is."""
        if not self._has_byte_tokens:
            return token_ids
        places = range(len(token_ids) - 1, -1, -1)
        shown = (each for each in places if not (skip_special_tokens and self.is_special(token_ids[each])))
        last = [*islice(shown, _MOST_BEGUN)][::-1]
        num_begun = self._num_begun([token_ids[place] for place in last])
        return token_ids[: last[-num_begun]] if num_begun else token_ids

    def special_id(self, text: str) -> int | None:
        """Id of a text, if it is a special token."""
        token_id = self.tokenizer.token_id(text)
        return token_id if token_id is not None and self.is_special(token_id) else None

    def named_id(self, text: str) -> int | None:
        """Id of this text in grammars: for special tokens, and for added tokens in angle brackets such as Qwen's
        `<tool_call>`; llguidance takes both for special."""
        token_id = self.tokenizer.token_id(text)
        if token_id is None or token_id not in self._added_ids:
            return None
        return token_id if self.is_special(token_id) or (text.startswith("<") and text.endswith(">")) else None

    def is_special(self, token_id: int) -> bool:
        """Whether the token is markup (end of sequence, roles, …), hidden from users."""
        return token_id in self._special_ids

    def is_byte(self, token_id: int) -> bool:
        """Whether the token is a single byte in a vocabulary with byte fallback."""
        return self._has_byte_tokens and bool(_BYTE_TOKEN.fullmatch(self.tokenizer.backend.id_to_token(token_id) or ""))

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token; empty for an unknown id."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._look_up(token_id)
        return found

    def whole_text(self, token_id: int) -> str | None:
        """Text of a token of whole characters; None = the token begins or ends within a character."""
        if token_id not in self._whole:
            try:
                self._whole[token_id] = self.token_bytes(token_id).decode()
            except UnicodeDecodeError:
                self._whole[token_id] = None
        return self._whole[token_id]

    def token_text(self, token_id: int) -> str:
        """The token's own text, for log-probabilities; invalid UTF-8 shows as U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")

    def _look_up(self, token_id: int) -> bytes:
        token = self.tokenizer.backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._has_byte_tokens and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(byte[1])
        if not self._is_byte_level:
            before, both = self._plain_token, [*self._plain_token, token_id]
            text = self.tokenizer.decode(both, skip_special_tokens=False)
            return text[len(self.tokenizer.decode(before, skip_special_tokens=False)) :].encode()
        try:
            return bytes(BYTE_OF_LETTER[letter] for letter in token)
        except KeyError:  # an added token written in plain text
            return token.encode()

    @cached_property
    def _plain_token(self) -> list[int]:
        """A token of letters alone; behind letters tokens decode as within a text."""
        ids = range(self.tokenizer.vocab_size)
        return next(([each] for each in ids if self.tokenizer.decode([each], skip_special_tokens=False).isalnum()), [])


def _check_bounded(tokenizer: PromptTokenizer, decoder: Mapping[str, Any]) -> None:
    factor = 1.0
    for step in _steps(decoder):
        pattern = step.get("pattern") or {}
        replaced = pattern.get("String") if step.get("type") == "Replace" else " "
        if replaced is None and (regex := pattern.get("Regex") or "") and len(_REPEATS.findall(regex)) > 1:
            raise TokenizerError(f"its decoder replaces {regex!r}, which may take for ever; replace a text instead")
        factor *= max(1.0, len(step.get("content") or "") / max(1, len(replaced or "")))
    if factor > _MOST_GROWTH:
        text = f"its decoder makes a text up to {factor:g} times as long"
        raise TokenizerError(f"{text}; at most {_MOST_GROWTH:g} are served")
    longest = max(map(len, tokenizer.backend.get_vocab(with_added_tokens=True)), default=0)
    if longest > _LONGEST_TOKEN:
        raise TokenizerError(f"it has a token of {longest:,} characters; at most {_LONGEST_TOKEN:,} are served")


def _steps(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield decoder
    for each in decoder.get("decoders") or ():
        yield from _steps(each)


class _MarkedStream:
    """Leaves special tokens out except for `shown`; a shown token ends an incomplete character."""

    def __init__(self, vocabulary: Vocabulary, after: Sequence[int], shown: frozenset[int], tells_begun: bool) -> None:
        self._vocabulary = vocabulary
        self._shown = shown
        self._stream = vocabulary.stream(after=after, tells_begun=tells_begun)

    def push(self, token_id: int) -> str:
        if token_id not in self._shown:
            return self._stream.push(token_id)
        text = self._stream.finish() + self._vocabulary.token_text(token_id)
        self._stream = self._vocabulary.stream(after=[token_id])
        return text

    def finish(self) -> str:
        return self._stream.finish()


class _ByteLevelStream:
    def __init__(self, vocabulary: Vocabulary, before: list[int], skip_special_tokens: bool, tells_begun: bool) -> None:
        self._vocabulary = vocabulary
        self._skip_special = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoder.decode(b"".join(map(vocabulary.token_bytes, before)))  # keeps a character that has begun
        begun = self._decoder.getstate()[0]
        self._is_within = bool(begun)
        self._foreign = b"" if tells_begun else begun
        """Bytes of a character that began before the stream; empty once the stream has content of its own."""

    def push(self, token_id: int) -> str:
        if self._skip_special and self._vocabulary.is_special(token_id):
            return ""
        if not self._is_within and (whole := self._vocabulary.whole_text(token_id)) is not None:
            return whole
        content = self._vocabulary.token_bytes(token_id)
        if self._foreign and content:
            if not _goes_on(self._foreign, content):
                self._decoder.reset()
            self._foreign = b""
        text = self._decoder.decode(content)
        self._is_within = bool(self._decoder.getstate()[0])
        return text

    def finish(self) -> str:
        return "" if self._foreign else self._decoder.decode(b"", final=True)


def _goes_on(begun: bytes, content: bytes) -> bool:
    """Whether the first byte of `content` continues the incomplete character."""
    try:
        codecs.utf_8_decode(begun + content[:1], "strict", False)
    except UnicodeDecodeError:
        return False
    return True


class _WindowStream:
    """Decodes the last whole piece together with the newer tokens, for the right spacing between tokens."""

    def __init__(
        self, vocabulary: Vocabulary, before: list[int], num_begun: int, skip_special_tokens: bool, tells_begun: bool
    ) -> None:
        """`num_begun`: number of tokens at the end of `before` that begin a character."""
        self._vocabulary = vocabulary
        self._skip_special = skip_special_tokens
        num_settled = len(before) - num_begun
        self._settled, self._pending = before[:num_settled], before[num_settled:]
        """The tokens of the text returned last, as context of the next tokens; and tokens of an incomplete text."""
        self._foreign = b"" if tells_begun else b"".join(map(vocabulary.token_bytes, self._pending))
        """Bytes of a character that began before the stream; empty once the stream has content of its own."""

    def push(self, token_id: int) -> str:
        if self._foreign:
            content = self._vocabulary.token_bytes(token_id)
            if not content or (self._skip_special and self._vocabulary.is_special(token_id)):
                return ""
            if not self._vocabulary.is_byte(token_id) or not _goes_on(self._foreign, content):
                self._pending = []
            self._foreign = b""
        self._pending.append(token_id)
        text = self._new_text()
        if text.endswith(_REPLACEMENT) and len(self._pending) < _MAX_PENDING:
            return ""
        if text:
            self._settled, self._pending = self._pending, []
        elif len(self._pending) > _MAX_PENDING:  # markup and unknown ids have no text
            del self._pending[0]
        return text

    def finish(self) -> str:
        if self._foreign:
            return ""
        text = self._new_text()
        self._settled, self._pending = [], []
        return text

    def _new_text(self) -> str:
        decode, skips = self._vocabulary.tokenizer.decode, self._skip_special
        before = decode(self._settled, skip_special_tokens=skips)
        return decode(self._settled + self._pending, skip_special_tokens=skips)[len(before) :]
