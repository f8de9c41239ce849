"""Where a text may be cut so that its pieces, tokenised one by one, give the ids of the whole.

Byte-pair encoding is not stable under cutting: the last letters of a piece may belong to a token with the first of the
next. But every tokenizer first takes the added tokens (`<|end|>`, …) out of a text, and only then normalises, splits
and encodes what is left between them, stretch by stretch. Behind such a token a text can therefore be cut, if

- it is found as itself wherever it stands: taken out before normalisation, or nothing is normalised; not bound to word
  boundaries; and no other added token can overlap it, not even itself;
- white space behind it that belongs to it (`rstrip`) is left on its side, and begins no other token;
- the next piece is tokenised with the token in front of it, so that what depends on the place in the text, as a space
  put in front of the first word, happens as in the whole.

What cannot be seen from the outside, such as a random element in the model, rules cutting out; and every tokenizer has
to show on samples that it holds. Then there are no cuts, and a text is one piece.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, cast

import msgspec
import tokenizers

from fairlead_protocol.tokenizing import PromptTokenizer

MIN_PIECE = 256
"""Characters; shorter pieces are joined with what follows them, as each costs a few microseconds."""
MAX_CUT_TOKENS = 16
_LONGEST = 128
"""Characters of a token."""
_WINDOW = 65536
"""Characters that one search may look at: it holds the interpreter's lock."""
_MODELS = frozenset({"BPE", "Unigram", "WordPiece", "WordLevel"})
_SPACE = re.compile(r"[ \t\r\n]*")
_SAMPLES = ("word", " a b", "x\n", "  ", "Zwölf 12. ", "\n\nline", "")


class _Model(msgspec.Struct):
    type: str | None = None
    dropout: float | None = None
    alpha: float | None = None


class _Parts(msgspec.Struct):
    """The few parts of `tokenizer.json` that matter here; the vocabulary is skipped unread."""

    model: _Model
    normalizer: Any = None


class Cuts:
    """The special tokens of one tokenizer behind which its texts may be cut; without any there are no cuts."""

    def __init__(self, tokens: Iterable[tokenizers.AddedToken] = ()) -> None:
        """`tokens`: for which all of the above holds."""
        self.tokens = {token.content: token.rstrip for token in tokens}
        """Whether the white space behind it belongs to it, by the token's text."""
        self._pattern = re.compile("|".join(map(re.escape, self.tokens)))

    @classmethod
    def of(cls, tokenizer: PromptTokenizer) -> "Cuts":
        """Those that the tokenizer's own file shows to be safe, if the samples agree."""
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
        """`text` in pieces of at least `min_piece` characters, but for the last. Each piece after the first begins with
        the token that the one before it ends with.

        Where it is cut depends only on the text before, so texts that begin alike have the same first pieces.
        """
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
        """The first token from `start` on behind which there is more text, and where the text goes on behind it."""
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
    """Of the tokens that are safe, those a chat's prompt is most likely to have."""
    parts = msgspec.json.decode(tokenizer.tokenizer_json, type=_Parts)
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
        """Whether this token can share characters with another one, or with itself."""
        return any(text[:end] in tails or text[end:] in heads for end in range(1, len(text))) or any(
            text in other or other in text for other in texts if other != text
        )

    return list(islice((token for token in candidates if not can_overlap(token.content)), MAX_CUT_TOKENS))


def frame_of(tokenizer: PromptTokenizer) -> tuple[list[int], list[int]] | None:
    """The ids that `add_special_tokens` puts before and after any text; None where they depend on the text."""
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
    """The ids of a text from those of its pieces: all but the first repeat the token before them."""
    whole: list[int] = []
    for index, piece in enumerate(ids):
        whole.extend(piece[1:] if index else piece)
    return whole
