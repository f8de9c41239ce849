"""The errors the engine raises on purpose, each with a reason a machine can read and a sentence for a person.

Start-up errors cross the process boundary as `{reason, message}` and end in the pod's termination log; request errors
become HTTP answers in `server/`. This module imports nothing of ours.
"""

from enum import StrEnum
from typing import Any

_MAX_FIELD_LENGTH = 200
_MAX_MESSAGE_LENGTH = 1000
"""Characters of what a refused client is told, which is logged as well."""


class EngineError(Exception):
    """Base of all errors the engine raises on purpose.

    `reason` is CamelCase and closed enough to count by; `message` says what happened and what to do about it.
    """

    reason = "EngineError"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if reason is not None:
            self.reason = reason

    def to_dict(self) -> dict[str, str]:
        """What the termination log holds, and what a core that cannot start sends its parent."""
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
    """The engine cannot start: the process ends with this in its termination log."""

    reason = "StartFailed"


class ConfigError(StartError):
    """A setting is unknown or its value does not fit. `field` is the setting's name as Python knows it."""

    reason = "InvalidConfig"

    def __init__(self, field: str, message: str, hint: str | None = None) -> None:
        self.field = field
        self.hint = hint
        name = field.replace("_", "-")
        super().__init__(f"{name}: {message}" + (f"; {hint}" if hint else ""))


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


class KVCacheTooSmall(StartError):
    """There is not enough memory for a KV cache that holds at least one sequence."""

    reason = "NotEnoughMemory"


class AddressUnavailable(StartError):
    """The server cannot listen where it was told to."""

    reason = "AddressUnavailable"


def start_error(reason: str, message: str) -> StartError:
    """The error that another process described with `to_dict`, as an error of this one."""
    if reason in set(ModelLoadReason):
        return ModelLoadError(reason, message)
    for kind in (KVCacheTooSmall, AddressUnavailable):
        if reason == kind.reason:
            return kind(message)
    return StartError(message, reason=reason)


class RequestError(EngineError):
    """A request cannot be served as it stands (HTTP 400). `field` names the part of it that is wrong, where one is."""

    reason = "InvalidRequest"

    def __init__(self, field: str | None, message: str, code: str | None = None) -> None:
        """Field and message may quote the request, which may be megabytes: they are shortened."""
        self.field = field if field is None else _shortened(field, _MAX_FIELD_LENGTH)
        self.code = code
        super().__init__(_shortened(message, _MAX_MESSAGE_LENGTH))


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


class AdapterError(EngineError):
    """An adapter cannot be loaded, or not be unloaded; the message names the file and field, or says what to do."""

    reason = "AdapterInvalid"


class InjectionError(EngineError):
    """Tokens cannot be put into an answer."""

    reason = "InjectionRefused"


class QueueFull(EngineError):
    """The engine's queue is full; nothing was started, so another replica may be asked (HTTP 429)."""

    reason = "QueueFull"

    def __init__(self, message: str = "the engine's queue is full", *, retry_after_seconds: float = 1.0) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(message)


class Draining(EngineError):
    """The engine is shutting down and takes no new work; another replica may be asked (HTTP 503)."""

    reason = "Draining"

    def __init__(self, message: str = "this engine is shutting down and takes no new requests") -> None:
        super().__init__(message)


class NotReady(EngineError):
    """The model is still being loaded; nothing was started (HTTP 503)."""

    reason = "Loading"

    def __init__(self, message: str = "the model is still being loaded") -> None:
        super().__init__(message)


class EngineDead(EngineError):
    """The core process died; what was running on it is lost (HTTP 500)."""

    reason = "EngineDead"

    def __init__(self, message: str = "the engine core has died") -> None:
        super().__init__(message)


class EngineGone(EngineDead):
    """The core had died before the request came; nothing was started, so it dies of nothing here (HTTP 503)."""


class PeerLost(EngineError):
    """One of several HTTP processes of an engine has died; what it was answering is lost."""

    reason = "HTTPProcessLost"
