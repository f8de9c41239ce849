"""Tokenizers of SentencePiece's tokenizer.model against SentencePiece, and added tokens against transformers."""

import json
import random
import struct
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from fairlead_common.tokens import sentence_pieces
from fairlead_common.tokens.tokenizing import PromptTokenizer, TokenizerError

DOCS = Path(__file__).parents[2] / "docs"
LINES = [
    line for name in ("architecture.md", "kubernetes.md") for line in (DOCS / name).read_text().splitlines() if line
]
LINES += ["日本語のテキスト 中文没有空格 한국어 문장입니다 naïve café Ångström 1234 fi"] * 20
PLAIN = {"normalization_rule_name": "identity"}
KEPT = {**PLAIN, "remove_extra_whitespaces": False, "byte_fallback": True}
SYMBOLS = ["▁▁", "▁▁▁", "\n", "\n\n", "<turn>", "<turn>x", "ab"]
TRAINED: dict[str, dict[str, Any]] = {
    "llama": {**KEPT, "split_digits": True, "allow_whitespace_only_pieces": True},
    "gemma": {**KEPT, "add_dummy_prefix": False, "user_defined_symbols": SYMBOLS},
    "symbols": {**KEPT, "user_defined_symbols": ["<turn>", "<turn>x", "▁<PRE>", "ab"]},
    "unknown": PLAIN,
    "nmt_nfkc": {},
    "nfkc": {"byte_fallback": True, "normalization_rule_name": "nfkc", "user_defined_symbols": ["<turn>"]},
    "unigram": {"model_type": "unigram"},
    "unigram_bytes": {**KEPT, "model_type": "unigram", "user_defined_symbols": ["<turn>", "ab"]},
    "unigram_folded": {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc_cf", "byte_fallback": True},
    "unigram_plain": {"model_type": "unigram", **PLAIN, "add_dummy_prefix": False},
}
QUICK = {"llama", "gemma", "symbols", "unknown"}
"""Those that fastokens encodes."""
PARTS = [
    " ", "  ", "   ", "\n", "\t", "\r", "▁", "<turn>", "<turn>x", "<PRE>", " <PRE>", "ab", "\n\n", "①", "é", "e\u0301",
    "\u0301", "\u2167\u0301", "한", "\u1112\u1161\u11ab", "ﬁ", "Ⅷ", "\u00a0", "\u3000", "\u200b", "👩\u200d👧",
    "\U0001f1e8\U0001f1ed",
    "\x00", "\x01", "\x7f", "\x85", "\u2028", "<0x41>", "<0x0A>", "the", "gateway", "The", " a", "1", "23", "日本", "x",
    "İ", "ß", "＜", "\ufffd", "\U0010ffff", "\ue000",
]  # fmt: skip


def train(**options: Any) -> bytes:
    written = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=written, minloglevel=2, num_threads=1,
        **{"vocab_size": 800, "hard_vocab_limit": False, "character_coverage": 0.999, "model_type": "bpe", **options},
    )  # fmt: skip
    return written.getvalue()


def hostile_texts(number: int, seed: int = 1) -> list[str]:
    rng = random.Random(seed)

    def part() -> str:
        if (kind := rng.random()) < 0.6:
            return rng.choice(PARTS)
        if kind < 0.8:
            return rng.choice(rng.choice(LINES).split(" ")) + " "
        low, high = rng.choice(((0x20, 0x7F), (0x80, 0x3000), (0x3000, 0xD800), (0xE000, 0x110000)))
        return chr(rng.randrange(low, high))

    return ["".join(part() for _ in range(rng.randrange(12))) for _ in range(number)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bytes]:
    trained: dict[str, bytes] = {}

    def named(name: str) -> bytes:
        if name not in trained:
            trained[name] = train(**TRAINED[name])
        return trained[name]

    return named


def folder_of(path: Path, raw: bytes, **config: Any) -> Path:
    (path / "tokenizer.model").write_bytes(raw)
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("name", TRAINED)
def test_hostile_texts_get_the_ids_of_sentencepiece(name: str, models: Callable[[str], bytes], tmp_path: Path) -> None:
    raw = models(name)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=raw)
    ours = PromptTokenizer.from_folder(folder_of(tmp_path, raw, add_bos_token=False))
    symbols = TRAINED[name].get("user_defined_symbols", ())
    texts = [text for text in hostile_texts(1500) if ours.backend.normalizer.normalize_str(text) not in symbols]
    plain = ours.encode_each(texts)
    for text, found, wanted in zip(texts, plain, theirs.encode(texts), strict=True):
        if "unigram" in name:  # sums of 32 and of 64 bits choose otherwise among orders of the same pieces
            found, wanted = sorted(found), sorted(wanted)
        assert found == wanted, ascii(text)
    assert ours.vocab_size == theirs.vocab_size()
    for text in texts[:300]:
        if theirs.unk_id() not in (ids := theirs.encode(text)) and "▁" not in text:
            assert ours.decode(ids) == theirs.decode(ids)
    assert ours.quicken() is (name in QUICK)
    for text, found, wanted in zip(texts, ours.encode_each(texts), plain, strict=True):
        assert found == wanted, ascii(text)


