"""A model's tokenizer, whichever file holds it: a folder's `tokenizer.json`, or one GGUF file.

Both processes read it, and the HTTP process is without torch.
"""

from pathlib import Path

from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_protocol.chat import ChatTemplateError
from fairlead_protocol.models.quantized_checkpoints import GGUF_SUFFIX
from fairlead_protocol.tokenizing import PromptTokenizer, TokenizerError


def read_tokenizer(model: Path, *, renders: bool = True) -> PromptTokenizer:
    """Tokenizer and chat template; `renders`: as `PromptTokenizer` has it. Raises ModelLoadError (TokenizerInvalid,
    CheckpointInvalid)."""
    if model.suffix == GGUF_SUFFIX:
        from fairlead_protocol.models.gguf_file import GgufFile
        from fairlead_protocol.models.gguf_tokenizer import read_gguf_tokenizer

        return read_gguf_tokenizer(GgufFile(model), renders=renders)
    try:
        return PromptTokenizer.from_folder(model, renders=renders)
    except (TokenizerError, ChatTemplateError) as error:
        raise ModelLoadError(ModelLoadReason.TOKENIZER_INVALID, str(error)) from error


def read_tokenizer_json(model: Path) -> str:
    """The tokenizer alone, as it is written. Raises OSError, or ModelLoadError."""
    if model.suffix == GGUF_SUFFIX:
        return read_tokenizer(model).tokenizer_json
    return (model / "tokenizer.json").read_text(encoding="utf-8")
