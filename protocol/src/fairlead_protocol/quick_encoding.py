"""Token ids by fastokens, in a fraction of the time that `tokenizers` takes, for files of which both make the same ids.

fastokens knows fewer kinds of normalizers, pre-tokenizers and models, and its regular expressions are PCRE2's. So a
file is given to it only after both have encoded the same samples, and `tokenizers` stays the reference.
"""

import random
from collections.abc import Callable, Sequence

import fastokens
import tokenizers

Encode = Callable[[str, bool], list[int]]
"""Token ids of a text; the second argument: whether the special tokens around a text are added."""

_SEED = 20
_NUM_RANDOM = 60
_MOST_ADDED = 64
_WRITTEN = (
    "",
    " ",
    "\n",
    "Hello, world! It's 2026; we'll pay $1,234.50 (or 12% more)…  Two  spaces.",
    'def f(x: int) -> str:\n\treturn f"{x!r}"  # comment\n\n\n    if x == 10_000:\r\n        pass\n',
    '{"name": "get_weather", "arguments": {"city": "Zürich", "days": [1, 2, 3], "ok": null}}',
    "https://example.com/a/b?c=d&e=%20#f user@example.com C:\\Users\\x ../..",
    "I'm you're HE'LL they'VE don't 'S 'tis O'Neill",
    "naïve café Ångström ÆØÅ ßẞ İıI ﬁ Ⅷ ½ x² a\u0301 e\u0308 \u212b",
    "Съешь же ещё этих мягких французских булок. Ελληνικά: Καλημέρα κόσμε.",
    "日本語のテキスト、「引用」です。カタカナ漢字 中文没有空格，标点。 한국어 문장입니다.",
    "नमस्ते दुनिया สวัสดีชาวโลก שלום עולם مرحبا بالعالم ١٢٣ বাংলা தமிழ்",
    "👨\u200d👩\u200d👧 🏳️\u200d🌈 👍🏽 \U0001f1e8\U0001f1ed ✓ → ∑∫√ \ufeff\u200b\u00a0\u3000|",
    "1 12 123 1234 12345 3.14159 1e-9 0x1F ...... ------ ====== !?!?",
    "<|im_start|>user\n<s>[INST] <think> </s><|eot_id|><bos><unk>",
    "\x00\x01\x1b[0m \x7f \x85 \u2028",
)


def quick_encoder(tokenizer_json: str, reference: tokenizers.Tokenizer) -> Encode | None:
    """The encoder of this file, or None where fastokens refuses it or makes other ids of a sample than `reference`,
    which neither truncates nor pads."""
    try:
        quick = fastokens.Tokenizer.from_json_str(tokenizer_json)
        quick.no_truncation()
        quick.no_padding()
        samples = _samples([str(token["content"]) for token in quick.added_tokens()])

        def encode(text: str, add_special_tokens: bool) -> list[int]:
            ids: list[int] = quick.encode(text, add_special_tokens).ids
            return ids

        is_same = all(_agree(encode, reference, samples, framed) for framed in (False, True))
    except Exception:  # of many kinds: whatever it cannot do
        return None
    return encode if is_same else None


def _agree(encode: Encode, reference: tokenizers.Tokenizer, samples: Sequence[str], framed: bool) -> bool:
    expected = reference.encode_batch_fast(list(samples), add_special_tokens=framed)
    return all(encode(text, framed) == each.ids for text, each in zip(samples, expected, strict=True))


def _samples(added_tokens: Sequence[str]) -> list[str]:
    """Texts in many scripts, characters at random, and added tokens between both."""
    rng = random.Random(_SEED)
    texts = [*_WRITTEN, *("".join(_character(rng) for _ in range(80)) for _ in range(_NUM_RANDOM))]
    chosen = rng.sample(added_tokens, min(len(added_tokens), _MOST_ADDED))
    return texts + [f"{rng.choice(texts)[:20]}{token} {token}{rng.choice(texts)[:20]}" for token in chosen]


def _character(rng: random.Random) -> str:
    low, high = rng.choice(((0x20, 0x7F), (0x09, 0x0E), (0x80, 0x3000), (0x3000, 0xD800), (0xE000, 0x110000)))
    return chr(rng.randrange(low, high))
