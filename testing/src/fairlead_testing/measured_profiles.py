"""Measured profiles for the operator's side, of a model that nobody has measured."""

from typing import Any

import msgspec

from fairlead_common.wire.messages import StepCost
from fairlead_common.wire.profiles import BatchWeight, EngineProfile, FitError

SLOW = StepCost(base=2e-3, prefill_token=1e-2, decode_seq=5e-4, kv_token=1e-7, residual=0.1)
"""A hundred prompt tokens a second."""


def measured_profile(**changes: Any) -> EngineProfile:
    """`changes` are fields."""
    figures: dict[str, Any] = {
        "model": "model",
        "architecture": "llama",
        "dtype": "float32",
        "device": "cpu",
        "device_name": "CPU",
        "num_parameters": 1000,
        "vocab_size": 100,
        "weight_bytes": 4000,
        "kv_bytes_per_token": 64,
        "num_threads": 1,
        "attention_backend": "cpu_spans",
        "machine": {},
        "versions": {},
        "seed": 0,
        "measured_at": "2026-01-01T00:00:00+00:00",
        "block_size": 16,
        "num_kv_blocks": 1000,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "max_model_len": 2048,
        "start_seconds": {},
        "measured": [],
        "step_cost": SLOW,
        "error": FitError(median=0.1, p90=0.2, num_steps=10),
        "max_batch_weight": BatchWeight(most=400, by_memory=16000, by_tpot=400, request_weight=100),
    }
    return EngineProfile(**{**figures, **changes})


def profile_config_map(profile: EngineProfile, **metadata: Any) -> dict[str, Any]:
    """As `kubectl create configmap NAME --from-file=profile.json` makes it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {"profile.json": msgspec.json.encode(profile).decode()},
    }
