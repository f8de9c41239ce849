"""What was measured, as a profile and as a few lines for a person."""

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import mean

from fairlead_engine.config import CharacteriseConfig, EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.profile import Steps, batch_weight, fit, identity
from fairlead_engine.version import __version__
from fairlead_protocol.profiles import EngineProfile, Measured


def make_profile(
    engine: Engine,
    config: EngineConfig,
    command: CharacteriseConfig,
    start_seconds: Mapping[str, float],
    measured: Sequence[Measured],
    steps: Steps,
) -> EngineProfile:
    """Fits the step cost to `steps` and takes the greatest batch weight from it."""
    import torch  # not at the top: a command line that is wrong should not wait for it

    info = engine.info
    cost, error = fit(steps)
    weight = batch_weight(
        cost,
        cache_tokens=info.num_kv_blocks * info.block_size,
        max_num_seqs=info.max_num_seqs,
        request_weight=round(mean(each.prompt_tokens + each.output_tokens for each in measured)),
        tpot_target=command.tpot_target,
    )
    return EngineProfile(
        model=config.name,
        **identity(engine.runner, info.block_size),
        num_threads=torch.get_num_threads(),
        attention_backend=info.attention_backend,
        machine={"system": platform.platform(), "cores": str(os.cpu_count())},
        versions={"fairlead-engine": __version__, "python": platform.python_version(), "torch": str(torch.__version__)},
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=config.seed,
        block_size=info.block_size,
        num_kv_blocks=info.num_kv_blocks,
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=info.max_num_batched_tokens,
        max_model_len=info.max_model_len,
        start_seconds=dict(start_seconds),
        step_cost=cost,
        error=error,
        max_batch_weight=weight,
        measured=list(measured),
    )


def summary(profile: EngineProfile) -> str:
    """The step cost in words, its error, and the batch weight."""
    cost, weight = profile.step_cost, profile.max_batch_weight
    lines = [
        f"{profile.model} ({profile.architecture}, {profile.dtype}) on {profile.device_name}, "
        f"{profile.num_threads} thread{'s' * (profile.num_threads > 1)}",
        f"a step takes {1e3 * cost.base:.3g} ms, {1e6 * cost.decode_seq:.3g} µs per sequence that decodes, "
        f"{1e9 * cost.kv_token:.3g} ns per token that those read;",
        f"with prompt tokens {1e3 * cost.prefill_step:.3g} ms more, {1e6 * cost.prefill_token:.3g} µs per token, "
        f"{1e9 * cost.prefill_context:.3g} ns per token of context of each",
        f"error on {profile.error.num_steps} other steps: {profile.error.median:.1%} in the middle, "
        f"{profile.error.p90:.1%} at p90",
        f"maximum batch weight {weight.most} tokens; the cache holds {weight.by_memory}",
    ]
    if weight.by_tpot is not None and weight.tpot_target_seconds is not None:
        target = f"{1e3 * weight.tpot_target_seconds:g} ms per token"
        lines[-1] += f", {target} allow {weight.by_tpot}"
        if weight.by_tpot <= weight.request_weight:
            lines.append(
                f"a single request of {weight.request_weight} tokens is as much as {target} allow, or too much"
            )
    return "\n".join(lines)
