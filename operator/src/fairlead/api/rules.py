"""The rules between fields, as one table of CEL and sentences.

The CRD carries both, for API servers from Kubernetes 1.29 on. On older ones the operator evaluates the rules (`cel`),
and a broken rule ends in the condition InvalidSpec with the same sentence.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any, get_args, get_origin

from fairlead.api import engine_rules, names
from fairlead.api.schema import Constraints, Rule, api_fields, join, unwrap
from fairlead_common.wire import model_sources


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A value that breaks a rule."""

    path: str
    """As in `spec.autoscaling`; empty for the whole object."""
    message: str
    """The rule's sentence."""


def broken(rules: Iterable[Rule], value: Any, path: str = "") -> Iterator[BrokenRule]:
    """Those of `rules` that `value` breaks."""
    return (BrokenRule(path, rule.message) for rule in rules if not rule.holds(value))


def broken_below(cls: type, value: Mapping[str, Any], path: str) -> Iterator[BrokenRule]:
    """Every rule broken within a JSON object that `decode` takes for a `cls`."""
    for item in api_fields(cls):
        if value.get(item.key) is not None:
            yield from _broken_within(item.type, item.constraints, value[item.key], join(path, item.key))


def _broken_within(bare: Any, constraints: Constraints, value: Any, path: str) -> Iterator[BrokenRule]:
    yield from broken(constraints.rules, value, path)
    if get_origin(bare) is tuple:
        item, inner = unwrap(get_args(bare)[0])
        for index, each in enumerate(value):
            yield from _broken_within(item, inner, each, f"{path}[{index}]")
    elif is_dataclass(bare):
        assert isinstance(bare, type)
        yield from broken_below(bare, value, path)


_NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
_DOWNLOADED_FORMS = "hf://[^/@?#:]+/[^/@?#:]+(:[^/@?#:]+)?(@[^@?#]+)?|(s3|gs|az|https|oci)://[^/@?#]+/[^?#]+"
_SOURCE = f"^(demo://[a-z0-9-]+|file:///.+|pvc://[a-z0-9]([-.a-z0-9]*[a-z0-9])?(/.*)?|{_DOWNLOADED_FORMS})$"
_DOWNLOADED = "^(hf|s3|gs|az|https|oci)://"
_ANY_DOWNLOADED = (
    f"self.model.source.matches('{_DOWNLOADED}') || "
    "(has(self.engine) && has(self.engine.speculative) && has(self.engine.speculative.source) && "
    f"self.engine.speculative.source.matches('{_DOWNLOADED}')) || "
    f"(has(self.adapters) && self.adapters.exists(each, each.source.matches('{_DOWNLOADED}')))"
)
_NO_IMAGES = "!has(self.model.cache) || !has(self.model.cache.image) || !self.model.cache.image"
_NOT_MOUNTED = "^(hf|s3|gs|az|https)://"
_ADAPTER_SOURCE = f"^(file:///.+|pvc://[a-z0-9]([-.a-z0-9]*[a-z0-9])?/.+|{_DOWNLOADED_FORMS})$"
_DOWNLOADED_LOOK = (
    "hf://ORGANISATION/NAME[:QUANTISATION][@REVISION], s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, az://CONTAINER/FOLDER, "
    "https://HOST/PATH or oci://REGISTRY/NAME, without credentials: those belong into model.credentials"
)
_DYNAMIC_TREE = "^[0-9]+x[0-9]+$"
_NO_WAY_UP = "(^|.*/)[.][.](/.*|$)"


def _source_rules(field: str, pattern: str, forms: str) -> tuple[Rule, ...]:
    """`forms`: of sources that are not downloaded."""
    return (
        Rule(f"self.matches('{pattern}')", f"{field} must look like {forms}, {_DOWNLOADED_LOOK}"),
        Rule(f"!self.matches('{_NO_WAY_UP}')", f"{field} must not contain '..'"),
        Rule(
            f"!self.matches('{model_sources.HUB_PAGE}')",
            f"{field} must be hf://ORGANISATION/NAME for a model of Hugging Face, not the address of its page",
        ),
    )


OBJECT = (
    Rule(
        f"size(self.metadata.name) <= {names.MAX_NAME_LENGTH}",
        f"metadata.name must not be longer than {names.MAX_NAME_LENGTH} characters: names of pods are made from it",
    ),
    Rule(
        f"self.metadata.name.matches('{_NAME}')",
        "metadata.name must start with a letter and consist of lower-case letters, digits and '-', "
        "because a Service has the same name",
    ),
    Rule(
        "!has(self.spec.adapters) || self.spec.adapters.all(each, !has(each.servedName) || "
        "!((has(self.spec.model.servedName) ? self.spec.model.servedName : self.metadata.name) == each.servedName || "
        "(has(self.spec.model.aliases) && each.servedName in self.spec.model.aliases)))",
        "adapters[].servedName must not be a name of the model itself: requests could mean either",
    ),
)
"""On the whole object: rules that need its name. API servers let old objects break a new rule while nothing below the
rule changes; the status counts here, so rules stand on `spec` where possible."""

