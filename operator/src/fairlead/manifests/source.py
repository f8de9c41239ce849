"""Where a model's folder is, seen from inside the engine's pod."""

from dataclasses import dataclass, field
from typing import Any

from fairlead.api import names
from fairlead.api.conditions import Reason
from fairlead.operator_settings import OperatorSettings

MODEL_VOLUME = "model"
_ON_A_CLAIM = "put the model's folder on a PersistentVolumeClaim and write model.source: pvc://CLAIM/FOLDER"


class CannotBuild(Exception):
    """The spec asks for something that cannot be built here; `message` says what to write instead."""

    def __init__(self, message: str, reason: Reason = Reason.INVALID_SPEC) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What becomes of `spec.model.source`."""

    flags: dict[str, str] = field(default_factory=dict)
    """For the engine's configuration file: a model that is on no volume."""
    arguments: tuple[str, ...] = ()
    """For the engine's container: a folder on a volume. Local mode has no mounts, and finds paths below a mount in
    arguments only; a folder of the machine it must leave as it is."""
    volumes: tuple[dict[str, Any], ...] = ()
    """For the pod."""
    mounts: tuple[dict[str, Any], ...] = ()
    """For the engine's container."""


def claim_of(source: str) -> str | None:
    """The PersistentVolumeClaim that a source needs; None = none."""
    scheme, _, rest = source.partition("://")
    return rest.partition("/")[0] or None if scheme == "pvc" else None


def model_source(source: str, settings: OperatorSettings) -> ModelSource:
    """Raises CannotBuild for a source that this operator does not serve."""
    scheme, _, rest = source.partition("://")
    match scheme:
        case "demo":
            return ModelSource({"model": source})
        case "file" if settings.allow_file_sources:
            return ModelSource({"model": rest})
        case "file":
            raise CannotBuild(f"file:// is for local mode only: {_ON_A_CLAIM}", Reason.SOURCE_NOT_SUPPORTED)
        case "pvc":
            folder = f"{names.MODEL_FOLDER}/{rest.partition('/')[2].strip('/')}".rstrip("/")
            claim = {"claimName": claim_of(source), "readOnly": True}
            return ModelSource(
                arguments=("--model", folder),
                volumes=({"name": MODEL_VOLUME, "persistentVolumeClaim": claim},),
                mounts=({"name": MODEL_VOLUME, "mountPath": names.MODEL_FOLDER, "readOnly": True},),
            )
    message = f"{scheme}:// is not supported by this version: {_ON_A_CLAIM}, or try the bundled demo://dinghy"
    raise CannotBuild(message, Reason.SOURCE_NOT_SUPPORTED)
