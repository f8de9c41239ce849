"""A replica's memory, from its LLMDeployment and the operator's profiles."""

import math
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

from fairlead.api import names
from fairlead.api.llmdeployment import LLMDeployment
from fairlead.api.quantities import parse_bytes, parse_quantity
from fairlead.fit.fit_check import Memory
from fairlead.fit.published_devices import DeviceNeed, DeviceSupply, device_need
from fairlead.manifests.common import GPU
from fairlead.manifests.engine import has_own_numbers, replica_profile
from fairlead.operator_settings import OperatorSettings, Profile
from fairlead_common.models.choices import DeviceKind

_HOW = "write profiles.{name}.gpuMemory into the operator's settings"


def replica_memory(deployment: LLMDeployment, settings: OperatorSettings, supply: DeviceSupply | None = None) -> Memory:
    """`supply`: devices of the cluster, if known; what a profile says of its GPUs wins.

    Raises CannotBuild for an unknown profile, and for a number of GPUs other than `engine.tensorParallelSize`.
    """
    profile, name = replica_profile(deployment, settings), replica_profile_name(deployment, settings)
    memory = profile_memory(profile, name, deployment.spec.engine.tensor_parallel_size)
    if memory.per_rank is None and supply is not None and (need := device_need(deployment, profile)) is not None:
        memory = published_memory(need, supply) or memory
    template = deployment.spec.template.spec
    named = (each for group in ("containers", "initContainers") for each in template.get(group) or ())
    is_certain = not any(each.get("resources") for each in named if each.get("name") == names.ENGINE_CONTAINER)
    return replace(memory, is_certain=memory.is_certain and is_certain)


def replica_profile_name(deployment: LLMDeployment, settings: OperatorSettings) -> str:
    """Empty = the LLMDeployment has resources of its own."""
    resources = deployment.spec.resources
    return "" if has_own_numbers(resources) else resources.profile or settings.default_profile


def replica_gpus(deployment: LLMDeployment, settings: OperatorSettings) -> int:
    """GPUs that one replica takes, claimed devices among them; a claim template of the user's has one for each rank.
    Raises CannotBuild as `replica_memory`."""
    if deployment.spec.resources.claim_template_name is not None:
        return deployment.spec.engine.tensor_parallel_size
    return math.ceil(_num_devices(replica_profile(deployment, settings)))


def other_profiles(deployment: LLMDeployment, settings: OperatorSettings) -> dict[str, Memory]:
    """Memory of each other profile that the LLMDeployment could name, by name."""
    ranks = deployment.spec.engine.tensor_parallel_size
    return {
        name: profile_memory(profile, name, ranks)
        for name, profile in settings.all_profiles.items()
        if _num_devices(profile) in (0, ranks) and name != deployment.spec.resources.profile
    }


def profile_memory(profile: Profile, name: str, ranks: int) -> Memory:
    """`name`: of the profile; empty = its numbers are the LLMDeployment's own."""
    where = f"resources.profile {name}" if name else "resources"
    if _num_devices(profile):
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


def published_memory(need: DeviceNeed, supply: DeviceSupply) -> Memory | None:
    """By what the cluster's devices tell: that of the smallest which a replica may get, as the scheduler chooses. Never
    certain, since nodes with larger ones may join. None = nothing is told."""
    sizes, name = supply.memory(need), need.name
    if not sizes:
        return None
    where = f"{name}, " + (f"of which the cluster has {len(sizes)}" if len(set(sizes)) == 1 else "at its smallest,")
    return Memory(device=DeviceKind.CUDA, per_rank=min(sizes), name=where, is_certain=False)


def _num_devices(profile: Profile) -> Decimal:
    devices = Decimal(0 if profile.devices is None else profile.devices.count)
    return devices + (num_gpus(profile.limits) or num_gpus(profile.requests))


def num_gpus(resources: Mapping[str, str]) -> Decimal:
    """Of a container's limits or requests, of any vendor."""
    return sum((parse_quantity(str(each)) for name, each in resources.items() if GPU.search(name)), Decimal(0))
