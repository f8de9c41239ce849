"""Specs that no waiting will make work, and what a reader must be told of each. The homes' scenarios share them."""

from dataclasses import dataclass
from typing import Any

MIN_ABOVE_MAX = {"minReplicas": 3, "maxReplicas": 2}
MIN_ABOVE_MAX_SENTENCE = "autoscaling.minReplicas must not be above autoscaling.maxReplicas"

TOO_LARGE = {"requests": {"cpu": "4000"}}
"""Resources that no node has."""

NO_SUCH_DEMO = "demo://leviathan"
NO_SUCH_DEMO_SENTENCE = "there is no bundled model 'leviathan'; bundled models: demo://dinghy"


@dataclass(frozen=True)
class Hopeless:
    """A spec that no waiting will make work, and what a reader must be told."""

    spec: dict[str, Any]
    reason: str
    words: list[str]
    """Each is in the condition's message: what is wrong, and what to do about it."""
    condition: str = "Ready"

    def __str__(self) -> str:
        return self.reason


HOPELESS = [
    Hopeless(
        {"resources": {"profile": "gpu-of-dreams"}},
        "UnknownProfile",
        [
            "resources.profile 'gpu-of-dreams' is not in the operator's settings: use one of ",
            "cpu-small",  # among others, which are the administrator's
            ", or write resources.requests and limits",
        ],
    ),
    Hopeless(
        {"source": "pvc://no-such-claim/model"},
        "ModelSourceNotFound",
        ["there is no PersistentVolumeClaim 'no-such-claim'", "create it, or correct the name"],
        "ModelAvailable",
    ),
    Hopeless(
        {"resources": TOO_LARGE},
        "Unschedulable",
        ["no node can take it; check resources and the nodes", "Insufficient cpu"],
    ),
    Hopeless(
        {"engine": {"image": "example.com/else:1"}},
        "ImagePullBackOff",
        ["example.com/else:1 cannot be pulled; check engine.image and the registry's credentials"],
    ),
    Hopeless({"source": NO_SUCH_DEMO}, "ModelNotFound", [NO_SUCH_DEMO_SENTENCE], "ModelAvailable"),
    Hopeless(
        {"engine": {"dtype": "bfloat16", "kvCache": {"memory": "64Ki"}}},  # else the sizes are the CPU's business
        "NotEnoughMemory",
        [
            "the KV cache for one sequence of 2048 tokens needs 4 MiB, but kv-cache-memory allows 64 KiB, which holds "
            "32 tokens; set max-model-len to at most 32, or raise kv-cache-memory to at least 4194304 (and the "
            "container's memory with it)"
        ],
    ),
    Hopeless(
        {"engine": {"env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "no-such-secret", "key": "k"}}}]}},
        "CreateContainerError",
        ["the container cannot be created", "check engine.env and template", "no-such-secret"],
    ),
    Hopeless(
        {
            "template": {
                "spec": {
                    "volumes": [{"name": "credentials", "secret": {"secretName": "no-such-secret"}}],
                    "containers": [
                        {"name": "engine", "volumeMounts": [{"name": "credentials", "mountPath": "/credentials"}]}
                    ],
                }
            }
        },
        "FailedMount",
        ["a volume cannot be mounted; check the claims, Secrets and ConfigMaps", 'secret "no-such-secret" not found'],
    ),
    Hopeless(
        {"engine": {"extraArgs": ["--no-such-flag"]}},
        "InvalidConfig",
        ["unrecognized arguments: --no-such-flag; see fairlead-engine serve --help"],
    ),
]