def test_without_legacy_the_first_text_of_a_prompt_alone_gets_a_space_in_front(
    models: Callable[[str], bytes], tmp_path: Path
) -> None:
    """With `legacy: false`; with the older way each text between added tokens gets one."""
    theirs = sentencepiece.SentencePieceProcessor(model_proto=models("llama"))
    unspaced = field(3, field(3, 0))
    bare = sentencepiece.SentencePieceProcessor(model_proto=models("llama") + unspaced)
    newer = PromptTokenizer.from_folder(folder_of(tmp_path, models("llama"), legacy=False))
    older = PromptTokenizer.from_folder(folder_of(tmp_path, models("llama")))
    assert newer.encode_each(texts := hostile_texts(500)) == theirs.encode(texts)
    prompt = " a</s> the gateway</s>the  gateway"
    [first, *others] = prompt.split("</s>")
    assert older.encode(prompt) == [1, *_joined([theirs.encode(part) for part in (first, *others)])]
    assert newer.encode(prompt) == [1, *_joined([theirs.encode(first), *(bare.encode(part) for part in others)])]


def _joined(parts: list[list[int]]) -> list[int]:
    return [id for index, part in enumerate(parts) for id in ([2] if index else []) + part]


@pytest.mark.parametrize("legacy", [True, False])
def test_added_tokens_are_those_of_transformers(legacy: bool, models: Callable[[str], bytes], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    raw = models("llama")
    size = sentencepiece.SentencePieceProcessor(model_proto=raw).vocab_size()
    decoder = {
        "0": {"content": "<unk>", "special": True}, "1": {"content": "<s>", "special": True},
        "2": {"content": "</s>", "special": True}, str(size): {"content": "<|user|>", "special": True, "rstrip": True},
        str(size + 1): {"content": "<tool>", "special": False, "normalized": False},
    }  # fmt: skip
    roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = {"added_tokens_decoder": decoder, "tokenizer_class": "LlamaTokenizer", "legacy": legacy, **roles}
    folder = folder_of(tmp_path, raw, **config)
    ours, theirs = PromptTokenizer.from_folder(folder), transformers.LlamaTokenizer.from_pretrained(folder)
    for text in ("<|user|>  the gateway</s>x", "the<tool>gateway <tool>a", "<s>the", "the </s><|user|><tool>"):
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False), text
    assert ours.token_id("<|user|>") == size and ours.token_id("<tool>") == size + 1
    assert ours.special_tokens["eos_token"] == "</s>"


def test_tokens_of_older_files_beside_the_model_are_added(models: Callable[[str], bytes], tmp_path: Path) -> None:
    raw = models("llama")
    size = sentencepiece.SentencePieceProcessor(model_proto=raw).vocab_size()
    folder = folder_of(tmp_path, raw, tokenizer_class="Ernie4_5_Tokenizer")
    (folder / "added_tokens.json").write_text(json.dumps({"<|image|>": size + 2}))
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"pad_token": "[PAD]", "eos_token": {"content": "<|image|>"}, "additional_special_tokens": ["the"]})
    )
    ours = PromptTokenizer.from_folder(folder)
    assert ours.encode("<|image|>[PAD]", add_special_tokens=True) == [size + 2, size + 3]
    assert ours.special_tokens["eos_token"] == "<|image|>" and ours.special_tokens["pad_token"] == "[PAD]"
    assert ours.decode(ours.encode("the<|image|>")) == "" and ours.vocab_size == size + 5


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(number: int) -> bytes:
    raw = b""
    while number > 0x7F:
        raw, number = raw + bytes([number & 0x7F | 0x80]), number >> 7
    return raw + bytes([number])


def piece(text: str | bytes, score: float = 0.0, kind: int = 1) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return field(1, field(1, raw) + b"\x15" + struct.pack("<f", score) + field(3, kind))


