"""Token ids → text, a token at a time, never breaking a character.

Two ways, by the tokenizer's decoder. A byte-level vocabulary (GPT-2's alphabet, as in Llama 3 and Qwen) says exactly
which bytes each token stands for, so an incremental UTF-8 decoder is both exact and cheap. Any other decoder is asked
for the text of a short window of tokens, with and without the new one: what a token's text is depends there on what
stands before it, as SentencePiece's decoders drop the space that begins a text.
"""

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, takewhile
from typing import Any, Protocol

from fairlead_protocol.tokenizing import PromptTokenizer, TokenizerError

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_PENDING = 16
"""Tokens whose text may wait for the rest of a character; no character needs more than four byte tokens."""
_MOST_BEGUN = 3
"""Bytes that a character may have without being whole."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
"""How vocabularies with byte fallback, as Llama 2's, write the token of a single byte."""


_MOST_GROWTH = 8.0
"""Times that a decoder may make a text longer, by what it replaces."""
_LONGEST_TOKEN = 4096
"""Characters."""
_REPEATS = re.compile(r"(?<!\\)[*+?{]")


class TokenStream(Protocol):
    """The text of one sequence, growing."""

    def push(self, token_id: int) -> str:
        """The text that is certain now and was not before; empty in the middle of a character."""

    def finish(self) -> str:
        """What is left: a replacement character where the last character never became whole."""


