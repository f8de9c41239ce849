"""The engine's configuration file and the ConfigMap that carries it."""

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import yaml

from fairlead.api import names
from fairlead.api.durations import format_duration
from fairlead.api.llmdeployment import LLMDeployment
from fairlead.manifests.common import Manifest, child, fingerprint
from fairlead.manifests.source import ModelSource


def engine_flags(deployment: LLMDeployment, source: ModelSource, cpus: Decimal | None) -> dict[str, Any]:
    """The flags of `fairlead-engine serve` that the spec decides; what it leaves open, the engine chooses.

    `cpus`: what the engine's container may use; None = nobody said.
    """
    spec, engine = deployment.spec, deployment.spec.engine
    flags = {
        **source.flags,
        "served-name": spec.model.served_name,
        "dtype": str(engine.dtype),
        "max-model-len": engine.max_model_len,
        "max-num-seqs": engine.max_num_seqs,
        "max-num-batched-tokens": engine.max_num_batched_tokens,
        "max-num-queued-tokens": engine.max_num_queued_tokens,
        "block-size": engine.kv_cache.block_size,
        "kv-cache-memory": engine.kv_cache.memory,
        "enable-prefix-caching": engine.enable_prefix_caching,
        "num-threads": _num_threads(engine.extra_args, cpus),
        "drain-timeout": format_duration(spec.drain.timeout),
    }
    return {flag: value for flag, value in flags.items() if value is not None}


def _num_threads(extra_args: tuple[str, ...], cpus: Decimal | None) -> int | None:
    """One compute thread per CPU, rounded up; None where nobody bounds the CPUs, or the user says the number.

    Without it every engine of a node starts as many threads as the node has cores, and they take turns on its CPUs.
    """
    if cpus is None or any(argument.partition("=")[0] == "--num-threads" for argument in extra_args):
        return None
    return max(1, math.ceil(cpus))


def config_name(deployment: LLMDeployment, flags: Mapping[str, Any]) -> str:
    """Of the ConfigMap with these flags. Others have other names: a container that starts again in the middle of a
    rollout must not find the configuration of its successors."""
    return names.engine_config(deployment.metadata.name, fingerprint(flags))


def config_map(deployment: LLMDeployment, flags: dict[str, Any]) -> Manifest:
    """The ConfigMap with the engine's configuration file."""
    text = yaml.safe_dump(flags, sort_keys=False, allow_unicode=True)
    body = {"data": {names.ENGINE_CONFIG_KEY: text}}
    return child(deployment, "v1", "ConfigMap", config_name(deployment, flags), body)