SMALL = piece("<unk>", kind=2) + piece("<s>", kind=3) + piece("a") + piece("▁", -1) + piece("▁a", -2)
BPE = field(2, field(3, 2))


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "0 of its 0 pieces are the unknown one"),
        (SMALL[:-1], "it is cut, or no message"),
        (b"\xff" * 40, "a number has no end"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "field 1 ends behind the end"),
        (b"\x0b" + SMALL, "field 1 is of type 3"),
        (field(1, 7), "piece 0 is no message"),
        (field(1, field(1, 7)), "piece 0 has a value of a wrong type"),
        (SMALL + field(2, 7), "trainer_spec in the file is of a wrong type"),
        (SMALL + field(2, field(3, b"x")), "model_type in trainer_spec is no number"),
        (SMALL + field(2, field(3, 3)), "its model_type is 3, words; read are 1, unigram, and 2, BPE"),
        (SMALL + field(2, field(24, 1)), "treat_whitespace_as_suffix is set"),
        (SMALL + BPE + piece("a"), "two pieces have the text 'a', the latter with the id 5"),
        (SMALL + BPE + piece("<u>", kind=2), "2 of its 6 pieces are the unknown one"),
        (SMALL + BPE + piece("x", float("nan")), "the score nan"),
        (SMALL + BPE + piece("x", kind=9), "the type 9"),
        (SMALL + BPE + piece(b"\xff"), "can't decode byte 0xff"),
        (SMALL + BPE + piece(""), "piece 5 has the text ''"),
        (SMALL + BPE + piece("aa", kind=5), "piece 5, 'aa', is marked as unused"),
        (SMALL + BPE + piece("x" * 10_000_000), "piece 5 has 10000000 characters"),
        (SMALL + BPE + piece("x" * 10_000, kind=4), "piece 5 has 10000 characters"),
        (SMALL + bytes(17 * 2**20), "bytes, more than 16777216"),
        (SMALL + field(2, field(3, 2) + field(35, 1)), "there are 0 pieces of bytes, not 256"),
        (SMALL + BPE + field(3, field(2, b"\x08\0\0\0\xff\xff\xff\xff\xff\xff\xff\xffa\0")), ""),
        (SMALL + BPE + field(3, field(2, b"\xff\xff\xff\xffaaaa")), ""),
        (b"PHVuaz4= 0\nYQ== 1\n", "it lists tokens with ranks, as tiktoken does"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused_with_the_reason(raw: bytes, problem: str, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.model cannot be read \(") as refused:
        PromptTokenizer.from_folder(folder_of(tmp_path, raw))
    assert problem in str(refused.value) and len(str(refused.value)) < 500
    assert PromptTokenizer.from_folder(folder_of(tmp_path, SMALL + BPE)).encode("a") == [1, 4]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("added_tokens.json", {"<x>": -1}, "an added token has the id -1"),
        ("added_tokens.json", {"<x>": 2**40}, "an added token has the id 1099511627776"),
        ("added_tokens.json", {"<x>": "3"}, "added_tokens.json has the id '3' for '<x>'"),
        ("added_tokens.json", {"a": 3}, "an added token has the text of another token, 'a'"),
        ("added_tokens.json", {"a": 200_000}, "an added token has the text of another token, 'a'"),
        ("special_tokens_map.json", {"bos_token": 3}, "bos_token in special_tokens_map.json is no text of a token"),
        (
            "special_tokens_map.json",
            {"additional_special_tokens": 3},
            "additional_special_tokens in special_tokens_map",
        ),
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}, "added_tokens_decoder in tokenizer_config.json"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": "y"}}, "added_tokens_decoder.x in tokenizer_config"),
    ],
)
def test_added_tokens_that_are_none_are_refused_by_name(
    name: str, content: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    folder_of(tmp_path, SMALL + BPE)
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match=r"tokenizer\.model cannot be read \(") as refused:
        PromptTokenizer.from_folder(tmp_path)
    assert problem in str(refused.value)


def test_pieces_that_are_joined_in_too_many_ways_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file of allowed size with all words of two letters has eight million joints, which take gigabytes."""
    texts = ["aa", "ab", "ba", "bb", "aaa", "bbb"]
    folder_of(tmp_path, SMALL + BPE + piece("b") + b"".join(map(piece, texts)))
    PromptTokenizer.from_folder(tmp_path)
    monkeypatch.setattr(sentence_pieces, "_MOST_JOINTS", 8)
    with pytest.raises(TokenizerError, match="joined of others in more than 8 ways"):
        PromptTokenizer.from_folder(tmp_path)
