"""Tokenising: `tokenizer.json` and chat template of a Hugging Face style folder, without transformers.

Gateway and engine build the same `PromptTokenizer` from the same bytes, so both see the same ids for the same request.

`quick_encoder` makes the same ids with fastokens, in a fraction of the time that `tokenizers` takes. fastokens knows
fewer kinds of normalizers, pre-tokenizers and models, with the regular expressions of PCRE2. A file gets fastokens only
after both libraries have encoded equal samples; `tokenizers` stays the reference.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import fastokens
import tokenizers

from fairlead_common.openai.chat import ChatTemplate, ChatTemplateError, Message
from fairlead_common.tokens import ranked_pairs
from fairlead_common.tokens.embedding_prompts import EmbeddingPrompts
from fairlead_common.tokens.sentence_pieces import sentence_piece
from fairlead_common.tokens.stored_tokenizer import FILES, SENTENCE_PIECE, TOKENIZER_JSON, StoredTokenizer

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
    "＜0x41＞ <0X41> <\u200b0x41> <\u03010x41>",
)
_BYTE = "<0x"
"""Beginning of the names of tokens of single bytes, for which fastokens takes such a text; tokenizers does not."""


def quick_encoder(tokenizer_json: str, reference: tokenizers.Tokenizer) -> Encode | None:
    """The encoder of this file; None where fastokens refuses the file or differs from `reference` on a sample.
    `reference` must neither truncate nor pad."""
    try:
        quick = fastokens.Tokenizer.from_json_str(tokenizer_json)
        quick.no_truncation()
        quick.no_padding()
        samples = _samples([str(token["content"]) for token in quick.added_tokens()])

        def encode(text: str, add_special_tokens: bool) -> list[int]:
            encoder = reference if _BYTE in text else quick
            ids: list[int] = encoder.encode(text, add_special_tokens=add_special_tokens).ids
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


_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_NEEDED = (
    "a model's folder needs a fast tokenizer's tokenizer.json, or tekken.json, or Kimi's tiktoken.model, or "
    "SentencePiece's tokenizer.model"
)


class TokenizerError(ValueError):
    """The folder has no tokenizer that can be used; the text names the file and the remedy."""


class panics_as_errors:
    """Raises a panic in Rust, which is no Exception in Python, as a TokenizerError."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if kind is not None and kind.__name__ == "PanicException":
            raise TokenizerError(f"its tokenizer fails: {error}") from error


