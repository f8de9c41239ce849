"""The tokenizer of a GGUF file, as `tokenizer.json` and a chat template."""

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from fairlead_common.models.gguf_file import GgufFile
from fairlead_common.models.load_errors import ModelLoadError, ModelLoadReason
from fairlead_common.openai.chat import ChatTemplateError
from fairlead_common.tokens.sentence_pieces import SPACE, joints
from fairlead_common.tokens.tokenizing import PromptTokenizer, TokenizerError, joined_template

_CONTROL, _USER_DEFINED = 3, 4
"""Types of tokens: special tokens, and tokens found whole in every text."""
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3, _QWEN2 = (_WORDS % "{1,3}",), (_WORDS % "",)
_QWEN35 = (
    _ENDINGS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
"""Marks belong to words."""
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s|\p{{N}}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Words that end where capitals begin."""
_O200K = (_CASED % (f"{_ENDINGS}?", f"{_ENDINGS}?", "{1,3}"),)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGITS = (r"\p{N}", _GPT2)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("default", "gpt-2", "olmo"), ()),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "hunyuan"), _QWEN2),
    **dict.fromkeys(("falcon-h1", "pixtral"), _LLAMA3),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), _O200K),
    **dict.fromkeys(("command-r", "refact", "smollm", "starcoder"), _DIGITS),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3),
    "qwen35": _QWEN35,
    "tekken": (_CASED % ("", "", ""),),
}
"""Cuts of a text before merges, one after the other, by `tokenizer.ggml.pre`; none = as GPT-2 cuts."""
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def read_gguf_tokenizer(file: GgufFile, *, renders: bool = True) -> PromptTokenizer:
    """`renders`: as in `PromptTokenizer`. Raises ModelLoadError, naming the field, for an unusable tokenizer."""
    tokens, kind = file.metadata.get("tokenizer.ggml.tokens"), file.metadata.get("tokenizer.ggml.model")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise _invalid(file, "tokens", "is no list of texts")
    if kind not in ("gpt2", "llama", "gemma4"):
        raise _invalid(file, "model", f"is {kind!r:.80}; supported are gpt2 (BPE), llama (SentencePiece) and gemma4")
    plain, with_tools = (file.metadata.get(f"tokenizer.chat_template{name}") for name in ("", ".tool_use"))
    if not isinstance(plain, str | None) or not isinstance(with_tools, str | None):
        raise _invalid(file, "chat_template", "is no text")
    template = joined_template(plain, with_tools)
    special = {name: tokens[token] for name, key in _SPECIAL.items() if (token := _id(file, key, tokens)) is not None}
    try:
        tokenizer = _byte_level(file, tokens) if kind == "gpt2" else _sentence_piece(file, tokens, special, kind)
        _add_tokens(file, tokenizer, tokens)
        if file.metadata.get("tokenizer.ggml.add_bos_token", kind != "gpt2") and "bos_token" in special:
            bos = special["bos_token"]
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, tokens.index(bos))]
            )
        return PromptTokenizer(tokenizer.to_str(), chat_template=template, special_tokens=special, renders=renders)
    except (TokenizerError, ChatTemplateError, ValueError) as error:
        raise ModelLoadError(ModelLoadReason.TOKENIZER_INVALID, f"{file.path}: {error}") from error


def _id(file: GgufFile, name: str, tokens: list[str]) -> int | None:
    token_id = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
    if token_id is not None and (not isinstance(token_id, int) or not 0 <= token_id < len(tokens)):
        raise _invalid(file, f"{name}_token_id", f"is {token_id!r}, and there are {len(tokens)} tokens")
    return token_id


def _pairs(file: GgufFile) -> list[tuple[str, ...]]:
    pairs = [tuple(merge.split(" ")) for merge in _texts(file, "merges")]
    if any(len(pair) != 2 for pair in pairs):
        raise _invalid(file, "merges", "has merges that are not of two tokens")
    return pairs


def _byte_level(file: GgufFile, tokens: list[str]) -> Tokenizer:
    pairs = _pairs(file)
    pre = file.metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(pre, str) or pre not in _SPLITS:
        raise _invalid(file, "pre", f"is {pre!r:.80}; supported are {', '.join(_SPLITS)}")
    tokenizer = Tokenizer(_bpe(file, tokens, pairs))
    splits = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in _SPLITS[pre]]
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not splits)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_alone])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(file: GgufFile, tokens: list[str], special: dict[str, str], kind: str) -> Tokenizer:
    """Merges follow from scores; a file of Gemma 4 lists merges."""
    scores = file.metadata.get("tokenizer.ggml.scores")
    numbers = [score for score in scores if isinstance(score, int | float)] if isinstance(scores, list) else []
    if kind == "llama" and (scores != numbers or len(numbers) != len(tokens)):
        raise _invalid(file, "scores", "is no list with a number for each token")
    unknown = special.get("unk_token", "<unk>")
    ids = {token: id for id, token in enumerate(tokens)}
    scored = zip(tokens, numbers, strict=kind == "llama")
    merges: list[Any] = joints(ids, scored) if kind == "llama" else _pairs(file)
    tokenizer = Tokenizer(_bpe(file, tokens, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces: list[Any] = [normalizers.Replace(" ", SPACE)]
    if file.metadata.get("tokenizer.ggml.add_space_prefix", kind == "llama"):
        spaces.insert(0, normalizers.Prepend(SPACE))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    undone: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*undone, decoders.Strip(" ", 1, 0)] if len(spaces) > 1 else undone)
    return tokenizer


def _bpe(file: GgufFile, tokens: list[str], merges: list[Any], **settings: Any) -> models.BPE:
    try:
        return models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges, **settings)
    except Exception as error:  # the Rust side raises bare Exception
        raise _invalid(file, "merges", f"does not fit the tokens: {error}") from error


def _add_tokens(file: GgufFile, tokenizer: Tokenizer, tokens: list[str]) -> None:
    kinds = file.metadata.get("tokenizer.ggml.token_type") or []
    if not isinstance(kinds, list) or len(kinds) not in (0, len(tokens)):
        raise _invalid(file, "token_type", "is no list with a number for each token")
    marked = [(token, kind) for token, kind in zip(tokens, kinds, strict=False) if token]
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token, kind in marked if kind == _CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False, special=False) for token, kind in marked if kind == _USER_DEFINED]
    )


def _texts(file: GgufFile, name: str) -> list[str]:
    value = file.metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _invalid(file, name, "is no list of texts")
    return value


def _invalid(file: GgufFile, name: str, problem: str) -> ModelLoadError:
    key = f"tokenizer.{name}" if name == "chat_template" else f"tokenizer.ggml.{name}"
    return ModelLoadError(ModelLoadReason.TOKENIZER_INVALID, f"{file.path}: {key} {problem}")
