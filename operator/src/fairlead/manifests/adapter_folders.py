"""Where the adapters of an LLMDeployment are, seen from inside its engines' pods, and what the pods mount for them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.api import names
from fairlead.api.conditions import Reason
from fairlead.api.llmdeployment import Adapter, LLMDeployment
from fairlead.manifests.common import fingerprint
from fairlead.manifests.source import claim_of
from fairlead.operator_settings import OperatorSettings
from fairlead_protocol.model_sources import DOWNLOADED, SourceError, parse_source

_VOLUME_PREFIX = "adapters-"


@dataclass(frozen=True, slots=True)
class PlacedAdapter:
    """A listed adapter, and its folder as engines see it."""

    name: str
    served_name: str
    source: str
    """As it is listed."""
    path: str
    """Empty where there is no such folder, and for one that is downloaded: each pod says where."""
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
    return tuple(_placed(each, deployment.metadata.namespace, settings, claims) for each in deployment.spec.adapters)


def _placed(adapter: Adapter, namespace: str, settings: OperatorSettings, claims: Collection[str]) -> PlacedAdapter:
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
    """Of the listed adapters, those to download, each once."""
    sources = (each.source for each in deployment.spec.adapters if is_elsewhere(each.source))
    return list(dict.fromkeys(sources))


def claim_mount(claim: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A pod's volume with a claim of adapters, and its place in the engine's container."""
    name = f"{_VOLUME_PREFIX}{fingerprint(claim)}"
    volume = {"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    return volume, {"name": name, "mountPath": f"{names.ADAPTER_FOLDER}/{claim}", "readOnly": True}


def mounted_claims(engine: Mapping[str, Any] | None) -> set[str]:
    """The claims of adapters that the pods of a Deployment mount. One that no adapter is on any more stays mounted as
    long as it exists, so that removing an adapter replaces no pod."""
    volumes = ((engine or {}).get("spec") or {}).get("template", {}).get("spec", {}).get("volumes") or []
    ours = (each for each in volumes if each["name"].startswith(_VOLUME_PREFIX))
    return {each["persistentVolumeClaim"]["claimName"] for each in ours if each.get("persistentVolumeClaim")}