SPEC = (
    Rule(
        "!has(self.resources) || !has(self.resources.gpus) || self.resources.gpus <= 1 || "
        "(has(self.engine) && has(self.engine.tensorParallelSize) && "
        "self.resources.gpus <= self.engine.tensorParallelSize)",
        "resources.gpus must not be above engine.tensorParallelSize: the engine would leave the others idle",
    ),
    Rule(
        "!has(self.resources) || !has(self.resources.devices) || !has(self.resources.devices.count) || "
        "self.resources.devices.count <= 1 || (has(self.engine) && has(self.engine.tensorParallelSize) && "
        "self.resources.devices.count <= self.engine.tensorParallelSize)",
        "resources.devices.count must not be above engine.tensorParallelSize: the engine would leave the others idle",
    ),
    Rule(
        "!has(self.adapters) || size(self.adapters) == 0 || !has(self.engine) || "
        "!has(self.engine.maxLoras) || self.engine.maxLoras > 0",
        "engine.maxLoras must not be 0 where adapters are listed: no engine would have room for them",
    ),
    Rule(
        f"!has(self.model.credentials) || {_ANY_DOWNLOADED}",
        "model.credentials is for sources that are downloaded: leave it out",
    ),
    Rule(
        f"!has(self.model.cache) || {_ANY_DOWNLOADED}",
        "model.cache is for sources that are downloaded: leave it out",
    ),
    Rule(
        f"{_NO_IMAGES} || self.model.source.startsWith('oci://')",
        "model.cache.image needs a model.source of oci://REGISTRY/NAME: nodes pull images from registries only; for "
        "other sources choose model.cache.claim or node",
    ),
    Rule(
        f"{_NO_IMAGES} || !has(self.engine) || !has(self.engine.speculative) || "
        "!has(self.engine.speculative.source) || "
        f"!self.engine.speculative.source.matches('{_NOT_MOUNTED}')",
        "engine.speculative.source must be oci:// or in place (pvc://) with model.cache.image: there is nowhere to "
        "keep what is downloaded otherwise",
    ),
    Rule(
        f"{_NO_IMAGES} || !has(self.engine) || !has(self.engine.type) || "
        "self.engine.type != 'llama.cpp' || "
        "(has(self.model.cache.imagePath) && self.model.cache.imagePath.endsWith('.gguf'))",
        "model.cache.imagePath must name a .gguf file with engine.type llama.cpp, such as models/barge.gguf",
    ),
    *engine_rules.SPEC,
)
"""On `spec`."""

MODEL_NAME = (
    Rule(
        "!self.contains('/')",
        "model.servedName, model.aliases and adapters[].servedName must not contain '/': NAMESPACE/NAME is the name "
        "that every LLMDeployment has without asking, and nobody else may have",
    ),
)
"""On `spec.model.servedName`, on each of `spec.model.aliases`, and on the `servedName` of each of `spec.adapters`."""

SOURCE = _source_rules("model.source", _SOURCE, "demo://NAME, file:///FOLDER, pvc://CLAIM/FOLDER")
"""On `spec.model.source`."""

CACHE = (
    Rule(
        "!has(self.claim) || !has(self.node) || !self.node",
        "model.cache.claim excludes model.cache.node: a model is kept in one place",
    ),
    Rule(
        "!has(self.image) || !self.image || !(has(self.claim) || (has(self.node) && self.node) || has(self.size))",
        "model.cache.image excludes model.cache.claim, node and size: nodes keep images, and remove them, as their "
        "kubelet is set",
    ),
    Rule(
        "!has(self.imagePath) || (has(self.image) && self.image)",
        "model.cache.imagePath needs model.cache.image: true: it is a place in an image that pods mount",
    ),
)
"""On `spec.model.cache`."""

ADAPTER_SOURCE = _source_rules("adapters[].source", _ADAPTER_SOURCE, "pvc://CLAIM/FOLDER, file:///FOLDER")
"""On the `source` of each of `spec.adapters`."""

