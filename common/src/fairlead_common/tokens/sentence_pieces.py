"""SentencePiece's `tokenizer.model`, made into `tokenizer.json`.

SentencePiece normalises a text as a whole, then cuts user-defined pieces out, then joins or chooses pieces. Tokens
added by a model's folder are cut out before all that, as transformers does, so a text between two such tokens is
normalised alone. With `legacy` each of these texts gets the space in front; without, the first of a prompt alone,
unless spaces are removed or a charsmap is applied.

Known to differ from SentencePiece: user-defined pieces that begin a prompt get no space in front where the prompt is
nothing else, or `legacy` is false. Of unigram models, user-defined pieces that overlap are cut from the left, and sums
of scores have 64 bits.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from fairlead_common.tokens.added_tokens import AddedTokens, read_added_tokens
from fairlead_common.tokens.piece_file import LARGEST_FILE, Piece, PieceKind, PieceModel, read_piece_model
from fairlead_common.tokens.stored_tokenizer import StoredTokenizer

SPACE = "\u2581"
_MOST_TOKENS = 2**21
_MOST_JOINTS = 2**21
"""A tokenizer of 260,000 pieces has 600,000; each takes 300 bytes until the tokenizer is made."""
_RANKED = re.compile(rb"[A-Za-z0-9+/=]+ [0-9]+\r?\n")
_BARE = frozenset({"Ernie4_5_Tokenizer"})
"""Classes of tokenizers that put no bos token in front unless told to."""
_COMPOSING = frozenset({"nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"})
"""Charsmaps that make one letter of a letter with marks."""
_PART = "\ufdd0"
"""No letter of any text."""
_SAMPLE = "Hello,  world! \u00c5 e\u0301 \ufb01 \u2460 \u3042\n\ud55c \U0001f600"


def sentence_piece(
    path: Path, config: Mapping[str, Any], special_map: Mapping[str, Any], ids: Mapping[str, Any]
) -> StoredTokenizer:
    """`config`, `special_map`, `ids`: as in `read_added_tokens`. Raises OSError, ValueError, and bare Exception for
    parts that do not fit together."""
    if (size := path.stat().st_size) > LARGEST_FILE:
        raise ValueError(f"it has {size} bytes, more than {LARGEST_FILE}")
    raw = path.read_bytes()
    if _RANKED.match(raw):
        raise ValueError("it lists tokens with ranks, as tiktoken does, and how a text is cut is not in the file")
    model, added = read_piece_model(raw), read_added_tokens(config, special_map, ids)
    roles = {"unk_token": model.pieces[model.unknown].text} | model.roles | added.roles
    own = [AddedToken(text, normalized=False, special=True) for text in roles.values()]
    texts, tokens = _all_texts(model, added, [*own, *added.special])
    tokenizer = Tokenizer(_unigram(model, texts) if model.is_unigram else _bpe(model, texts))
    is_legacy = config.get("legacy") is not False or bool(model.charsmap) or model.removes_spaces
    prefix = config.get("add_prefix_space", model.dummy_prefix if is_legacy else True)
    symbols = [piece.text for piece in model.pieces if piece.kind is PieceKind.USER_DEFINED and " " not in piece.text]
    _set_text_steps(tokenizer, model, symbols, bool(prefix), is_legacy)
    normal = tokenizer.normalizer
    settled = {each.content for each in tokens}
    for text in symbols:
        if text not in settled:
            is_same = normal.normalize_str(text) == text
            tokens.append(AddedToken(text, normalized=is_same, special=False))
    tokenizer.add_special_tokens([token for token in tokens if token.special])
    tokenizer.add_tokens([token for token in tokens if not token.special])
    tokenizer.post_processor = _frame(tokenizer, config, roles)
    tokenizer.encode(_SAMPLE)  # a charsmap that cannot be applied fails here
    return StoredTokenizer(tokenizer.to_str(), roles)


def joints(ids: Mapping[str, int], scored: Iterable[tuple[str, float]]) -> list[tuple[str, str]]:
    """Merges of BPE: every split of a token into two tokens of `ids`, the likeliest tokens first, in the order of
    SentencePiece. Raises ValueError for too many."""
    found: list[tuple[float, str, str]] = []
    for token, score in scored:
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        pairs = sorted((ids[left], ids[right], left, right) for left, right in cuts if left in ids and right in ids)
        found += [(-score, left, right) for *_, left, right in pairs]
        if len(found) > _MOST_JOINTS:
            raise ValueError(f"its pieces are joined of others in more than {_MOST_JOINTS} ways")
    return [(left, right) for _, left, right in sorted(found, key=lambda each: each[0])]


def _all_texts(model: PieceModel, added: AddedTokens, special: list[AddedToken]) -> tuple[list[str], list[AddedToken]]:
    """Texts by id, and the tokens to be found in a text as it is given."""
    texts = dict(enumerate(piece.text for piece in model.pieces))
    if any(not 0 <= id < _MOST_TOKENS for id in added.by_id):
        raise ValueError(f"an added token has the id {max(added.by_id, key=abs)}")
    texts |= {id: token.content for id, token in added.by_id.items()}
    texts |= {id: f"<|reserved_token_{id}|>" for id in range(max(texts) + 1) if id not in texts}
    known = set(texts.values())
    if len(known) != len(texts):
        [(doubled, _)] = Counter(texts.values()).most_common(1)
        raise ValueError(f"an added token has the text of another token, {doubled!r:.80}")
    tokens = {token.content: token for token in added.by_id.values()}
    for token in special:
        if token.content not in known:
            texts[len(texts)] = token.content
            known.add(token.content)
        if not (settled := tokens.get(token.content)) or not settled.special:
            tokens[token.content] = token
    controls = (piece.text for piece in model.pieces if piece.kind is PieceKind.CONTROL)
    for text in controls:
        if text in known:
            tokens.setdefault(text, AddedToken(text, normalized=False, special=True))
    return [texts[id] for id in range(len(texts))], list(tokens.values())


def _bpe(model: PieceModel, texts: list[str]) -> models.BPE:
    """Only ordinary pieces are joined, and of ordinary pieces."""
    normal = [piece for id, piece in enumerate(model.pieces) if _is_normal(piece, texts[id])]
    ids = {text: id for id, text in enumerate(texts)}
    merges = joints({piece.text: ids[piece.text] for piece in normal}, [piece[:2] for piece in normal])
    unknown = texts[model.unknown]
    return models.BPE(vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=model.byte_fallback)


def _unigram(model: PieceModel, texts: list[str]) -> models.Unigram:
    """Pieces that are not ordinary have the lowest score, of which that of unknown letters is reckoned."""
    normal = {piece.text: piece.score for id, piece in enumerate(model.pieces) if _is_normal(piece, texts[id])}
    lowest = min(normal.values(), default=0.0)
    scored = [(text, normal.get(text, lowest)) for text in texts]
    return models.Unigram(scored, model.unknown, model.byte_fallback)


def _is_normal(piece: Piece, text: str) -> bool:
    return piece.kind is PieceKind.NORMAL and piece.text == text


def _set_text_steps(tokenizer: Tokenizer, model: PieceModel, symbols: list[str], prefix: bool, is_legacy: bool) -> None:
    """Before the model, and behind: charsmap, spaces removed, space in front, spaces written as U+2581."""
    steps = _charsmap(model)
    if model.removes_spaces:
        ends = ((r"\A +", ""), (" {2,}", " "), (rf"[ {SPACE}]+\z", ""))
        steps += [normalizers.Replace(Regex(pattern), text) for pattern, text in ends]
    if prefix and is_legacy:  # tokenizers normalises the symbols, too, and these are searched without
        others = rf"(?!(?:{'|'.join(map(re.escape, symbols))})\z)" if symbols else ""
        steps.append(normalizers.Replace(Regex(rf"\A{others}(?=[\s\S])"), SPACE))
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    cuts: list[Any] = []
    if prefix and not is_legacy:  # the first writes a space, since U+2581 is not written before another
        cuts = [
            pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="first", split=False),
            pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="never", split=False),
        ]
    if model.is_unigram and model.byte_fallback:  # or such a text would be the byte
        cuts.append(pre_tokenizers.Split(Regex("<(?=0x[0-9A-F]{2}>)"), behavior="merged_with_previous"))
    if cuts:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    undone: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    stripped = [decoders.Strip(" ", 1, 0)] if prefix or model.removes_spaces else []
    tokenizer.decoder = decoders.Sequence([*undone, *stripped])


def _charsmap(model: PieceModel) -> list[Any]:
    """tokenizers applies a charsmap to a letter with its marks, and loses the marks of a letter that is replaced."""
    if not model.charsmap:
        return []
    applied = normalizers.Precompiled(model.charsmap)
    if model.rules not in _COMPOSING:
        return [applied]
    parted = normalizers.Replace(Regex(r"(?<=[\s\S])(?=\p{M})"), _PART)
    return [normalizers.NFC(), parted, applied, normalizers.Replace(_PART, "")]


def _frame(
    tokenizer: Tokenizer, config: Mapping[str, Any], roles: Mapping[str, str]
) -> processors.TemplateProcessing | None:
    """The tokens around a text; None = none."""
    has_bos = config.get("add_bos_token", config.get("tokenizer_class") not in _BARE)
    asked = {"bos_token": has_bos, "eos_token": config.get("add_eos_token", False)}
    bos, eos = ([roles[role]] if asked[role] and role in roles else [] for role in asked)
    if not bos and not eos:
        return None
    ids = [(text, tokenizer.token_to_id(text)) for text in sorted({*bos, *eos})]
    pair = [*bos, "$A:0", "$B:1", *eos]
    return processors.TemplateProcessing(single=[*bos, "$A", *eos], pair=pair, special_tokens=ids)
