"""Writes the CustomResourceDefinition of LLMDeployments, generated from the types in `fairlead.api.llmdeployment`.

`make crds` calls it, and `tests/api/test_crd.py` compares: people apply `crds/`, the chart brings its copy, and local
mode installs `crd.json` of its package. Its rules are evaluated by API servers that know CEL (Kubernetes from 1.25 on);
`llmdeployment.broken_rules` evaluates the same for all others.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from api_schemas import JsonSchema, spec_schema, validations

from fairlead.api import names, rules
from fairlead.api.conditions import ConditionType

ROOT = Path(__file__).parent.parent
FILES = [ROOT / folder / f"{names.PLURAL}.{names.GROUP}.yaml" for folder in ("crds", "charts/fairlead/crds")]
PACKAGED = ROOT / "local" / "src" / "fairlead_local" / "crd.json"


def crd() -> dict[str, Any]:
    """The whole object, ready to be applied. Do not change the result's schema in place."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": names.CRD_NAME, "labels": {"app.kubernetes.io/name": names.MANAGED_BY}},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": _COLUMNS,
                    "schema": {"openAPIV3Schema": object_schema()},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                }
            ],
        },
    }


@cache
def object_schema() -> JsonSchema:
    """The structural schema of the whole object. Do not change the result."""
    return {
        "description": "A language model, served: engines, a name at the gateway, and their condition.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "Version of this representation."},
            "kind": {"type": "string", "description": "LLMDeployment."},
            "metadata": {"type": "object"},
            "spec": {"description": "The model to serve, and how."} | spec_schema(),
            "status": _status_schema(),
        },
        **validations(rules.OBJECT),
    }


_COLUMNS = [
    {"name": "Model", "type": "string", "jsonPath": ".spec.model.source"},
    {"name": "Ready", "type": "integer", "jsonPath": ".status.readyReplicas"},
    {"name": "Desired", "type": "integer", "jsonPath": ".status.desiredReplicas"},
    {"name": "Queue", "type": "integer", "jsonPath": ".status.scaling.signals.queue"},
    {
        "name": "TTFT-P90",
        "type": "string",
        "description": "Time to first token at targets.percentile, 90 unless set.",
        "jsonPath": ".status.scaling.signals.ttft",
    },
    {"name": "Reason", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].reason'},
    {"name": "Profile", "type": "string", "jsonPath": ".spec.resources.profile", "priority": 1},
    {"name": "Image", "type": "string", "jsonPath": ".spec.engine.image", "priority": 1},
    {"name": "URL", "type": "string", "jsonPath": ".status.url", "priority": 1},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]


def _count(description: str, **limits: Any) -> JsonSchema:
    return {"description": description, "type": "integer"} | (limits or {"format": "int32", "minimum": 0})


def _text(description: str, **limits: Any) -> JsonSchema:
    return {"description": description, "type": "string"} | limits


