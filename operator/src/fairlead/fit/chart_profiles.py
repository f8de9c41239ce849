"""The profiles of the Helm chart's default values that the operator does not bring itself, for who checks before there
is a cluster. A test holds them to the chart's."""

from collections.abc import Mapping
from typing import Any

_ACCEPTED = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


def _gpu(product: str, gpu_memory: str, cpu: str, memory: str, limit: str, shared: str) -> dict[str, Any]:
    return {
        "requests": {"cpu": cpu, "memory": memory},
        "limits": {"nvidia.com/gpu": "1", "memory": limit},
        "nodeSelector": {"nvidia.com/gpu.product": product},
        "gpuMemory": gpu_memory,
        "runtimeClassName": "nvidia",
        "tolerations": _ACCEPTED,
        "sharedMemory": shared,
    }


CHART_PROFILES: Mapping[str, dict[str, Any]] = {
    "cpu-small": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
    "cpu-large": {"requests": {"cpu": "8", "memory": "16Gi"}, "limits": {"memory": "32Gi"}},
    "nvidia-l4": _gpu("NVIDIA-L4", "22Gi", "4", "16Gi", "32Gi", "2Gi"),
    "nvidia-a100-80g": _gpu("NVIDIA-A100-SXM4-80GB", "79Gi", "8", "64Gi", "128Gi", "8Gi"),
    "nvidia-h100": _gpu("NVIDIA-H100-80GB-HBM3", "79Gi", "12", "96Gi", "192Gi", "8Gi"),
    "nvidia-h200": _gpu("NVIDIA-H200", "139Gi", "12", "128Gi", "256Gi", "8Gi"),
}
"""Name → profile, as a settings file has it."""
