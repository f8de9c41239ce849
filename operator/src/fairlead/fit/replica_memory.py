"""A replica's memory, from its LLMDeployment and the operator's profiles."""

import math
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

from fairlead.api import names
from fairlead.api.llmdeployment import LLMDeployment
from fairlead.api.quantities import parse_bytes, parse_quantity
from fairlead.fit.fit_check import Memory
from fairlead.manifests.common import GPU
from fairlead.manifests.engine import replica_profile
from fairlead.operator_settings import OperatorSettings, Profile
from fairlead_common.models.choices import DeviceKind

_HOW = "write profiles.{name}.gpuMemory into the operator's settings"


def replica_memory(deployment: LLMDeployment, settings: OperatorSettings) -> Memory:
    """Raises CannotBuild for an unknown profile, and for a number of GPUs other than `engine.tensorParallelSize`."""
    profile, name = replica_profile(deployment, settings), replica_profile_name(deployment, settings)
    memory = profile_memory(profile, name, deployment.spec.engine.tensor_parallel_size)
    template = deployment.spec.template.spec
    named = (each for group in ("containers", "initContainers") for each in template.get(group) or ())
    is_certain = not any(each.get("resources") for each in named if each.get("name") == names.ENGINE_CONTAINER)
    return replace(memory, is_certain=is_certain)


def replica_profile_name(deployment: LLMDeployment, settings: OperatorSettings) -> str:
    """Empty = the LLMDeployment has resources of its own."""
    resources = deployment.spec.resources
    has_own = resources.gpus is not None or resources.requests or resources.limits
    return "" if has_own else resources.profile or settings.default_profile


def replica_gpus(deployment: LLMDeployment, settings: OperatorSettings) -> int:
    """GPUs that one replica takes. Raises CannotBuild as `replica_memory`."""
    profile = replica_profile(deployment, settings)
    return math.ceil(max(_num_gpus(profile.limits), _num_gpus(profile.requests)))


def other_profiles(deployment: LLMDeployment, settings: OperatorSettings) -> dict[str, Memory]:
    """Memory of each other profile that the LLMDeployment could name, by name."""
    ranks = deployment.spec.engine.tensor_parallel_size
    return {
        name: profile_memory(profile, name, ranks)
        for name, profile in settings.all_profiles.items()
        if _num_gpus(profile.limits or profile.requests) in (0, ranks) and name != deployment.spec.resources.profile
    }


def profile_memory(profile: Profile, name: str, ranks: int) -> Memory:
    """`name`: of the profile; empty = its numbers are the LLMDeployment's own."""
    where = f"resources.profile {name}" if name else "resources"
    if _num_gpus(profile.limits) or _num_gpus(profile.requests):
        where = f"a GPU of {where}"
        if profile.gpu_memory is not None:
            return Memory(device=DeviceKind.CUDA, per_rank=parse_bytes(profile.gpu_memory), name=where)
        how = _HOW.format(name=name) if name else "name a profile whose gpuMemory the operator's settings say"
        return Memory(
            device=DeviceKind.CUDA, per_rank=None, name=where, unknown=f"what {where} has is not known: {how}"
        )
    limit = profile.limits.get("memory")
    if limit is None:
        unknown = f"{where} bounds no memory (limits.memory), so a replica takes what its node has"
        return Memory(device=DeviceKind.CPU, per_rank=None, name=where, unknown=unknown)
    return Memory(device=DeviceKind.CPU, per_rank=parse_bytes(limit) // ranks, name=where)


def _num_gpus(resources: Mapping[str, str]) -> Decimal:
    return sum((parse_quantity(str(each)) for name, each in resources.items() if GPU.search(name)), Decimal(0))
