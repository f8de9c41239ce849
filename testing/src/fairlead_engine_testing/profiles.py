"""Profiles of engines that nobody has measured."""

from typing import Any

from fairlead_common.wire.messages import StepCost
from fairlead_common.wire.profiles import EngineProfile, FitError
from fairlead_engine.core.profile import batch_weight, identity
from fairlead_engine.core.runner import Runner


def profile_of(runner: Runner[Any], *, block_size: int, cost: StepCost, **changes: Any) -> EngineProfile:
    """What `fairlead-engine characterise` might have written about this runner; `changes` are fields."""
    figures: dict[str, Any] = {
        **identity(runner, block_size),
        "model": "model",
        "num_threads": 1,
        "attention_backend": runner.attention_backend,
        "machine": {},
        "versions": {},
        "measured_at": "2026-01-01T00:00:00+00:00",
        "seed": 0,
        "block_size": block_size,
        "num_kv_blocks": 64,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "max_model_len": 64,
        "start_seconds": {},
        "step_cost": cost,
        "error": FitError(median=0.1, p90=0.2, num_steps=10),
        "max_batch_weight": batch_weight(
            cost, cache_tokens=64 * block_size, max_num_seqs=8, request_weight=10, tpot_target=None
        ),
        "measured": [],
    }
    return EngineProfile(**{**figures, **changes})