class Vocabulary:
    """A tokenizer's way back from ids to text and bytes. One per model; its streams hold the state of one sequence.
    Raises `TokenizerError` for one that may make much more of ids than they stand for: it is asked for each token."""

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
        """A fresh stream for one sequence. Its text is what follows that of the tokens in `after`, together with a
        character that begins in those. `shown`: special tokens that are never left out. `tells_begun`: whether a
        character that begins in `after` and goes on in none of the stream's own is told, as broken."""
        if shown and skip_special_tokens:
            return _MarkedStream(self, after, shown, tells_begun)
        visible = (each for each in reversed(after) if not (skip_special_tokens and self.is_special(each)))
        before = [*islice(visible, _MAX_PENDING)][::-1]
        if self._is_byte_level:
            return _ByteLevelStream(self, before, skip_special_tokens, tells_begun)
        before = before[self._num_ending(before) :]
        num_begun = self._num_begun(before)
        stream = _WindowStream(self.tokenizer, before, num_begun, skip_special_tokens)
        return (
            stream
            if tells_begun or not num_begun
            else _OwnStream(self, stream, before[-num_begun:], skip_special_tokens)
        )

    def text_before(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of the tokens, but for the beginning of a character that a stream after them begins with."""
        token_ids = self._without_begun(token_ids, skip_special_tokens)
        text = self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        if not self._is_byte_level:
            return text
        begun = self.stream(after=token_ids, skip_special_tokens=skip_special_tokens).finish()
        return text[: len(text) - len(begun)]

    def _num_begun(self, token_ids: Sequence[int]) -> int:
        """How many of the last tokens are single bytes that begin a character without ending it."""
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
        """How many of the first tokens are single bytes that end a character which began before them."""
        tokens = (self.tokenizer.backend.id_to_token(each) or "" for each in token_ids[:_MOST_BEGUN])
        found = (_BYTE_TOKEN.fullmatch(token) for token in tokens)
        return len([*takewhile(lambda byte: byte is not None and 0x80 <= int(byte[1], 16) < 0xC0, found)])

    def _without_begun(self, token_ids: Sequence[int], skip_special_tokens: bool) -> Sequence[int]:
        """Up to a character that begins in them, for decoders that are asked for a text as a whole: such as fall back
        to bytes take all bytes in a row for broken where one is."""
        if not self._has_byte_tokens:
            return token_ids
        places = range(len(token_ids) - 1, -1, -1)
        shown = (each for each in places if not (skip_special_tokens and self.is_special(token_ids[each])))
        last = [*islice(shown, _MOST_BEGUN)][::-1]
        num_begun = self._num_begun([token_ids[place] for place in last])
        return token_ids[: last[-num_begun]] if num_begun else token_ids

    def special_id(self, text: str) -> int | None:
        """The id of a text that is a special token."""
        token_id = self.tokenizer.token_id(text)
        return token_id if token_id is not None and self.is_special(token_id) else None

    def named_id(self, text: str) -> int | None:
        """The id by which a grammar has to name this text: of a special token, and of any added one in angle brackets,
        as Qwen's `<tool_call>` is, which llguidance takes for special."""
        token_id = self.tokenizer.token_id(text)
        if token_id is None or token_id not in self._added_ids:
            return None
        return token_id if self.is_special(token_id) or (text.startswith("<") and text.endswith(">")) else None

    def is_special(self, token_id: int) -> bool:
        """Whether the token is markup (end of sequence, roles, …) that users do not see."""
        return token_id in self._special_ids

    def is_byte(self, token_id: int) -> bool:
        """Whether the token is a single byte of a vocabulary that falls back to them."""
        return self._has_byte_tokens and bool(_BYTE_TOKEN.fullmatch(self.tokenizer.backend.id_to_token(token_id) or ""))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for; empty for an id that the tokenizer does not know."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._look_up(token_id)
        return found

    def whole_text(self, token_id: int) -> str | None:
        """The text of a token whose bytes are whole characters; None for one that begins or ends within one."""
        if token_id not in self._whole:
            try:
                self._whole[token_id] = self.token_bytes(token_id).decode()
            except UnicodeDecodeError:
                self._whole[token_id] = None
        return self._whole[token_id]

    def token_text(self, token_id: int) -> str:
        """The token's own text, for log-probabilities; bytes that are no text by themselves show as U+FFFD."""
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
            return bytes(_BYTE_OF_LETTER[letter] for letter in token)
        except KeyError:  # an added token written in plain text
            return token.encode()

    @cached_property
    def _plain_token(self) -> list[int]:
        """Some token of letters alone: what another one's text is behind it, it is within any text."""
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
    """Leaves special tokens out but for some, which end whatever character has begun before them."""

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
        """Bytes of a character that began before the stream, until one of its own is there."""

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
    """Whether the first byte belongs to the character that others begin."""
    try:
        codecs.utf_8_decode(begun + content[:1], "strict", False)
    except UnicodeDecodeError:
        return False
    return True


class _OwnStream:
    """Of a window that begins with bytes of a character: leaves them out where nothing goes on with it."""

    def __init__(
        self, vocabulary: Vocabulary, stream: "_WindowStream", begun: list[int], skip_special_tokens: bool
    ) -> None:
        self._vocabulary = vocabulary
        self._stream = stream
        self._skip_special = skip_special_tokens
        self._begun = b"".join(map(vocabulary.token_bytes, begun))
        """Empty once a token of the stream's own has come that says something."""

    def push(self, token_id: int) -> str:
        if self._begun:
            content = self._vocabulary.token_bytes(token_id)
            if not content or (self._skip_special and self._vocabulary.is_special(token_id)):
                return ""
            if not self._vocabulary.is_byte(token_id) or not _goes_on(self._begun, content):
                self._stream.drop_pending()
            self._begun = b""
        return self._stream.push(token_id)

    def finish(self) -> str:
        return "" if self._begun else self._stream.finish()


class _WindowStream:
    """Decodes the last whole piece together with what came after it, so that spacing between tokens comes out right."""

    def __init__(
        self, tokenizer: PromptTokenizer, before: list[int], num_begun: int, skip_special_tokens: bool
    ) -> None:
        """`num_begun`: tokens at the end of `before` that are the beginning of a character."""
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        num_settled = len(before) - num_begun
        self._settled, self._pending = before[:num_settled], before[num_settled:]
        """Tokens whose text was handed out last, the context of the next ones; and those whose text is not whole."""

    def push(self, token_id: int) -> str:
        self._pending.append(token_id)
        text = self._new_text()
        if text.endswith(_REPLACEMENT) and len(self._pending) < _MAX_PENDING:
            return ""
        if text:
            self._settled, self._pending = self._pending, []
        elif len(self._pending) > _MAX_PENDING:  # markup and unknown ids: they say nothing, however many they are
            del self._pending[0]
        return text

    def drop_pending(self) -> None:
        """What waits for the rest of a character is no part of the text."""
        self._pending = []

    def finish(self) -> str:
        text = self._new_text()
        self._settled, self._pending = [], []
        return text

    def _new_text(self) -> str:
        before = self._tokenizer.decode(self._settled, skip_special_tokens=self._skip_special)
        whole = self._tokenizer.decode(self._settled + self._pending, skip_special_tokens=self._skip_special)
        return whole[len(before) :]


_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTE_OF_LETTER = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(_OTHERS)}
"""GPT-2's alphabet: printable Latin-1 stands for itself, every other byte for a letter from U+0100 on."""
