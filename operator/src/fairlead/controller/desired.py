"""Desired: which children an LLMDeployment should have, or why none can be made. Pure.

Whether the model fits a replica is known by the catalogue, without asking anybody. A no that is certain keeps the first
pods of an LLMDeployment from being made, which could only fail. Running pods are left alone, and an annotation
overrides the verdict.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fairlead.api import names
from fairlead.api.author_rules import refusals
from fairlead.api.conditions import ConditionStatus, Reason
from fairlead.api.llmdeployment import EngineType, InvalidSpec, LLMDeployment, broken_rules
from fairlead.controller.capabilities import BASIC, Capabilities, has_sidecars
from fairlead.controller.observe import Observed
from fairlead.fit.fit_check import Memory, Verdict, check, read_shape, unreckoned
from fairlead.fit.memory_need import EngineChoice
from fairlead.fit.presets import config_of
from fairlead.fit.published_devices import DeviceSupply
from fairlead.fit.remedies import remedies
from fairlead.fit.replica_memory import other_profiles, replica_memory
from fairlead.manifests.children import children
from fairlead.manifests.common import Manifest
from fairlead.manifests.devices import claims_devices
from fairlead.manifests.downloaders import has_adapter_downloader
from fairlead.manifests.source import CannotBuild, PlacedAdapter, placed_adapters
from fairlead.operator_settings import OperatorSettings
from fairlead_common.models.load_errors import ModelLoadError

_MIRROR = "HF_ENDPOINT"
_MOST_REMEDIES = 4
"""That a condition names."""


@dataclass(frozen=True, slots=True)
class ModelFit:
    """The condition Fits before a replica has proved anything."""

    status: ConditionStatus
    reason: Reason
    message: str
    is_certain_no: bool = False
    """Whether pods could only fail."""


def model_fit(deployment: LLMDeployment, settings: OperatorSettings, devices: DeviceSupply | None = None) -> ModelFit:
    """`devices`: of the cluster, if known. Never raises for what a user can write."""
    source, engine = deployment.spec.model.source, deployment.spec.engine
    if engine.type is not EngineType.FAIRLEAD:
        message = f"engine.type is {engine.type}, which lays out memory its own way: it is not reckoned"
        return _unknown(Reason.ENGINE_NOT_OURS, message)
    if problem := unreckoned(source):
        return _unknown(Reason.MODEL_UNKNOWN, problem)
    if config_of(source) is None:
        message = f"{source} is not in the catalogue, so nothing is known of the model before it is loaded; "
        return _unknown(Reason.MODEL_UNKNOWN, message + "`fairlead check --config` reckons with its config.json")
    try:
        choice, memory = EngineChoice.of(deployment.spec), replica_memory(deployment, settings, devices)
    except (CannotBuild, ValueError) as e:
        return _unknown(Reason.INVALID_SPEC, str(e))
    others = other_profiles(deployment, settings)
    try:
        found = _reckoned(source, choice, memory, tuple(others.items()))
    except ModelLoadError as e:  # the catalogue is held to what can be read
        return _unknown(Reason.MODEL_UNKNOWN, str(e))
    # A mirror may hold anything under a name.
    is_sure = _MIRROR not in settings.download_environment or not source.startswith("hf://")
    return found if is_sure else ModelFit(found.status, found.reason, found.message)


def holds_back(fit: ModelFit, metadata: Mapping[str, Any]) -> bool:
    """Whether nothing is made for an LLMDeployment that has nothing yet."""
    is_overridden = (metadata.get("annotations") or {}).get(names.ANNOTATION_IGNORE_FIT) == "true"
    return fit.is_certain_no and not is_overridden


def _unknown(reason: Reason, message: str) -> ModelFit:
    return ModelFit(ConditionStatus.UNKNOWN, reason, message)


@lru_cache(maxsize=256)
def _reckoned(source: str, choice: EngineChoice, memory: Memory, others: tuple[tuple[str, Memory], ...]) -> ModelFit:
    """Proposals take some tens of milliseconds, and an LLMDeployment is looked at again and again."""
    known = None if choice.draft is None else config_of(choice.draft)
    draft = None if known is None else read_shape(known)
    fit = check(read_shape(config_of(source)), choice, memory, draft)
    status = ConditionStatus.UNKNOWN
    if fit.verdict is not Verdict.MEMORY_UNKNOWN:
        status = ConditionStatus.TRUE if fit.verdict.starts else ConditionStatus.FALSE
    message = fit.message
    if proposed := remedies(fit, dict(others))[:_MOST_REMEDIES]:
        message += f". What would fit: {'; or '.join(map(str, proposed))}"
    return ModelFit(status, Reason(fit.verdict), message, fit.is_certain_no)


NO_IMAGE_VOLUMES = (
    "model.cache.image: this cluster has no image volumes, which Kubernetes has from 1.35 on, and from 1.33 with the "
    "feature gate ImageVolume: write model.cache: {node: true}, or {claim: NAME}, to have the model downloaded"
)
NO_SIDECARS = (
    "this cluster has no sidecar containers (init containers with restartPolicy: Always), which Kubernetes has from "
    "1.29 on: upgrade it, or use engine.type: Fairlead with adapters from pvc:// only"
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something cannot be done as asked."""

    reason: str
    """A Reason, or the word of an engine that could not start."""
    message: str
    """A sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Desired:
    """What there should be."""

    deployment: LLMDeployment | None
    """None where the object cannot even be understood."""
    children: tuple[Manifest, ...] = ()
    """In the order of application."""
    obstacle: Problem | None = None
    """Why `children` is empty. What runs already goes on running."""
    adapters: tuple[PlacedAdapter, ...] = ()
    """Those that engines should have loaded."""
    done_without: tuple[str, ...] = ()
    """A sentence for each wanted kind of child that the API server lacks."""
    fit: ModelFit | None = None
    """Whether the model fits a replica; None = invalid object."""


def _no_claim(
    deployment: LLMDeployment, observed: Observed, manifests: Iterable[Manifest], capabilities: Capabilities
) -> Problem | None:
    """Why pods could have no claim for their devices; None = they can, or need none."""
    if not any(map(claims_devices, manifests)):
        return None
    resources = deployment.spec.resources
    field = "profile" if resources.profile else "claimTemplateName" if resources.claim_template_name else "devices"
    if capabilities.no_devices:
        remedy = "upgrade to Kubernetes 1.34 or later and the chart, or ask for GPUs by resources.gpus"
        message = f"resources.{field} asks for devices by a claim, and {capabilities.no_devices}: {remedy}"
        return Problem(Reason.DEVICES_NOT_SUPPORTED, message)
    if observed.missing_claim_template is None:
        return None
    message = (
        f"resources.claimTemplateName: there is no ResourceClaimTemplate {observed.missing_claim_template!r} in the "
        f"namespace {deployment.metadata.namespace!r}: create it, or correct the name"
    )
    return Problem(Reason.CLAIM_TEMPLATE_NOT_FOUND, message)


def desired(observed: Observed, settings: OperatorSettings, capabilities: Capabilities = BASIC) -> Desired:
    """`capabilities`: of the API server. Never raises for what a user can write: that becomes the obstacle."""
    try:
        deployment = LLMDeployment.from_body(observed.body)
    except InvalidSpec as e:
        return Desired(None, obstacle=Problem(Reason.INVALID_SPEC, str(e)))
    if broken := broken_rules(observed.body):
        sentences = "; ".join(each.message for each in broken)
        return Desired(deployment, obstacle=Problem(Reason.INVALID_SPEC, sentences))
    if refused := refusals(settings.admission_policy, observed.body):
        return Desired(deployment, obstacle=Problem(Reason.NOT_PERMITTED, "; ".join(refused)))
    fit = model_fit(deployment, settings, observed.devices)
    for name, claim in observed.missing_claims.items():
        message = (
            f"{name}: there is no PersistentVolumeClaim {claim!r} in the namespace "
            f"{deployment.metadata.namespace!r}: create it, or correct the name"
        )
        return Desired(deployment, obstacle=Problem(Reason.MODEL_SOURCE_NOT_FOUND, message), fit=fit)
    try:
        claims = sorted(observed.adapter_claims)
        downloader = has_adapter_downloader(observed.engine)
        manifests = children(
            deployment, settings, capabilities.wanted, claims, observed.profile, keeps_downloader=downloader
        )
    except CannotBuild as e:
        return Desired(deployment, obstacle=Problem(e.reason, e.message), fit=fit)
    if observed.engine is None and not observed.pods and holds_back(fit, observed.body["metadata"]):
        override = f"the annotation {names.ANNOTATION_IGNORE_FIT}: 'true' has one made all the same"
        message = f"no pod is made, as it could only fail: {fit.message}; {override}"
        return Desired(deployment, obstacle=Problem(fit.reason, message), fit=fit)
    if observed.image_volumes is False:
        return Desired(deployment, obstacle=Problem(Reason.SOURCE_NOT_SUPPORTED, NO_IMAGE_VOLUMES), fit=fit)
    if observed.sidecars is False and any(map(has_sidecars, manifests)):
        return Desired(deployment, obstacle=Problem(Reason.SIDECARS_NOT_SUPPORTED, NO_SIDECARS), fit=fit)
    if (problem := _no_claim(deployment, observed, manifests, capabilities)) is not None:
        return Desired(deployment, obstacle=problem, fit=fit)
    adapters = placed_adapters(deployment, settings, observed.adapter_claims)
    return Desired(deployment, manifests, done_without=capabilities.done_without, adapters=adapters, fit=fit)
