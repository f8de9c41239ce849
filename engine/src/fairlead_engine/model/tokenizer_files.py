"""A model's tokenizer in any file: a folder's `tokenizer.json`, or one GGUF file; and whether two models mean the same
by a token.

Both processes read it, and the HTTP process is without torch.
"""

import json
from pathlib import Path
from typing import Any

from fairlead_common.models.quantized_checkpoints import GGUF_SUFFIX
from fairlead_common.openai.chat import ChatTemplateError
from fairlead_common.tokens.stored_tokenizer import FILES
from fairlead_common.tokens.tokenizing import PromptTokenizer, TokenizerError, stored_tokenizer
from fairlead_engine.errors import ConfigError, ModelLoadError, ModelLoadReason


def read_tokenizer(model: Path, template: str | None = None, *, renders: bool = True) -> PromptTokenizer:
    """Tokenizer and template; `template`: in place of the model's; `renders`: `PromptTokenizer`'s. ModelLoadError:
    TokenizerInvalid, CheckpointInvalid."""
    try:
        if model.suffix == GGUF_SUFFIX:
            from fairlead_common.models.gguf_file import GgufFile
            from fairlead_common.models.gguf_tokenizer import read_gguf_tokenizer

            tokenizer = read_gguf_tokenizer(GgufFile(model), renders=renders and template is None)
        else:
            tokenizer = PromptTokenizer.from_folder(model, renders=renders and template is None)
        return tokenizer if template is None else tokenizer.templated(template, renders=renders)
    except (TokenizerError, ChatTemplateError) as error:
        raise ModelLoadError(ModelLoadReason.TOKENIZER_INVALID, str(error)) from error


def template_text(given: str | None) -> str | None:
    """The text of `chat_template`, a template or the name of a file with a template. Raises ConfigError."""
    if given is None or any(mark in given for mark in "{\n"):
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        problem = f"is no template, and names no file that can be read: {given:.200} ({error})"
        raise ConfigError("chat_template", problem, "name a file with a Jinja template, or write it here") from error


def read_tokenizer_json(model: Path) -> str:
    """The tokenizer alone. Raises TokenizerError, or ModelLoadError."""
    if model.suffix == GGUF_SUFFIX:
        return read_tokenizer(model).tokenizer_json
    return stored_tokenizer(model).tokenizer_json


def check_same_tokens(model: Path, draft_model: Path) -> None:
    """Raises ConfigError unless both tokenizers give the same ids to the same text: otherwise the draft's tokens mean
    something else to the model. A model without a tokenizer is not checked."""
    if not _has_tokenizer(model):
        return
    if not _has_tokenizer(draft_model):
        problem = f"names {draft_model}, which has no tokenizer.json to compare with the model's"
        raise ConfigError("speculative_model", problem, "copy the one that belongs to it there")
    here, there = (_ids(folder) for folder in (model, draft_model))
    if here == there:
        return
    names = sorted(text for text in here.keys() | there.keys() if here.get(text) != there.get(text))
    problem = (
        f"has another tokenizer than the model: {len(names)} tokens differ, such as {names[0]!r} "
        f"({here.get(names[0], 'not there')} and {there.get(names[0], 'not there')})"
    )
    raise ConfigError("speculative_model", problem, "use a smaller model of the same family")


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in FILES)


def _ids(folder: Path) -> dict[str, int]:
    """By text."""
    try:
        read: dict[str, Any] = json.loads(stored_tokenizer(folder).tokenizer_json)
        words = read["model"]["vocab"]
        found = dict(words) if isinstance(words, dict) else {word[0]: index for index, word in enumerate(words)}
        found.update((added["content"], added["id"]) for added in read.get("added_tokens") or [])
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        problem = f"cannot be compared: {folder / 'tokenizer.json'} is no tokenizer ({error!r})"
        raise ConfigError("speculative_model", problem) from error
    return found
