"""The rules between fields, as data: the CRD carries them for the API server, and the operator evaluates the same text.

Each message is a sentence the user can act on, with field names as they are written under `spec`.
"""

from dataclasses import dataclass

from fairlead.api import names


@dataclass(frozen=True, slots=True)
class Rule:
    """One CEL rule. `self` is the value that the rule is attached to."""

    rule: str
    message: str


OBJECT = (
    Rule(
        f"size(self.metadata.name) <= {names.MAX_NAME_LENGTH}",
        f"metadata.name must not be longer than {names.MAX_NAME_LENGTH} characters: names of pods are made from it",
    ),
    Rule(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name must start with a letter and consist of lower-case letters, digits and '-', "
        "because a Service has the same name",
    ),
)
"""On the whole object."""

MODEL_NAME = (
    Rule(
        "!self.contains('/')",
        "model.servedName and model.aliases must not contain '/': NAMESPACE/NAME is the name that every LLMDeployment "
        "has without asking, and nobody else may have",
    ),
)
"""On `spec.model.servedName` and on each of `spec.model.aliases`."""

SOURCE = (
    Rule(
        "self.matches('^(demo://[a-z0-9-]+|file:///.+|pvc://[a-z0-9]([-.a-z0-9]*[a-z0-9])?(/.*)?|"
        "hf://[^/@]+/[^/@]+(@[^/@]+)?|s3://[^/]+/.+|oci://.+)$')",
        "model.source must look like demo://NAME, file:///FOLDER, pvc://CLAIM/FOLDER, "
        "hf://ORGANISATION/NAME[@REVISION], s3://BUCKET/FOLDER or oci://IMAGE",
    ),
    Rule("!self.matches('(^|.*/)[.][.](/.*|$)')", "model.source must not contain '..'"),
)
"""On `spec.model.source`."""

ENGINE = (
    Rule(
        "!has(self.maxNumSeqs) || !has(self.maxNumBatchedTokens) || self.maxNumSeqs <= self.maxNumBatchedTokens",
        "engine.maxNumSeqs must not be above engine.maxNumBatchedTokens: each running sequence takes a token of a step",
    ),
)
"""On `spec.engine`."""

RESOURCES = (
    Rule(
        "!has(self.profile) || !(has(self.gpus) || has(self.requests) || has(self.limits))",
        "resources.profile excludes resources.gpus, requests and limits: the profile says them all",
    ),
    Rule(
        "!has(self.gpus) || self.gpus <= 1",
        "resources.gpus must not be above 1: the engine of this version computes on one GPU",
    ),
)
"""On `spec.resources`."""

AUTOSCALING = (
    Rule(
        "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
        "autoscaling.minReplicas must not be above autoscaling.maxReplicas",
    ),
    Rule(
        "!has(self.mode) || self.mode != 'External' || !(has(self.minReplicas) || has(self.maxReplicas) || "
        "has(self.targets) || has(self.scaleUp) || has(self.scaleDown) || has(self.scaleToZeroAfter))",
        "autoscaling.mode External excludes minReplicas, maxReplicas, targets, scaleUp, scaleDown and "
        "scaleToZeroAfter: the external autoscaler has its own",
    ),
    Rule(
        "(has(self.mode) && self.mode == 'External') || has(self.maxReplicas)",
        "autoscaling.maxReplicas must be set: it bounds what the fleet may cost",
    ),
    Rule(
        "!has(self.scaleToZeroAfter) || (has(self.minReplicas) && self.minReplicas == 0)",
        "autoscaling.scaleToZeroAfter needs autoscaling.minReplicas: 0",
    ),
    Rule(
        "!has(self.scaleToZeroAfter) || !self.scaleToZeroAfter.matches('^(0+([.]0+)?(ms|s|m|h|d))+$')",
        "autoscaling.scaleToZeroAfter must be more than 0: the fleet would go between two requests",
    ),
    Rule(
        "!has(self.targets) || !has(self.targets.tolerance) || has(self.targets.timeToFirstToken)",
        "autoscaling.targets.tolerance needs autoscaling.targets.timeToFirstToken: it is a share of it",
    ),
)
"""On `spec.autoscaling`."""

ROLLOUT = (
    Rule(
        "!(has(self.maxSurge) && self.maxSurge == 0 && (!has(self.maxUnavailable) || self.maxUnavailable == 0))",
        "rollout.maxSurge and rollout.maxUnavailable must not both be 0: no pod could be replaced",
    ),
)
"""On `spec.rollout`."""

ENVIRONMENT_VARIABLE = (
    Rule(
        "!(has(self.value) && has(self.valueFrom))",
        "an environment variable has either a value or a valueFrom, not both",
    ),
)
"""On each item of `spec.engine.env`."""
