"""A profile's two uses: a step cost before the first request, and the batch weight that bounds admission.

`characterise` makes profiles with `fit` and `batch_weight`; the engine reads a profile with `load_profile` and learns
its costs through `prior`. Both use the cost model of `step_cost`.
"""

import platform
from pathlib import Path
from typing import Any

import msgspec

from fairlead_common.wire import messages
from fairlead_common.wire.profiles import BatchWeight, EngineProfile, FitError, ProfileUnreadable, read_profile
from fairlead_engine.core.runner import Runner
from fairlead_engine.core.scheduler import SchedulerLimits
from fairlead_engine.core.step_cost import StepCostModel, StepWork
from fairlead_engine.errors import ConfigError

_HELD_OUT = 5
"""Every fifth step is left out of the fit and measures the fit's error."""
_SHORT_TOKENS = 16
_LEAST_SECONDS = 1e-12
"""Shorter steps are left out: a step's work over its seconds must not overflow."""

Steps = list[tuple[StepWork, float]]
"""Work and seconds of each step."""


def load_profile(path: str, runner: Runner[Any], block_size: int) -> EngineProfile:
    """The profile in a file, for this model and device. Raises ConfigError, naming the field that differs."""
    try:
        profile = read_profile(Path(path))
    except ProfileUnreadable as error:
        raise ConfigError("profile", str(error), "write one with `fairlead-engine characterise`") from error
    for name, here in identity(runner, block_size).items():
        measured = getattr(profile, name)
        if measured != here:
            raise ConfigError(
                "profile",
                f"{path} was measured with {name} {measured}, and this engine has {here}",
                "measure this one with `fairlead-engine characterise`, or leave --profile out",
            )
    return profile


def identity(runner: Runner[Any], block_size: int) -> dict[str, Any]:
    """The fields of a profile that must agree: model, device and everything else that costs depend on."""
    device = str(runner.device).partition(":")[0]
    return {
        "architecture": runner.model_config.architecture,
        "num_parameters": runner.num_parameters,
        "vocab_size": runner.model_config.vocab_size,
        "dtype": str(runner.dtype).removeprefix("torch."),
        "quantization": runner.quantization,
        "weight_bytes": runner.weight_bytes,
        "kv_cache_dtype": runner.kv_cache_dtype,
        "kv_bytes_per_token": runner.kv_bytes_per_block() // block_size,
        "device": device,
        "device_name": _device_name(device),
    }


def _device_name(device: str) -> str:
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def prior(cost: messages.StepCost, limits: SchedulerLimits) -> Steps:
    """Steps with exactly the cost `cost`: a step cost fitted to them has its coefficients. The steps range from the
    smallest to the largest of this engine, for realistic weights of the coefficients."""
    seqs, budget, longest = limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_model_len
    short = min(_SHORT_TOKENS, budget)
    works = [
        StepWork(1, 0, 0, 0, 1, 1),
        StepWork(1, 0, 0, 0, 1, longest),
        StepWork(1, 0, 0, 0, seqs, seqs * short),
        StepWork(1, 0, 0, 0, seqs + 1, seqs * longest),
        StepWork(1, 1, short, 0, 0, 0),
        StepWork(1, 1, budget + 1, budget * budget // 2, 0, 0),
        StepWork(1, 1, short, short * longest, 0, 0),
    ]
    return [(work, seconds) for work in works if (seconds := step_seconds(cost, work)) > _LEAST_SECONDS]


def step_seconds(cost: messages.StepCost, work: StepWork) -> float:
    return float(sum(getattr(cost, name) * amount for name, amount in work._asdict().items()))


def fit(steps: Steps) -> tuple[messages.StepCost, FitError]:
    """The step cost of steps, and its error on the fifth that is left out. Raises ValueError for too few steps."""
    held_out = steps[_HELD_OUT - 1 :: _HELD_OUT]
    if not held_out:
        raise ValueError(f"{len(steps)} steps are too few to fit a step cost to")
    fitted = StepCostModel(prior_weight=1.0)
    fitted.set_prior([step for index, step in enumerate(steps, start=1) if index % _HELD_OUT])
    errors = sorted(abs(fitted.predict(work) / seconds - 1.0) for work, seconds in held_out)
    median = errors[len(errors) // 2]
    error = FitError(median=median, p90=errors[int(0.9 * len(errors))], num_steps=len(held_out))
    return msgspec.structs.replace(messages.StepCost(**fitted.coefficients), residual=median), error


def batch_weight(
    cost: messages.StepCost, *, cache_tokens: int, max_num_seqs: int, request_weight: int, tpot_target: float | None
) -> BatchWeight:
    """The greatest weight that fits the cache and whose decode step keeps `tpot_target` seconds. A batch of weight w is
    judged by its worst step: w tokens in the cache, of w / request_weight sequences. One request may always run: a
    target below the cost of one request sets no other bound."""
    by_tpot = None
    if tpot_target is not None:
        low, high = min(request_weight, cache_tokens), cache_tokens
        while low < high:
            middle = (low + high + 1) // 2
            num_seqs = min(max_num_seqs, -(-middle // request_weight))
            if step_seconds(cost, StepWork(1, 0, 0, 0, num_seqs, middle)) <= tpot_target:
                low = middle
            else:
                high = middle - 1
        by_tpot = low
    return BatchWeight(
        most=min(cache_tokens, by_tpot or cache_tokens),
        by_memory=cache_tokens,
        by_tpot=by_tpot,
        tpot_target_seconds=tpot_target,
        request_weight=request_weight,
    )
