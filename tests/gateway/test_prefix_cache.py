"""Cutting and caching never change ids: against the plain tokenizer, for tokenizers of every kind."""

import itertools
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import fastokens
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

import fairlead_engine.demo
from fairlead.gateway.prompts.prefix_cache import CachingTokenizer, Cuts, Ids, PrefixCache, frame_of, joined
from fairlead_common.tokens.tokenizing import PromptTokenizer

DINGHY = Path(fairlead_engine.demo.__file__).parent / "dinghy"
TEXT = ["The quick brown fox jumps over 12 lazy dogs. Größe déjà vu 日本語 word words wordy"] * 3
SPECIAL = ("<s>", "</s>", "<|user|>", "<|end|>")
FRAGMENTS = (
    *SPECIAL,
    *("<|system|>", "<|bos|>", "<tool_call>", "word", " word", "words", "  ", " ", "\n", "\n\n", "x", "12"),
    *("Größe", "<tool>", "<|", "|>", "end", "<|us", "user|>", "日", "ﬁ", "▁"),
    *("\x1c", "\u00a0", "\u0301", "<s", "A fox "),
)
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=40).map("".join)


def encode(encoder: CachingTokenizer, text: str, *, add_special_tokens: bool) -> Ids:
    return encoder.finish(encoder.begin(text, add_special_tokens=add_special_tokens))


def byte_level(add_prefix_space: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def unigram(prepend_scheme: str) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    trainer = trainers.UnigramTrainer(vocab_size=80, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def prepending_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def lowercasing_word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


BASES: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "byte-level, prefix space": lambda: byte_level(add_prefix_space=True),
    "unigram, first word prepended": lambda: unigram("first"),
    "unigram, every stretch prepended": lambda: unigram("always"),
    "unigram, nothing prepended": lambda: unigram("never"),
    "BPE with prepending normalizer": prepending_bpe,
    "lowercasing WordPiece": lowercasing_word_piece,
}
FLAGS: dict[str, dict[str, bool]] = {
    "plain": {},
    "lstrip": {"lstrip": True},
    "rstrip": {"rstrip": True},
    "both": {"lstrip": True, "rstrip": True},
    "single word": {"single_word": True},
    "normalized": {"normalized": True},
    "normalized, rstrip": {"normalized": True, "rstrip": True},
}
KINDS = [("dinghy",), *itertools.product(BASES, FLAGS, ("own", "others"))]


@cache
def tokenizer_of(kind: str) -> PromptTokenizer:
    """`own`: the special tokens have the flags; `others`: ordinary added tokens among plain special ones have them."""
    if kind == "dinghy":
        return PromptTokenizer.from_folder(DINGHY)
    base, flags, role = kind.split(" | ")
    tokenizer = BASES[base]()
    of_special = FLAGS[flags] if role == "own" else {}
    special = [AddedToken(text, special=True, **{"normalized": False, **of_special}) for text in SPECIAL]
    tokenizer.add_special_tokens(special)
    if role == "others":
        words = ("word", "end", "<tool>", " x", "<|")
        tokenizer.add_tokens([AddedToken(text, **{"normalized": False, **FLAGS[flags]}) for text in words])
        ends = [(text, tokenizer.token_to_id(text)) for text in ("<s>", "</s>")]
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    return PromptTokenizer(tokenizer.to_str())


@cache
def cached(kind: str) -> CachingTokenizer:
    return CachingTokenizer(tokenizer_of(kind), PrefixCache(20_000))  # so small that pieces come and go


@pytest.mark.matrix(2)
@pytest.mark.parametrize("kind", KINDS, ids=" | ".join)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=TEXTS, min_piece=st.sampled_from([1, 7, 40]))
def test_pieces_have_the_ids_of_the_whole(kind: tuple[str, ...], text: str, min_piece: int) -> None:
    tokenizer, encoder = tokenizer_of(" | ".join(kind)), cached(" | ".join(kind))
    pieces = encoder.cuts.pieces(text, min_piece)
    assert joined(tokenizer.encode_each(pieces)) == tokenizer.encode(text, add_special_tokens=False)
    for add_special_tokens in (False, True):
        plain = tokenizer.encode(text * 9, add_special_tokens=add_special_tokens)
        assert encode(encoder, text * 9, add_special_tokens=add_special_tokens).tolist() == plain
    encoder.cache.check()


