"""Tensors beside a model, small enough to be read whole: of heads that guess for it."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from fairlead_engine.errors import ModelLoadError, ModelLoadReason


def read_tensors(folder: Path, files: Sequence[str], what: str) -> dict[str, Tensor]:
    """Name → tensor, on the host, of the first of these files that is there: safetensors, or torch's own with nothing
    but tensors in it. Raises ModelLoadError; `what` the folder should hold."""
    file = next((folder / name for name in files if (folder / name).is_file()), None)
    if file is None:
        raise refused(folder, what, f"there is none of {', '.join(files)}")
    try:
        read = load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
        return {str(name): tensor for name, tensor in read.items()}
    except Exception as error:  # safetensors and torch raise many kinds
        raise refused(folder, what, f"{file.name} cannot be read ({error})") from error


def refused(folder: Path, what: str, problem: str) -> ModelLoadError:
    """The error for a folder that does not hold what it should; to be raised by the caller."""
    return ModelLoadError(ModelLoadReason.CHECKPOINT_INVALID, f"{folder} has no {what}: {problem}")
