"""Specs that no waiting will make work, and what a reader must be told of each. The homes' scenarios share them."""

from dataclasses import dataclass
from typing import Any

MIN_ABOVE_MAX = {"minReplicas": 3, "maxReplicas": 2}
MIN_ABOVE_MAX_SENTENCE = "autoscaling.minReplicas must not be above autoscaling.maxReplicas"


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
    Hopeless({"resources": {"profile": "gpu-of-dreams"}}, "UnknownProfile", ["gpu-of-dreams", "cpu-small"]),
    Hopeless({"source": "hf://org/model"}, "SourceNotSupported", ["hf://"], "ModelAvailable"),
    Hopeless(
        {"source": "pvc://no-such-claim/model"},
        "ModelSourceNotFound",
        ["there is no PersistentVolumeClaim 'no-such-claim'", "create it, or correct the name"],
        "ModelAvailable",
    ),
    Hopeless(
        {"resources": {"requests": {"cpu": "4000"}}},
        "Unschedulable",
        ["no node can take it; check resources and the nodes", "Insufficient cpu"],
    ),
    Hopeless(
        {"engine": {"image": "example.com/else:1"}},
        "ImagePullBackOff",
        ["example.com/else:1 cannot be pulled; check engine.image and the registry's credentials"],
    ),
    Hopeless({"source": "demo://leviathan"}, "ModelNotFound", ["leviathan", "dinghy"], "ModelAvailable"),
    Hopeless({"engine": {"kvCache": {"memory": "64Ki"}}}, "NotEnoughMemory", ["memory"]),
    Hopeless(
        {"engine": {"env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "no-such-secret", "key": "k"}}}]}},
        "CreateContainerError",
        ["the container cannot be created", "check engine.env and template", "no-such-secret"],
    ),
    Hopeless(
        {"engine": {"extraArgs": ["--no-such-flag"]}},
        "InvalidConfig",
        ["unrecognized arguments: --no-such-flag; see fairlead-engine --help"],
    ),
]
