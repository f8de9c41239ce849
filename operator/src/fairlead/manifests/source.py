"""A model's or an adapter's source inside the engine's pods, by its scheme: folder, volume, and downloads before the
start."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlead.api import names
from fairlead.api.conditions import Reason
from fairlead.api.llmdeployment import ListedAdapter, LLMDeployment, LLMDeploymentSpec
from fairlead.api.model_cache import ModelCache
from fairlead.api.pod_spec import pod_spec_of
from fairlead.manifests.common import fingerprint
from fairlead.operator_settings import OperatorSettings
from fairlead_common.wire.model_sources import DOWNLOADED, Source, SourceError, folder_name, parse_source

MODEL_VOLUME = "model"
SPECULATIVE_VOLUME = "speculative"
DOWNLOADS_VOLUME = "downloads"


class CannotBuild(Exception):
    """The spec cannot be built here; `message` says what to write instead."""

    def __init__(self, message: str, reason: Reason = Reason.INVALID_SPEC) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Download:
    """A source that an init container downloads into the volume mounted at `names.DOWNLOADS_FOLDER`."""

    container: str
    source: str


@dataclass(frozen=True, slots=True)
class ModelSource:
    """`spec.model.source`, and the speculative model's source, inside a pod."""

    flags: dict[str, str] = field(default_factory=dict)
    """For the engine's configuration file: a model that is on no volume."""
    arguments: tuple[str, ...] = ()
    """For the engine's container: a folder on a volume. Local mode, which has no mounts, translates paths below a mount
    in arguments; a folder of the machine must stay as it is."""
    volumes: tuple[dict[str, Any], ...] = ()
    """For the pod."""
    mounts: tuple[dict[str, Any], ...] = ()
    """For the engine's container."""
    downloads: tuple[Download, ...] = ()
    """Of the pod, in this order; no source twice."""
    pull_secrets: tuple[str, ...] = ()
    """Secrets for the images of `volumes`."""

    def beside(self, other: "ModelSource") -> "ModelSource":
        """Both in one pod, where a volume is mounted once and a source is downloaded once."""
        known = {each.source for each in self.downloads}
        return ModelSource(
            self.flags | other.flags,
            self.arguments + other.arguments,
            self.volumes + tuple(each for each in other.volumes if each not in self.volumes),
            self.mounts + tuple(each for each in other.mounts if each not in self.mounts),
            self.downloads + tuple(each for each in other.downloads if each.source not in known),
            self.pull_secrets + tuple(each for each in other.pull_secrets if each not in self.pull_secrets),
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
    container: str
    """That downloads it."""
    fallback: str = ""
    """What else its user may try."""

    @property
    def on_a_claim(self) -> str:
        return f"put its folder on a PersistentVolumeClaim and write {self.field}: pvc://CLAIM/FOLDER"


_MODEL = _Use(
    "model.source", "model", MODEL_VOLUME, names.MODEL_FOLDER, names.DOWNLOAD_CONTAINER,
    ", or try the bundled demo://dinghy",
)  # fmt: skip
_GUESSER = _Use(
    "engine.speculative.source", "speculative-model", SPECULATIVE_VOLUME, names.SPECULATIVE_FOLDER,
    names.DOWNLOAD_SPECULATIVE_CONTAINER,
)  # fmt: skip


def claim_of(source: str) -> str | None:
    """The PersistentVolumeClaim that a source needs; None = none."""
    scheme, _, rest = source.partition("://")
    return rest.partition("/")[0] or None if scheme == "pvc" else None


def model_source(spec: LLMDeploymentSpec, settings: OperatorSettings) -> ModelSource:
    """Of the model and the speculative model. Raises CannotBuild for sources that this operator does not serve."""
    source, speculative = spec.model.source, spec.engine.speculative
    model = _placed(source, _MODEL, spec, settings)
    if speculative is None or speculative.source is None:
        return model
    guesser = _placed(speculative.source, _GUESSER, spec, settings)
    claim = claim_of(speculative.source)
    if claim is not None and claim == claim_of(source):  # which is mounted once
        path = _folder(speculative.source, names.MODEL_FOLDER)
        guesser = ModelSource(arguments=(f"--{_GUESSER.flag}", path))
    return model.beside(guesser)


def _folder(source: str, mount_path: str) -> str:
    """Folder of a source on a claim, below the mount."""
    return f"{mount_path}/{source.partition('://')[2].partition('/')[2].strip('/')}".rstrip("/")


def _placed(source: str, use: _Use, spec: LLMDeploymentSpec, settings: OperatorSettings) -> ModelSource:
    """Raises CannotBuild."""
    scheme = source.partition("://")[0]
    place = _PLACES.get(scheme)
    if place is None:
        message = f"{scheme}:// is not supported by this version: {use.on_a_claim}{use.fallback}"
        raise CannotBuild(message, Reason.SOURCE_NOT_SUPPORTED)
    return place(source, use, spec, settings)


def _on_the_machine(source: str, use: _Use, spec: LLMDeploymentSpec, settings: OperatorSettings) -> ModelSource:
    if settings.allow_file_sources:
        return ModelSource({use.flag: source.removeprefix("file://")})
    raise CannotBuild(f"file:// is for local mode only: {use.on_a_claim}", Reason.SOURCE_NOT_SUPPORTED)


def _on_a_claim(source: str, use: _Use, spec: LLMDeploymentSpec, settings: OperatorSettings) -> ModelSource:
    claim = {"claimName": claim_of(source), "readOnly": True}
    return ModelSource(
        arguments=(f"--{use.flag}", _folder(source, use.mount_path)),
        volumes=({"name": use.volume, "persistentVolumeClaim": claim},),
        mounts=({"name": use.volume, "mountPath": use.mount_path, "readOnly": True},),
    )


def _downloaded(source: str, use: _Use, spec: LLMDeploymentSpec, settings: OperatorSettings) -> ModelSource:
    _parsed(source, use)
    return ModelSource(
        arguments=(f"--{use.flag}", f"{names.DOWNLOADS_FOLDER}/{folder_name(source)}"),
        volumes=(cache_volume(spec.model.cache, settings),),
        mounts=({"name": DOWNLOADS_VOLUME, "mountPath": names.DOWNLOADS_FOLDER, "readOnly": True},),
        downloads=(Download(use.container, source),),
    )


def _from_a_registry(source: str, use: _Use, spec: LLMDeploymentSpec, settings: OperatorSettings) -> ModelSource:
    """An image volume if the cache asks for one, else a download."""
    cache, credentials = spec.model.cache, spec.model.credentials
    if cache is None or not cache.image:
        return _downloaded(source, use, spec, settings)
    if settings.claims_folder is not None:
        message = "model.cache.image is for clusters, and local mode mounts no images: write model.cache: {node: true}"
        raise CannotBuild(message, Reason.SOURCE_NOT_SUPPORTED)
    registry = _parsed(source, use).authority
    if not any(mark in registry for mark in ".:") and registry != "localhost":
        # Which nodes would take for a folder of Docker Hub.
        message = f"{use.field}: with model.cache.image a registry is named by a host with a '.' or a port, and "
        raise CannotBuild(f"{message}{registry!r} has neither: write it in full, such as oci://docker.io/ACCOUNT/NAME")
    image = f"{registry}/{source.removeprefix(f'oci://{registry}').strip('/')}"
    reference = {"reference": image, "pullPolicy": "IfNotPresent"}
    path = f"/{cache.image_path}" if cache.image_path and use is _MODEL else ""
    return ModelSource(
        arguments=(f"--{use.flag}", f"{use.mount_path}{path}"),
        volumes=({"name": use.volume, "image": reference},),
        mounts=({"name": use.volume, "mountPath": use.mount_path, "readOnly": True},),
        pull_secrets=() if credentials is None else (credentials.secret_name,),
    )


def _parsed(source: str, use: _Use) -> Source:
    """Raises CannotBuild."""
    try:
        return parse_source(source)
    except SourceError as e:
        raise CannotBuild(f"{use.field}: {e}") from e


_PLACES: Mapping[str, Callable[[str, _Use, LLMDeploymentSpec, OperatorSettings], ModelSource]] = {
    "demo": lambda source, use, spec, settings: ModelSource({use.flag: source}),
    "file": _on_the_machine,
    "pvc": _on_a_claim,
    **dict.fromkeys(DOWNLOADED, _downloaded),
    "oci": _from_a_registry,
}
"""Scheme → what becomes of a source."""


def cache_volume(cache: ModelCache | None, settings: OperatorSettings) -> dict[str, Any]:
    """The volume with downloaded models. Raises CannotBuild where nodes keep none."""
    if cache is not None and cache.claim is not None:
        return {"name": DOWNLOADS_VOLUME, "persistentVolumeClaim": {"claimName": cache.claim}}
    if cache is not None and cache.node:
        folder = settings.node_models_folder
        if folder is None:
            message = "model.cache.node needs a folder of the nodes, and the operator's settings name none "
            message += "(nodeModelsFolder): have one set, or use model.cache.claim"
            raise CannotBuild(message)
        return {"name": DOWNLOADS_VOLUME, "hostPath": {"path": folder, "type": "DirectoryOrCreate"}}
    # Adapters come and go while a pod stays, and its image volumes do not: with `image` each pod has its own copy.
    limit = {"sizeLimit": str(cache.size)} if cache is not None and cache.size is not None else {}
    return {"name": DOWNLOADS_VOLUME, "emptyDir": limit}


_VOLUME_PREFIX = "adapters-"


@dataclass(frozen=True, slots=True)
class PlacedAdapter:
    """A listed adapter, and its folder as engines see it."""

    name: str
    served_name: str
    source: str
    """As it is listed."""
    path: str
    """Empty = no such folder, or downloaded: each pod knows where."""
    is_downloaded: bool = False
    """Whether it is downloaded beside the engine."""
    reason: str = ""
    """Why that is so: a Reason, with a sentence in `message`."""
    message: str = ""


def adapter_folder(deployment: LLMDeployment, settings: OperatorSettings) -> str | None:
    """The folder below which engines may load adapters; None = they need no room for any."""
    if not deployment.spec.adapters and not deployment.spec.engine.max_loras:
        return None
    return "/" if settings.allow_file_sources or settings.claims_folder else names.ADAPTER_FOLDER


def placed_adapters(
    deployment: LLMDeployment, settings: OperatorSettings, claims: Collection[str]
) -> tuple[PlacedAdapter, ...]:
    """In the order of the spec. `claims`: those that exist, and so are mounted."""
    return tuple(
        _placed_adapter(each, deployment.metadata.namespace, settings, claims) for each in deployment.spec.adapters
    )


def _placed_adapter(
    adapter: ListedAdapter, namespace: str, settings: OperatorSettings, claims: Collection[str]
) -> PlacedAdapter:
    claim = claim_of(adapter.source)
    _, _, rest = adapter.source.partition("://")
    path, reason, message = "", "", ""
    is_downloaded = is_elsewhere(adapter.source)
    if is_downloaded:
        try:
            parse_source(adapter.source)
        except SourceError as error:
            is_downloaded, reason, message = False, Reason.SOURCE_NOT_SUPPORTED, str(error)
    elif claim is None and settings.allow_file_sources:
        path = rest
    elif claim is None:
        reason = Reason.SOURCE_NOT_SUPPORTED
        message = "file:// is for local mode only: put its folder on a PersistentVolumeClaim, and write "
        message += "source: pvc://CLAIM/FOLDER"
    elif claim in claims:
        root = names.ADAPTER_FOLDER if settings.claims_folder is None else f"{settings.claims_folder}/{namespace}"
        path = f"{root}/{claim}/{rest.partition('/')[2].strip('/')}"
    else:
        reason = Reason.ADAPTER_SOURCE_NOT_FOUND
        message = f"there is no PersistentVolumeClaim {claim!r} in the namespace {namespace!r}: create it, or correct "
        message += "the name"
    return PlacedAdapter(
        adapter.name, adapter.served_name, adapter.source, path, is_downloaded, reason=reason, message=message
    )


def is_elsewhere(source: str) -> bool:
    """Whether it has to be downloaded."""
    return source.partition("://")[0] in DOWNLOADED


def downloaded_sources(deployment: LLMDeployment) -> list[str]:
    """Sources of listed adapters to download, each once."""
    sources = (each.source for each in deployment.spec.adapters if is_elsewhere(each.source))
    return list(dict.fromkeys(sources))


def claim_mount(claim: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A pod's volume with a claim of adapters, and its place in the engine's container."""
    name = f"{_VOLUME_PREFIX}{fingerprint(claim)}"
    volume = {"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    return volume, {"name": name, "mountPath": f"{names.ADAPTER_FOLDER}/{claim}", "readOnly": True}


def mounted_claims(engine: Mapping[str, Any] | None) -> set[str]:
    """Claims of adapters mounted by a Deployment's pods. A claim without adapters stays mounted, so that removing an
    adapter replaces no pod."""
    ours = (each for each in pod_spec_of(engine).get("volumes") or () if each["name"].startswith(_VOLUME_PREFIX))
    return {each["persistentVolumeClaim"]["claimName"] for each in ours if each.get("persistentVolumeClaim")}
