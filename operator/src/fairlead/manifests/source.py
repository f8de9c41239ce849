"""Where the folders of a model, and of what guesses for it, are, seen from inside the engine's pod."""

from dataclasses import dataclass, field
from typing import Any

from fairlead.api import names
from fairlead.api.conditions import Reason
from fairlead.api.llmdeployment import LLMDeploymentSpec
from fairlead.operator_settings import OperatorSettings

MODEL_VOLUME = "model"
SPECULATIVE_VOLUME = "speculative"


class CannotBuild(Exception):
    """The spec asks for something that cannot be built here; `message` says what to write instead."""

    def __init__(self, message: str, reason: Reason = Reason.INVALID_SPEC) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What becomes of `spec.model.source`, and of the source of what guesses tokens beside it."""

    flags: dict[str, str] = field(default_factory=dict)
    """For the engine's configuration file: a model that is on no volume."""
    arguments: tuple[str, ...] = ()
    """For the engine's container: a folder on a volume. Local mode has no mounts, and finds paths below a mount in
    arguments only; a folder of the machine it must leave as it is."""
    volumes: tuple[dict[str, Any], ...] = ()
    """For the pod."""
    mounts: tuple[dict[str, Any], ...] = ()
    """For the engine's container."""

    def beside(self, other: "ModelSource") -> "ModelSource":
        """Both in one pod."""
        return ModelSource(
            self.flags | other.flags,
            self.arguments + other.arguments,
            self.volumes + other.volumes,
            self.mounts + other.mounts,
        )


@dataclass(frozen=True, slots=True)
class _Use:
    """What a folder is for."""

    field: str
    """Of the spec."""
    flag: str
    """Of the engine."""
    volume: str
    mount_path: str
    fallback: str = ""
    """What else its user may try."""

    @property
    def on_a_claim(self) -> str:
        return f"put its folder on a PersistentVolumeClaim and write {self.field}: pvc://CLAIM/FOLDER"


_MODEL = _Use("model.source", "model", MODEL_VOLUME, names.MODEL_FOLDER, ", or try the bundled demo://dinghy")
_GUESSER = _Use("engine.speculative.source", "speculative-model", SPECULATIVE_VOLUME, names.SPECULATIVE_FOLDER)


def claim_of(source: str) -> str | None:
    """The PersistentVolumeClaim that a source needs; None = none."""
    scheme, _, rest = source.partition("://")
    return rest.partition("/")[0] or None if scheme == "pvc" else None


def model_source(spec: LLMDeploymentSpec, settings: OperatorSettings) -> ModelSource:
    """Of the model, and of what guesses tokens beside it. Raises CannotBuild for a source that this operator does not
    serve."""
    source, speculative = spec.model.source, spec.engine.speculative
    model = _placed(source, _MODEL, settings)
    if speculative is None or speculative.source is None:
        return model
    guesser = _placed(speculative.source, _GUESSER, settings)
    claim = claim_of(speculative.source)
    if claim is not None and claim == claim_of(source):  # which is mounted once
        path = _folder(speculative.source, names.MODEL_FOLDER)
        guesser = ModelSource(arguments=(f"--{_GUESSER.flag}", path))
    return model.beside(guesser)


def _folder(source: str, mount_path: str) -> str:
    """Of a source on a claim, where that is mounted."""
    return f"{mount_path}/{source.partition('://')[2].partition('/')[2].strip('/')}".rstrip("/")


def _placed(source: str, use: _Use, settings: OperatorSettings) -> ModelSource:
    scheme, _, rest = source.partition("://")
    match scheme:
        case "demo":
            return ModelSource({use.flag: source})
        case "file" if settings.allow_file_sources:
            return ModelSource({use.flag: rest})
        case "file":
            raise CannotBuild(f"file:// is for local mode only: {use.on_a_claim}", Reason.SOURCE_NOT_SUPPORTED)
        case "pvc":
            claim = {"claimName": claim_of(source), "readOnly": True}
            return ModelSource(
                arguments=(f"--{use.flag}", _folder(source, use.mount_path)),
                volumes=({"name": use.volume, "persistentVolumeClaim": claim},),
                mounts=({"name": use.volume, "mountPath": use.mount_path, "readOnly": True},),
            )
    message = f"{scheme}:// is not supported by this version: {use.on_a_claim}{use.fallback}"
    raise CannotBuild(message, Reason.SOURCE_NOT_SUPPORTED)