ADAPTERS = (
    Rule(
        # No filter(): API servers take what it leaves for endless when they reckon what a rule may cost.
        "self.all(each, has(each.servedName) ? "
        "self.exists_one(other, has(other.servedName) ? other.servedName == each.servedName : false) : true)",
        "two of adapters must not have the same servedName: requests could mean either",
    ),
)
"""On `spec.adapters`."""

CHAT_TEMPLATE = (
    Rule(
        "self.matches('[{][{%]')",
        "engine.chatTemplate must be the text of a Jinja template, which has {{ }} or {% %} somewhere",
    ),
)
SPECULATIVE_SOURCE = _source_rules(
    "engine.speculative.source", _SOURCE, "pvc://CLAIM/FOLDER, file:///FOLDER, demo://NAME"
)
"""On `spec.engine.speculative.source`."""

SPECULATIVE = (
    Rule(
        "self.method == 'ngram' || self.method == 'mtp' || has(self.source)",
        "engine.speculative.source must be set for methods draft, medusa and eagle3: it says where the smaller model "
        "or the heads are",
    ),
    Rule(
        "(self.method != 'ngram' && self.method != 'mtp') || !has(self.source)",
        "engine.speculative.source must be left out with methods ngram and mtp, which read no further model: or choose "
        "draft, medusa or eagle3",
    ),
    Rule(
        "!has(self.source) || !self.source.matches('^demo://') || self.method == 'draft' || self.method == 'ngram' || "
        "self.method == 'mtp'",
        "engine.speculative.source demo:// is for method draft: no heads come with the engine",
    ),
    Rule(
        "!has(self.tree) || self.method == 'medusa' || self.method == 'eagle3' || self.method == 'mtp'",
        "engine.speculative.tree is for methods medusa, eagle3 and mtp: others guess one token for each place",
    ),
    Rule(
        f"!has(self.tree) || (self.method != 'eagle3' && self.method != 'mtp') || self.tree.matches('{_DYNAMIC_TREE}')",
        "engine.speculative.tree must be WIDTHxNODES such as 4x24 for methods eagle3 and mtp: a list of paths is for "
        "medusa",
    ),
)
"""On `spec.engine.speculative`."""

ENGINE = (
    Rule(
        "!has(self.speculative) || self.speculative.method == 'ngram' || !has(self.tensorParallelSize) || "
        "self.tensorParallelSize <= 1",
        "engine.speculative.method must be ngram where engine.tensorParallelSize is above 1: others guess for one GPU "
        "only",
    ),
    Rule(
        "!has(self.maxNumSeqs) || !has(self.maxNumBatchedTokens) || self.maxNumSeqs <= self.maxNumBatchedTokens",
        "engine.maxNumSeqs must not be above engine.maxNumBatchedTokens: each running sequence takes a token of a step",
    ),
    *engine_rules.ENGINE,
)
"""On `spec.engine`."""

RESOURCES = (
    Rule(
        "!has(self.profile) || !(has(self.gpus) || has(self.devices) || has(self.claimTemplateName) || "
        "has(self.requests) || has(self.limits))",
        "resources.profile excludes resources.gpus, devices, claimTemplateName, requests and limits: the profile says "
        "them all",
    ),
    Rule(
        "!has(self.gpus) || !(has(self.devices) || has(self.claimTemplateName))",
        "resources.gpus excludes resources.devices and claimTemplateName: a replica's devices are asked for in one way",
    ),
    Rule(
        "!has(self.devices) || !has(self.claimTemplateName)",
        "resources.devices excludes resources.claimTemplateName: the template says which devices",
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
        "has(self.schedules) || has(self.priority) || has(self.targets) || has(self.scaleUp) || has(self.scaleDown) || "
        "has(self.scaleToZeroAfter))",
        "autoscaling.mode External excludes minReplicas, maxReplicas, schedules, priority, targets, scaleUp, "
        "scaleDown and scaleToZeroAfter: the external autoscaler has its own",
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
        "!has(self.targets) || !has(self.targets.tolerance) || has(self.targets.timeToFirstToken)"
        " || has(self.targets.timePerOutputToken)",
        "autoscaling.targets.tolerance needs autoscaling.targets.timeToFirstToken or timePerOutputToken: "
        "it is a share of them",
    ),
)
"""On `spec.autoscaling`."""

SCHEDULE = (
    Rule(
        "has(self.minReplicas) || has(self.maxReplicas)",
        "a schedule must have minReplicas or maxReplicas: it would change nothing",
    ),
    Rule(
        "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
        "minReplicas of a schedule must not be above its maxReplicas",
    ),
)
"""On each item of `spec.autoscaling.schedules`."""

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
    *engine_rules.ENVIRONMENT_VARIABLE,
)
"""On each item of `spec.engine.env`."""
