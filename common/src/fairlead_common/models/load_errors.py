"""Errors with a reason for machines and a sentence for people: the base of the engine, and errors of model files, which
`fairlead check` meets as well. Imports nothing of ours.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

ONNX_SUFFIX = ".onnx"


class EngineError(Exception):
    """Base of all deliberate errors of the engine.

    `reason` is CamelCase and closed enough for counters; `message` tells the problem and the remedy.
    """

    reason = "EngineError"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if reason is not None:
            self.reason = reason

    def to_dict(self) -> dict[str, str]:
        """The content of the termination log, and the message of a failed core to the parent process."""
        return {"reason": str(self.reason), "message": self.message}

    def __reduce__(self) -> tuple[Any, ...]:
        # Subclasses take other arguments than Exception remembers; pickling (multiprocessing) must not call them again.
        return _rebuild, (type(self), dict(self.__dict__), self.args)


def _rebuild(kind: type[EngineError], state: dict[str, Any], args: tuple[Any, ...]) -> EngineError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class StartError(EngineError):
    """The engine cannot start: the process ends with the error in the termination log."""

    reason = "StartFailed"


class ModelLoadReason(StrEnum):
    """Why a model could not be loaded."""

    MODEL_NOT_FOUND = "ModelNotFound"
    MODEL_CONFIG_INVALID = "ModelConfigInvalid"
    UNSUPPORTED_ARCHITECTURE = "UnsupportedArchitecture"
    CHECKPOINT_INVALID = "CheckpointInvalid"
    MISSING_TENSOR = "MissingTensor"
    UNEXPECTED_TENSOR = "UnexpectedTensor"
    TENSOR_SHAPE_MISMATCH = "TensorShapeMismatch"
    TOKENIZER_INVALID = "TokenizerInvalid"
    DEVICE_UNAVAILABLE = "DeviceUnavailable"


class ModelLoadError(StartError):
    """The model's folder cannot be served; the message names the file, tensor or setting and the remedy."""

    def __init__(self, reason: ModelLoadReason | str, message: str) -> None:
        super().__init__(message, reason=ModelLoadReason(reason))


def refuse(what: str, remedy: str) -> ModelLoadError:
    """The error for an option that changes the computation and has no layer, to be raised by the caller."""
    return ModelLoadError(
        ModelLoadReason.UNSUPPORTED_ARCHITECTURE, f"config.json asks for {what}, which this engine lacks; {remedy}"
    )


def onnx_problem(files: Iterable[str]) -> str:
    """What is wrong with a model of which there are `files`, some of them ONNX, and no weights besides; empty = none
    of them is."""
    found = sorted(file for file in files if file.endswith(ONNX_SUFFIX))
    if not found:
        return ""
    named = ", ".join(found[:3]) + (" and others" if len(found) > 3 else "")
    return (
        f"has weights as ONNX alone ({named}), a graph with a cache of its own, which is not read: name the checkpoint "
        "that it was exported from, with safetensors, or a GGUF file of the model"
    )
