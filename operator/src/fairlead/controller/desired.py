"""Desired: which children an LLMDeployment should have, or why none can be made. Pure."""

from dataclasses import dataclass

from fairlead.api import names
from fairlead.api.author_rules import refusals
from fairlead.api.conditions import Reason
from fairlead.api.llmdeployment import InvalidSpec, LLMDeployment, broken_rules
from fairlead.controller.capabilities import BASIC, Capabilities
from fairlead.controller.model_fit import ModelFit, holds_back, model_fit
from fairlead.controller.observe import Observed
from fairlead.controller.pod_features import has_sidecars
from fairlead.manifests.adapter_folders import PlacedAdapter, placed_adapters
from fairlead.manifests.children import children
from fairlead.manifests.common import Manifest
from fairlead.manifests.downloaders import has_adapter_downloader
from fairlead.manifests.source import CannotBuild
from fairlead.operator_settings import OperatorSettings

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
    """In the order in which they are to be applied."""
    obstacle: Problem | None = None
    """Why `children` is empty. What runs already goes on running."""
    adapters: tuple[PlacedAdapter, ...] = ()
    """Those that engines should have loaded."""
    done_without: tuple[str, ...] = ()
    """A sentence for each kind of child that is wanted and cannot be had at this API server."""
    fit: ModelFit | None = None
    """Whether the model fits a replica; None = the object breaks a rule, or cannot be understood."""


def desired(observed: Observed, settings: OperatorSettings, capabilities: Capabilities = BASIC) -> Desired:
    """`capabilities`: of the API server; by default none beyond what every one has.

    Never raises for what a user can write: that becomes the obstacle."""
    try:
        deployment = LLMDeployment.from_body(observed.body)
    except InvalidSpec as e:
        return Desired(None, obstacle=Problem(Reason.INVALID_SPEC, str(e)))
    if broken := broken_rules(observed.body):
        sentences = "; ".join(each.message for each in broken)
        return Desired(deployment, obstacle=Problem(Reason.INVALID_SPEC, sentences))
    if refused := refusals(settings.admission_policy, observed.body):
        return Desired(deployment, obstacle=Problem(Reason.NOT_PERMITTED, "; ".join(refused)))
    fit = model_fit(deployment, settings)
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
    adapters = placed_adapters(deployment, settings, observed.adapter_claims)
    return Desired(deployment, manifests, done_without=capabilities.done_without, adapters=adapters, fit=fit)