def _status_schema() -> JsonSchema:
    condition = {
        "type": _text("What the condition is about.", maxLength=316),
        "status": _text("Whether it holds.", enum=["True", "False", "Unknown"]),
        "reason": _text("Why, in one CamelCase word.", minLength=1, maxLength=1024),
        "message": _text("Why, in a sentence that says what to do.", maxLength=32768),
        "observedGeneration": _count("The metadata.generation it was set for.", format="int64", minimum=0),
        "lastTransitionTime": _text("When its status last changed.", format="date-time"),
    }
    return {
        "description": "What the operator sees; written by it alone.",
        "type": "object",
        "properties": {
            "observedGeneration": _count(
                "The metadata.generation that the rest of the status is about.", format="int64"
            ),
            "conditions": {
                "description": f"{', '.join(ConditionType)}: each with its reason.",
                "type": "array",
                "items": {
                    "type": "object",
                    "required": [field for field in condition if field != "observedGeneration"],
                    "properties": condition,
                },
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
            "desiredReplicas": _count("Replicas to run: spec.replicas, or its default."),
            "replicas": _count("Replicas that exist, except those that are going."),
            "readyReplicas": _count("Replicas that answer requests."),
            "drainingReplicas": _count("Replicas that finish the requests they have and then go."),
            "selector": _text("Label selector of the replicas' pods, for autoscalers."),
            "url": _text("Base URL of the model's OpenAI API at the gateway."),
            "adapters": {
                "description": "Each adapter of the spec, and how it is with it. One that cannot be loaded leaves the "
                "model and the others served.",
                "type": "array",
                "items": {"type": "object", "required": ["name", "reason", "message"], "properties": _ADAPTER},
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
            "startup": {
                "description": "What the replica took that was last to become ready, by stage.",
                "type": "object",
                "properties": {
                    "pod": _text("Its name."),
                    "schedule": _text("Until a node was chosen."),
                    "image": _text("Until its containers ran: images pulled, volumes mounted."),
                    "download": _text("Of the model; 0s where it was there, absent where none is downloaded."),
                    "load": _text("Until the engine answered: weights, compilation, warm-up."),
                    "total": _text("From creation to ready."),
                },
            },
            "scaling": _scaling_schema(),
        },
    }


_ADAPTER: JsonSchema = {
    "name": _text("Its name in the spec."),
    "servedName": _text("A name of its own that it is served under; absent = none."),
    "source": _text("Where all ready replicas had loaded it from when they last had; absent = they never had."),
    "readyReplicas": _count("Ready replicas that have loaded it."),
    "reason": _text("Whether it is served, or why not, in one CamelCase word.", minLength=1, maxLength=1024),
    "message": _text("The same in a sentence that says what to do.", maxLength=32768),
}


def _scaling_schema() -> JsonSchema:
    event = {
        "time": _text("When spec.replicas was written.", format="date-time"),
        "from": _count("Replicas asked for before."),
        "to": _count("Replicas asked for since."),
        "reason": _text("Why, in one sentence with its numbers."),
    }
    signals = {
        "queue": _count("Requests that wait in the gateways."),
        "running": _count("Requests sent to replicas and not finished."),
        "ttft": _text("Time to first token at targets.percentile, lately; absent where none was measured."),
        "tpot": _text("Time per output token at targets.percentile, lately; absent where none was measured."),
        "missingGateways": _count("Gateways that say nothing (any more); absent where all do."),
    }
    return {
        "description": "What gateways see of it, and what Fairlead's autoscaler decides where it scales; figures are "
        "rounded, and at most 10 s behind.",
        "type": "object",
        "properties": {
            "desired": _count("Replicas that it recommends."),
            "reason": _text("Why, in one sentence with its numbers."),
            "lastScaleTime": _text("When it last wrote spec.replicas.", format="date-time"),
            "coldStart": _text(
                "How long a replica takes from its pod's creation to being ready: a fading mean of those seen."
            ),
            "signals": {
                "description": "What the gateways report; absent while none can be read.",
                "type": "object",
                "properties": signals,
            },
            "history": {
                "description": "Its last changes of spec.replicas, newest first.",
                "type": "array",
                "maxItems": names.SCALING_HISTORY_LENGTH,
                "items": {"type": "object", "required": list(event), "properties": event},
                "x-kubernetes-list-type": "atomic",
            },
        },
    }


class _Dumper(yaml.SafeDumper):
    """Repeats what is repeated: anchors are legal YAML that people dislike to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def to_yaml() -> str:
    """The text of `FILES`."""
    header = "# Generated from operator/src/fairlead/api/ by `make crds`. Do not edit.\n"
    return header + yaml.dump(crd(), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def to_json() -> str:
    """The text of `PACKAGED`."""
    return json.dumps(crd(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for file in FILES:
        file.write_text(to_yaml(), encoding="utf-8")
    PACKAGED.write_text(to_json(), encoding="utf-8")
