"""The fewest tokens a text can have: never more than it has, and enough to refuse what fits no model."""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

import fairlead_engine.demo
from fairlead_common.tokens.least_tokens import LeastTokenCounter
from fairlead_common.tokens.tokenizing import PromptTokenizer

DINGHY = Path(fairlead_engine.demo.__file__).parent / "dinghy"
CORPUS = ["The quick brown fox jumps over 12 lazy dogs. Größe déjà vu 日本語 한국어 word words wordy" + " " * 40] * 3
ADDED = (
    AddedToken("<|end|>", normalized=False, special=True),
    AddedToken("<greedy>", normalized=False, lstrip=True, rstrip=True),
    AddedToken("é", normalized=True),
    AddedToken("e\u0301nde", normalized=True),
    AddedToken(" x ", normalized=False),
)


def byte_level(*, nfc: bool = False, strips: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+|\s+(?!\S)|\s+|[^\s\p{L}\p{N}]+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([token for token in ADDED if strips or not token.lstrip])
    return tokenizer


def sentence_piece() -> Tokenizer:
    """BPE of characters with bytes for what it does not know, made as Llama 2's is."""
    small = Tokenizer(models.BPE(unk_token="<unk>"))
    small.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=names, show_progress=False)
    small.train_from_iterator(CORPUS, trainer)
    model = small.to_str().replace('"byte_fallback":false', '"byte_fallback":true')
    tokenizer = Tokenizer.from_str(model)
    tokenizer.add_tokens(list(ADDED[:1]))
    return tokenizer


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


@cache
def tokenizer_of(kind: str) -> PromptTokenizer:
    if kind == "dinghy":
        return PromptTokenizer.from_folder(DINGHY)
    made = {
        "byte-level": byte_level,
        "composing": lambda: byte_level(nfc=True),
        "swallowing space": lambda: byte_level(nfc=True, strips=True),
        "with bytes for the unknown": sentence_piece,
        "one token for any unknown word": word_piece,
        "with added tokens": berts,
    }
    return PromptTokenizer(made[kind]().to_str())


def berts() -> Tokenizer:
    """With the added tokens of BERT, in a text as anywhere."""
    tokenizer = word_piece()
    names = ("[UNK]", "[CLS]", "[SEP]", "[A", "A][B")
    tokenizer.add_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    tokenizer.add_tokens([AddedToken("[MASK]", normalized=False, lstrip=True, special=True)])
    return tokenizer


@cache
def least_of(kind: str) -> LeastTokenCounter:
    return LeastTokenCounter(tokenizer_of(kind))


KINDS = ["dinghy", "byte-level", "composing", "swallowing space", "with bytes for the unknown"]
OF_WORDS = ["one token for any unknown word", "with added tokens"]
PIECES = [
    *("[MASK]", "[SEP", "[A][B]", "\x00", "\x1c", "\x85", "\u2028", "don't", "Ѐ\u0483", "ʻ", "²", "\u200d", "×"),
    *("<|end|>", "<greedy>", " x ", "e\u0301nde", "word", " words", " " * 50, "\n", "\u3000", "12", "日本", "▁", "😀"),
    *(
        "e\u0301",
        "\u212b",
        "\u212a",
        "\u1fef",
        "\u1100\u1161\u11a8",
        "\u0301" * 9,
        "α\u0313\u0300\u0345",
        "\ua7f1",
        "か\u3099",
    ),
]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=30).map("".join)


@pytest.mark.parametrize("piece", [3, 65536])
@pytest.mark.parametrize("kind", [*KINDS, *OF_WORDS])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS, times=st.sampled_from([1, 1, 7]))
def test_no_text_has_fewer(kind: str, piece: int, monkeypatch: pytest.MonkeyPatch, text: str, times: int) -> None:
    monkeypatch.setattr("fairlead_common.tokens.least_tokens._PIECE", piece)
    num_tokens = len(tokenizer_of(kind).encode(text * times, add_special_tokens=False))
    assert least_of(kind).of(text * times, enough=10**9) <= num_tokens


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", ["the quick ", "x", "0123", "日本語", "e\u0301", "Größe "])
def test_a_long_text_is_known_to_be_long(kind: str, unit: str) -> None:
    text = unit * 30_000
    longest = max(map(len, tokenizer_of(kind).backend.get_vocab()))
    assert least_of(kind).of(text, enough=10**9) >= len(text) // (2 * longest) > 100


def test_the_bound_is_met_where_a_text_is_made_of_the_longest_entries() -> None:
    longest = max(tokenizer_of("dinghy").backend.get_vocab(with_added_tokens=False), key=len)
    assert longest.isascii()
    num_tokens = len(tokenizer_of("dinghy").encode(f"{longest}\n" * 100, add_special_tokens=False))
    assert 100 <= least_of("dinghy").of(f"{longest}\n" * 100, enough=1000) <= num_tokens


def test_counting_ends_where_it_is_clear() -> None:
    read = least_of("dinghy").of("ahoy " * 4_000_000, enough=2048)
    assert 2048 < read < 40_000, "20 MB were not looked at to know that 2048 tokens are too few"


@pytest.mark.parametrize("kind", OF_WORDS)
def test_words_are_counted_where_an_unknown_one_is_a_token(kind: str) -> None:
    text = "It isn't far, said Größe the корабль; " * 20_000
    num_tokens = len(tokenizer_of(kind).encode(text[:380], add_special_tokens=False)) * len(text) // 380
    assert 0.9 * num_tokens < least_of(kind).of(text, enough=10**9) <= num_tokens
    assert 512 < least_of(kind).of(text, enough=512) < 40_000, "of megabytes, more is looked at than is needed"


def test_of_tokenizers_that_lose_characters_nothing_is_said() -> None:
    text = "abcdefgh" * 1000
    assert len(tokenizer_of("one token for any unknown word").encode(text, add_special_tokens=False)) == 1
    assert least_of("one token for any unknown word").of(text, enough=1) == 0