@cache
def quickened(kind: str) -> tuple[PromptTokenizer, bool]:
    """A twin that encodes with fastokens where that may be, and whether it does."""
    twin = PromptTokenizer(tokenizer_of(kind).tokenizer_json)
    return twin, twin.quicken()


@pytest.mark.matrix(2)
@pytest.mark.parametrize("kind", KINDS, ids=" | ".join)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=TEXTS | st.text(), add_special_tokens=st.booleans())
def test_fastokens_gives_the_ids_of_tokenizers(kind: tuple[str, ...], text: str, add_special_tokens: bool) -> None:
    plain = tokenizer_of(" | ".join(kind)).encode(text, add_special_tokens=add_special_tokens)
    assert quickened(" | ".join(kind))[0].encode(text, add_special_tokens=add_special_tokens) == plain


@pytest.mark.parametrize(
    ("kind", "is_quick"),
    [
        ("dinghy", True),
        ("byte-level | plain | own", True),
        ("BPE with prepending normalizer | plain | own", True),
        ("unigram, first word prepended | plain | own", False),
        ("lowercasing WordPiece | plain | own", False),
    ],
)
def test_fastokens_encodes_what_it_knows(kind: str, is_quick: bool) -> None:
    assert quickened(kind)[1] == is_quick


def test_an_encoder_that_differs_in_one_sample_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    other = json.loads(tokenizer_of("dinghy").tokenizer_json)
    del other["model"]["merges"][:20]
    made = fastokens.Tokenizer.from_json_str(json.dumps(other))
    monkeypatch.setattr("fastokens.Tokenizer", SimpleNamespace(from_json_str=lambda text: made))
    assert not PromptTokenizer(tokenizer_of("dinghy").tokenizer_json).quicken()


MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXTS | st.text(max_size=300)}),
    min_size=1,
    max_size=12,
)


@given(MESSAGES)
@settings(max_examples=50, deadline=None)
def test_a_growing_conversation_has_the_ids_it_would_have_without_a_cache(messages: list[dict[str, str]]) -> None:
    tokenizer, encoder = tokenizer_of("dinghy"), CachingTokenizer(tokenizer_of("dinghy"), PrefixCache(1_000_000))
    for end in range(1, len(messages) + 1):
        text = tokenizer.render_chat(messages[:end])
        assert encode(encoder, text, add_special_tokens=False).tolist() == tokenizer.encode_chat(messages[:end])


@pytest.mark.parametrize(
    ("kind", "num_tokens"),
    [
        ("dinghy", 8),
        ("byte-level | plain | own", 4),
        ("byte-level | normalized | own", 4),
        ("byte-level | rstrip | own", 4),
        ("byte-level | single word | own", 0),
        ("unigram, first word prepended | plain | own", 5),
        ("unigram, first word prepended | normalized | own", 1),
        ("lowercasing WordPiece | plain | own", 5),
    ],
)
def test_texts_are_cut_where_that_is_safe(kind: str, num_tokens: int) -> None:
    assert len(Cuts.of(tokenizer_of(kind)).tokens) == num_tokens


def test_a_random_tokenizer_is_never_cut() -> None:
    tokenizer = byte_level()
    tokenizer.model.dropout = 0.1
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    assert not Cuts.of(PromptTokenizer(tokenizer.to_str())).tokens


def test_tokens_that_can_overlap_are_no_places_to_cut() -> None:
    tokenizer = byte_level()
    texts = ("<a>", "<a>b", ">c<", "aa", "<d>")
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in texts])
    assert set(Cuts.of(PromptTokenizer(tokenizer.to_str())).tokens) == set()
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in ("<a>", "<a>b", "aa", "<d>")])
    assert set(Cuts.of(PromptTokenizer(tokenizer.to_str())).tokens) == {"<d>"}


def test_the_tokens_of_the_template_come_first_where_there_are_many() -> None:
    tokenizer = byte_level()
    texts = [f"<|reserved_{number}|>" for number in range(100)] + ["<|user|>"]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in texts])
    cuts = Cuts.of(PromptTokenizer(tokenizer.to_str(), chat_template="<|user|>{{ messages }}"))
    assert next(iter(cuts.tokens)) == "<|user|>"
    assert len(cuts.tokens) == 16


