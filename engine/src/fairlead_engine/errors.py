"""The errors the engine raises on purpose, each with a reason a machine can read and a sentence for a person.

Start-up errors cross the process boundary as `{reason, message}` and end in the pod's termination log; request errors
become HTTP answers in `server/`. Their base, and those of a model's files, are `fairlead check`'s as well.
"""

from fairlead_common.models.load_errors import EngineError as EngineError
from fairlead_common.models.load_errors import ModelLoadError as ModelLoadError
from fairlead_common.models.load_errors import ModelLoadReason as ModelLoadReason
from fairlead_common.models.load_errors import StartError as StartError
from fairlead_common.models.load_errors import onnx_problem as onnx_problem

_MAX_FIELD_LENGTH = 200
_MAX_MESSAGE_LENGTH = 1000
"""Characters of what a refused client is told, which is logged as well."""


class ConfigError(StartError):
    """A setting is unknown or its value does not fit. `field` is the setting's name as Python knows it."""

    reason = "InvalidConfig"

    def __init__(self, field: str, message: str, hint: str | None = None) -> None:
        self.field = field
        self.hint = hint
        name = field.replace("_", "-")
        super().__init__(f"{name}: {message}" + (f"; {hint}" if hint else ""))


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
