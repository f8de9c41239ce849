"""A model's configuration and tokenizer, whichever files hold them: a folder's, or one GGUF file."""

from pathlib import Path

from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.gguf.gguf_checkpoint import GgufCheckpoint
from fairlead_engine.model.gguf.gguf_config import config_fields
from fairlead_engine.model.gguf.gguf_file import SUFFIX, GgufFile
from fairlead_engine.model.gguf.gguf_tokenizer import read_gguf_tokenizer
from fairlead_engine.model.json_fields import JsonFields
from fairlead_protocol.chat import ChatTemplateError
from fairlead_protocol.tokenizing import PromptTokenizer, TokenizerError


def read_fields(model: Path) -> JsonFields:
    """`config.json`, or what a file says in its place. Raises ModelLoadError."""
    if model.suffix == SUFFIX:
        return JsonFields(model, config_fields(GgufFile(model)))
    return JsonFields.read(model / "config.json")


def read_tokenizer(model: Path) -> PromptTokenizer:
    """Tokenizer and chat template. Raises ModelLoadError (TokenizerInvalid, CheckpointInvalid)."""
    if model.suffix == SUFFIX:
        return read_gguf_tokenizer(GgufFile(model))
    try:
        return PromptTokenizer.from_folder(model)
    except (TokenizerError, ChatTemplateError) as error:
        raise ModelLoadError(ModelLoadReason.TOKENIZER_INVALID, str(error)) from error


def read_tokenizer_json(model: Path) -> str:
    """The tokenizer alone, as it is written. Raises OSError, or ModelLoadError."""
    if model.suffix == SUFFIX:
        return read_tokenizer(model).tokenizer_json
    return (model / "tokenizer.json").read_text(encoding="utf-8")


def checkpoint_class(model: Path) -> type[Checkpoint]:
    """What reads the model's tensors."""
    return GgufCheckpoint if model.suffix == SUFFIX else Checkpoint