def test_a_text_is_searched_in_windows_without_missing_a_token() -> None:
    encoder = CachingTokenizer(tokenizer_of("dinghy"), PrefixCache(0))
    for offset in itertools.chain(range(65_536 - 10, 65_536 + 2), range(65_536 - 140, 65_536 - 120)):
        text = "x" * (256 + offset) + "<|end|>" + "y" * 10
        assert encoder.cuts.pieces(text) == ["x" * (256 + offset) + "<|end|>", "<|end|>" + "y" * 10]


def test_what_special_tokens_add_is_found_or_known_not_to_be_fixed() -> None:
    assert frame_of(tokenizer_of("dinghy")) == ([0], [])
    assert frame_of(tokenizer_of("byte-level | plain | own")) == ([], [])
    twice = byte_level()
    twice.add_special_tokens(["<s>"])
    twice.post_processor = processors.TemplateProcessing(
        single="$A <s> $A", special_tokens=[("<s>", twice.token_to_id("<s>"))]
    )
    tokenizer = PromptTokenizer(twice.to_str())
    assert frame_of(tokenizer) is None
    encoder = CachingTokenizer(tokenizer, PrefixCache(100_000))
    for _ in range(2):
        assert encode(encoder, "a b", add_special_tokens=True).tolist() == tokenizer.encode("a b")
        assert encode(encoder, "a b", add_special_tokens=False).tolist() == tokenizer.encode(
            "a b", add_special_tokens=False
        )


def test_a_tokenizer_that_lacks_words_is_used_as_it_is() -> None:
    tokenizer = PromptTokenizer(Tokenizer(models.WordLevel({"ahoy": 0}, unk_token="?")).to_str())
    encoder = CachingTokenizer(tokenizer, PrefixCache(100_000))
    assert encode(encoder, "ahoy", add_special_tokens=False).tolist() == [0]
    with pytest.raises(Exception, match="WordLevel"):
        encode(encoder, "land", add_special_tokens=False)


def conversation(num_turns: int) -> str:
    messages = [
        {"role": "user" if turn % 2 == 0 else "assistant", "content": f"{turn}: " + "words and more words " * 30}
        for turn in range(num_turns)
    ]
    return tokenizer_of("dinghy").render_chat(messages)


def test_a_conversation_grown_by_a_turn_costs_that_turn() -> None:
    encoder = CachingTokenizer(tokenizer_of("dinghy"), PrefixCache(10_000_000))
    before, after = conversation(21), conversation(23)
    first = encoder.begin(before, add_special_tokens=False)
    assert first.num_missing_characters >= len(before)
    assert first.num_cached_tokens == 0
    ids = encoder.finish(first)
    second = encoder.begin(after, add_special_tokens=False)
    assert second.num_missing_characters <= len(after) - len(before) + 600
    assert len(ids) - 300 <= second.num_cached_tokens <= len(ids)
    assert encoder.finish(second)[: len(ids) - 1] == ids[:-1]
    again = encoder.begin(after, add_special_tokens=False)
    assert again.num_missing_characters == 0
    assert again.num_cached_tokens == len(encoder.finish(again))


def test_a_cache_stays_within_its_bytes_and_keeps_what_was_used_last() -> None:
    store = PrefixCache(100_000)
    encoder = CachingTokenizer(tokenizer_of("dinghy"), store)
    kept = "<|user|>the text that is asked for again and again"
    for number in range(300):
        encode(encoder, kept, add_special_tokens=False)
        encode(encoder, f"{number} " * 200, add_special_tokens=False)
        store.check()
    assert encoder.begin(kept, add_special_tokens=False).num_missing_characters == 0
    assert encoder.begin("0 " * 200, add_special_tokens=False).num_missing_characters > 0
    encode(encoder, "x " * 100_000, add_special_tokens=False)
    assert encoder.begin("x " * 100_000, add_special_tokens=False).num_missing_characters > 0, "not worth what it costs"
    assert encoder.begin(kept, add_special_tokens=False).num_missing_characters == 0


def test_tokenizers_that_share_a_cache_do_not_share_ids() -> None:
    store = PrefixCache(1_000_000)
    for kind in ("dinghy", "byte-level | plain | own", "dinghy"):
        encoder = CachingTokenizer(tokenizer_of(kind), store)
        plain = tokenizer_of(kind).encode("ahoy, sailor", add_special_tokens=False)
        assert encode(encoder, "ahoy, sailor", add_special_tokens=False).tolist() == plain