class PromptTokenizer:
    """A model's tokenizer and chat template.

    `special_tokens` maps `bos_token`, `eos_token`, … to their text, as templates expect them.
    """

    def __init__(
        self,
        tokenizer_json: str,
        *,
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
        joins_pairs: bool = False,
        image_token: str | None = None,
        image_frame: tuple[str, str] | None = None,
        instructs_tools: bool = False,
        embedding_prompts: EmbeddingPrompts | None = None,
        renders: bool = True,
    ) -> None:
        """`joins_pairs`: whether the model reads two texts to compare as one prompt. `image_token`: text of the token
        for an image in a prompt; None = the model sees no images. `image_frame`: as in `seeing`. `instructs_tools`: as
        in `ChatTemplate`. `embedding_prompts`: None = the model has none. `renders`: whether to compile the template,
        which runs parts of the source; needed for rendering."""
        try:
            with panics_as_errors():
                self.backend = tokenizers.Tokenizer.from_str(tokenizer_json)
        except Exception as error:  # the Rust side raises bare Exception
            raise TokenizerError(f"tokenizer.json cannot be read: {error}") from error
        self.backend.no_truncation()
        self.backend.no_padding()
        self.tokenizer_json = tokenizer_json
        self.joins_pairs = joins_pairs
        self.special_tokens = dict(special_tokens or {})
        self.image_token = image_token
        self.image_frame = image_frame
        self.instructs_tools = instructs_tools
        self.embedding_prompts = embedding_prompts or EmbeddingPrompts()
        self._renders = renders
        self.chat_template = self._template(chat_template) if chat_template else None
        self._quick: Encode | None = None

    def quicken(self) -> bool:
        """Encodes with fastokens from now on if both give the same ids; returns whether. For processes that encode many
        texts: loading again and comparing take three times as long as loading once."""
        with suppress(TokenizerError), panics_as_errors():
            self._quick = quick_encoder(self.tokenizer_json, self.backend)
        return self._quick is not None

    def forget_json(self) -> None:
        """Drops the text of `tokenizer.json`, up to five times as many bytes as the file. Call `quicken` and `digest`
        before, if needed."""
        self.tokenizer_json = ""

    @classmethod
    def from_folder(cls, folder: Path, *, renders: bool = True) -> "PromptTokenizer":
        """Reads the tokenizer (`stored_tokenizer`), `tokenizer_config.json`, `chat_template.jinja` and the prompts for
        texts that become vectors of a model's folder. `renders`: as the class has it.

        Raises `TokenizerError` when there is no usable tokenizer, or another of the files is wrong.
        """
        stored, config = stored_tokenizer(folder), _read_json(folder / "tokenizer_config.json")
        named = {name: text for name in _SPECIAL_NAMES if (text := _token_text(config.get(name)))}
        return cls(
            stored.tokenizer_json,
            chat_template=_chat_template(folder, config) or stored.chat_template,
            special_tokens=stored.special_tokens | named,
            embedding_prompts=_embedding_prompts(folder),
            renders=renders,
        )

    def joining_pairs(self) -> "PromptTokenizer":
        """A copy for a model that reads pairs."""
        tokenizer = copy(self)
        tokenizer.__dict__.pop("digest", None)
        tokenizer.joins_pairs = True
        return tokenizer

    def templated(self, source: str, *, renders: bool = True) -> "PromptTokenizer":
        """A copy with this template in place of the model's. `renders`: as the class has it. Raises
        ChatTemplateError."""
        tokenizer = copy(self)
        tokenizer.__dict__.pop("digest", None)
        tokenizer._renders = renders
        tokenizer.chat_template = tokenizer._template(source)
        return tokenizer

    def seeing(self, image_token: str, image_frame: tuple[str, str] | None = None) -> "PromptTokenizer":
        """A copy for a model that sees images; templates write `image_token` for each image. With `image_frame`, what
        stands before and behind, they write the first alone: the rest is put in, between blank lines, as Gemma 3's
        processor does."""
        tokenizer = self._changed("image_token", image_token)
        tokenizer.image_frame = image_frame
        return tokenizer

    def instructing(self) -> "PromptTokenizer":
        """A copy for a model whose template has no place for tools, which are told in a message."""
        return self._changed("instructs_tools", True)

    def _changed(self, name: str, value: Any) -> "PromptTokenizer":
        tokenizer = copy(self)
        tokenizer.__dict__.pop("digest", None)
        setattr(tokenizer, name, value)
        if self.chat_template is not None:
            tokenizer.chat_template = tokenizer._template(self.chat_template.source)
        return tokenizer

    def _template(self, source: str) -> ChatTemplate:
        return ChatTemplate(
            source,
            self.special_tokens,
            sees_images=self.image_token is not None,
            instructs_tools=self.instructs_tools,
            renders=self._renders,
        )

    @cached_property
    def digest(self) -> str:
        """Names this tokenizer and template, and how prompts are made with both: equal digests tokenise every request
        equally (hexadecimal)."""
        digest = blake2b(digest_size=16)
        template = self.chat_template.source if self.chat_template else ""
        pairs = ("joins pairs",) if self.joins_pairs else ()
        special = json.dumps(self.special_tokens, sort_keys=True)
        of_images = () if self.image_token is None else (f"image {self.image_token}", *(self.image_frame or ()))
        of_tools = ("instructs tools",) if self.instructs_tools else ()
        prompts = self.embedding_prompts
        of_vectors = (json.dumps([prompts.texts, prompts.default], sort_keys=True),) if prompts.texts else ()
        for part in (self.tokenizer_json, template, special, *pairs, *of_images, *of_tools, *of_vectors):
            raw = part.encode()
            digest.update(len(raw).to_bytes(8, "little"))
            digest.update(raw)
        return digest.hexdigest()

    @property
    def template_source(self) -> str | None:
        """The chat template's."""
        return None if self.chat_template is None else self.chat_template.source

    @property
    def vocab_size(self) -> int:
        """Number of ids including added tokens."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`."""
        return self.encode_each([text], add_special_tokens=add_special_tokens)[0]

    def encode_each(self, texts: Sequence[str], *, add_special_tokens: bool = False) -> list[list[int]]:
        """Token ids of each text. Releases the lock of the interpreter, unlike `backend.encode`, and takes half of the
        second per megabyte."""
        if self._quick is not None:
            with suppress(Exception), panics_as_errors():  # what it refuses, the reference may take
                return [self._quick(text, add_special_tokens) for text in texts]
        with panics_as_errors():
            encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    @cached_property
    def frame(self) -> tuple[int, int]:
        """How many special tokens it puts before a text, and behind it."""
        try:
            bare, framed = self.encode("a", add_special_tokens=False), self.encode("a")
        except Exception:  # a tokenizer that refuses this text may still take others
            return 0, 0
        num_special = len(framed) - len(bare)
        starts = (start for start in range(num_special + 1) if framed[start : start + len(bare)] == bare)
        before = next(starts, 0)
        return before, max(0, num_special - before)

    def encode_pair(self, first: str, second: str, *, add_special_tokens: bool = True) -> tuple[list[int], int | None]:
        """Token ids of two texts as one prompt, and the index where the second begins; None where the tokenizer marks
        no second text."""
        with panics_as_errors():
            [encoding] = self.backend.encode_batch_fast([(first, second)], add_special_tokens=add_special_tokens)
        types: list[int] = encoding.type_ids
        return encoding.ids, types.index(1) if 1 in types else None

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`."""
        with panics_as_errors():
            return self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token_id(self, text: str) -> int | None:
        """The id of one token given as text, or None when the vocabulary lacks it."""
        return self.backend.token_to_id(text)

    def render_chat(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None, **variables: Any
    ) -> str:
        """The prompt text for a chat; `ChatTemplateError` when the model has no template or it refuses."""
        if self.chat_template is None:
            remedy = "use /v1/completions instead, or have it served with one (spec.engine.chatTemplate)"
            raise ChatTemplateError(f"this model has no chat template; {remedy}")
        text = self.chat_template.render(messages, tools=tools, **variables)
        if self.image_frame is None:
            return text
        begin, end = self.image_frame
        return text.replace(begin, f"\n\n{begin}{self.image_token}{end}\n\n")

    def encode_chat(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None, **variables: Any
    ) -> list[int]:
        """Token ids for a chat. The template writes the special tokens itself, so none are added."""
        return self.encode(self.render_chat(messages, tools=tools, **variables), add_special_tokens=False)


def stored_tokenizer(folder: Path) -> StoredTokenizer:
    """`tokenizer.json` of a model's folder, or made of tekken.json or tiktoken.model (`ranked_pairs`), or of
    tokenizer.model (`sentence_pieces`). Raises TokenizerError."""
    path = next((folder / name for name in FILES if (folder / name).is_file()), folder / TOKENIZER_JSON)
    beside = {} if path.name == TOKENIZER_JSON else {name: _read_json(folder / name) for name in _BESIDE}
    try:
        if path.name == TOKENIZER_JSON:
            return StoredTokenizer(path.read_text(encoding="utf-8"))
        with panics_as_errors():
            if path.name == SENTENCE_PIECE:
                return sentence_piece(path, *beside.values())
            return ranked_pairs.converted(path, beside["tokenizer_config.json"])
    except FileNotFoundError as error:
        raise TokenizerError(f"{path} cannot be read ({error.strerror}); {_NEEDED}") from error
    except Exception as error:  # the Rust side raises bare Exception
        problem = error.strerror if isinstance(error, OSError) else error
        raise TokenizerError(f"{path} cannot be read ({problem}); {_NEEDED}") from error


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} must hold a JSON object")
    return content


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The template of a folder: `chat_template.jinja`, else tokenizer_config.json's, else the processor's, joined with
    one for chats with tools, as Hermes and Command have."""
    found = {
        **_named_templates(_read_json(folder / "chat_template.json"), folder / "chat_template.json"),
        **_named_templates(config, folder / "tokenizer_config.json"),
    }
    files = {"default": folder / "chat_template.jinja"}
    files |= {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    for name, path in files.items():
        if path.exists():
            try:
                found[name] = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise TokenizerError(f"{path} cannot be read: {error}") from error
    return joined_template(found.get("default"), found.get("tool_use"))


def joined_template(plain: str | None, with_tools: str | None) -> str | None:
    """A single template of the templates for chats without and with tools; None = no template."""
    if plain is None or with_tools is None or plain == with_tools:
        return plain if plain is not None else with_tools
    # A template ends without its last newline, and a tag takes the newline behind it along.
    plain, with_tools = (text.removesuffix("\n") for text in (plain, with_tools))
    return f"{{% if tools %}}\n{with_tools}{{% else %}}\n{plain}{{% endif %}}"


def _named_templates(config: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Templates in a file's `chat_template`, by name; a single one is `default`."""
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
    else:
        named = {"default": template}
    if not all(isinstance(text, str | None) for text in named.values()):
        raise TokenizerError(f"{path}: chat_template must be a text, or several with names")
    try:
        return {str(name): text for name, text in named.items() if text is not None and text.encode()}
    except UnicodeEncodeError as error:
        raise TokenizerError(f"{path}: chat_template is no text: {error}") from error


def _embedding_prompts(folder: Path) -> EmbeddingPrompts:
    try:
        return EmbeddingPrompts.read(folder)
    except ValueError as error:
        raise TokenizerError(str(error)) from error


def _token_text(token: Any) -> str | None:
    """Special tokens are stored as text or as an AddedToken object."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None
