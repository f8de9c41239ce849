"""A model's configuration and tensors, whichever files hold them: a folder's, or one GGUF file."""

from pathlib import Path

from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.gguf.gguf_checkpoint import GgufCheckpoint
from fairlead_engine.model.gguf.gguf_config import config_fields
from fairlead_protocol.models.gguf_file import GgufFile
from fairlead_protocol.models.json_fields import JsonFields
from fairlead_protocol.models.quantized_checkpoints import GGUF_SUFFIX


def read_fields(model: Path) -> JsonFields:
    """`config.json`, or what a file says in its place. Raises ModelLoadError."""
    if model.suffix == GGUF_SUFFIX:
        return JsonFields(model, config_fields(GgufFile(model)))
    return JsonFields.read(model / "config.json")


def checkpoint_class(model: Path) -> type[Checkpoint]:
    """What reads the model's tensors."""
    return GgufCheckpoint if model.suffix == GGUF_SUFFIX else Checkpoint
