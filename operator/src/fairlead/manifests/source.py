"""Where a model's folder is, seen from inside the engine's pod."""

from dataclasses import dataclass
from typing import Any

from fairlead.api import names
from fairlead.api.conditions import Reason
from fairlead.operator_settings import OperatorSettings

MODEL_VOLUME = "model"


class CannotBuild(Exception):
    """The spec asks for something that cannot be built here; `message` says what to write instead."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class ModelSource:
    """`spec.model.source`, understood."""

    model: str
    """What the engine is told to load: `demo://NAME`, or a folder."""
    claim: str | None = None
    """The PersistentVolumeClaim to mount (read-only) at `names.MODEL_FOLDER`; None = nothing."""

    @property
    def flags(self) -> dict[str, str]:
        """For the engine's configuration file: a model that is on no volume."""
        return {"model": self.model} if self.claim is None else {}

    @property
    def arguments(self) -> list[str]:
        """For the engine's container: a folder on a volume. Local mode has no mounts, and finds paths below a mount in
        arguments only; a folder of the machine it must leave as it is."""
        return ["--model", self.model] if self.claim is not None else []

    @property
    def volumes(self) -> list[dict[str, Any]]:
        """For the pod."""
        if self.claim is None:
            return []
        return [{"name": MODEL_VOLUME, "persistentVolumeClaim": {"claimName": self.claim, "readOnly": True}}]

    @property
    def mounts(self) -> list[dict[str, Any]]:
        """For the engine's container."""
        if self.claim is None:
            return []
        return [{"name": MODEL_VOLUME, "mountPath": names.MODEL_FOLDER, "readOnly": True}]


def claim_of(source: str) -> str | None:
    """The PersistentVolumeClaim that a source needs; None = none."""
    scheme, _, rest = source.partition("://")
    return rest.partition("/")[0] or None if scheme == "pvc" else None


def model_source(source: str, settings: OperatorSettings) -> ModelSource:
    """Raises CannotBuild for a source that this operator does not serve."""
    scheme, _, rest = source.partition("://")
    match scheme:
        case "demo":
            return ModelSource(source)
        case "file" if settings.allow_file_sources:
            return ModelSource(rest)
        case "file":
            raise CannotBuild(
                Reason.SOURCE_NOT_SUPPORTED,
                "file:// is for local mode only: put the model's folder on a PersistentVolumeClaim and write "
                "model.source: pvc://CLAIM/FOLDER",
            )
        case "pvc":
            folder = rest.partition("/")[2]
            return ModelSource(f"{names.MODEL_FOLDER}/{folder.strip('/')}".rstrip("/"), claim_of(source))
    raise CannotBuild(
        Reason.SOURCE_NOT_SUPPORTED,
        f"{scheme}:// is not supported by this version: put the model's folder on a PersistentVolumeClaim and write "
        "model.source: pvc://CLAIM/FOLDER, or try the bundled demo://dinghy",
    )
