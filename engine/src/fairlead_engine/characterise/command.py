"""The command: starts an engine in this process, measures within a time limit, writes profile and picture.

Progress goes to standard error, a line per shape; the summary is standard output.
"""

import os
import platform
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from statistics import mean, median

from msgspec.structs import replace as replace_fields

from fairlead_common.wire.profiles import EngineProfile, Measured, write_profile
from fairlead_engine.characterise.measuring import Shape, StepRecorder, measure, shapes
from fairlead_engine.characterise.picture import draw
from fairlead_engine.config import CharacteriseConfig, EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.profile import Steps, batch_weight, fit, identity
from fairlead_engine.core.step_cost import StepWork
from fairlead_engine.errors import ConfigError, StartError
from fairlead_engine.version import __version__


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


_LONGEST_QUEUE = 2**31
_ROUNDS = 3

Tell = Callable[[str], None]
"""Gets a line of progress at a time."""


def run(config: EngineConfig, command: CharacteriseConfig) -> int:
    """Returns the exit status: 0 measured and written, 1 the model or the files cannot be used."""
    try:
        measure_and_write(config, command)
    except StartError as error:
        print(error.message, file=sys.stderr, flush=True)
        return 1
    return 0


def measure_and_write(config: EngineConfig, command: CharacteriseConfig) -> None:
    """Raises StartError for an unusable model, ConfigError for files that cannot be written."""
    output = Path(command.output)
    picture = Path(command.plot) if command.plot else output.with_suffix(".svg")
    for name, path in (("output", output), ("plot", picture)):  # before minutes of work, not after
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("a").close()
        except OSError as error:
            raise ConfigError(name, f"{path} cannot be written: {error.strerror}") from error
    profile = characterise(config, command, lambda line: print(line, file=sys.stderr, flush=True))
    write_profile(profile, output)
    picture.write_text(draw(profile), encoding="utf-8")
    print(f"{summary(profile)}\nprofile: {output}\nplot:    {picture}")


def characterise(config: EngineConfig, command: CharacteriseConfig, tell: Tell) -> EngineProfile:
    """The profile of a model as `config` runs it."""
    tell(f"loading {config.model}")
    began = time.monotonic()
    import_module("fairlead_engine.runner.model_runner")  # torch: a stage of its own
    import_seconds = time.monotonic() - began
    # Costs are measured here and not read, and a prompt may wait as long as it takes.
    engine = Engine(replace(config, max_num_queued_tokens=_LONGEST_QUEUE, profile=None))
    start_seconds = {"import": import_seconds, **engine.info.start_seconds}
    tell("started: " + ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in start_seconds.items()))
    measured, steps = measure_all(engine, config.seed, command.time_limit, tell)
    return make_profile(engine, config, command, start_seconds, measured, steps)


def measure_all(engine: Engine, seed: int, time_limit: float, tell: Tell) -> tuple[list[Measured], Steps]:
    """Runs as many shapes as fit into `time_limit` seconds, up to `_ROUNDS` times each, the first one always. Returns
    medians, over runs of a shape and over steps with the same work."""
    random_ids = random.Random(seed)
    engine.step_cost = recorder = StepRecorder()
    measure(engine, Shape(1, 16, 4), random_ids)  # what the first request pays for, nobody else does
    recorder.steps.clear()
    runs: dict[Shape, list[Measured]] = {}
    planned, began = shapes(engine.info), time.monotonic()
    for number, shape in enumerate(planned * _ROUNDS, start=1):
        if runs and time.monotonic() - began > time_limit:
            tell(f"the time limit of {time_limit:g} s is over; {len(planned) - len(runs)} shapes were not measured")
            break
        found = measure(engine, shape, random_ids)
        runs.setdefault(shape, []).append(found)
        tell(
            f"[{number}/{_ROUNDS * len(planned)}] batch {shape.batch}, prompt {shape.prompt_tokens}, output "
            f"{shape.output_tokens}: TTFT {1e3 * found.ttft_seconds:.0f} ms, TPOT {1e3 * found.tpot_seconds:.1f} ms, "
            f"{found.tokens_per_second:.0f} tok/s ({time.monotonic() - began:.0f} of {time_limit:g} s)"
        )
    seconds: dict[StepWork, list[float]] = {}
    for work, took in recorder.steps:
        seconds.setdefault(work, []).append(took)
    return [middle(each) for each in runs.values()], [(work, median(each)) for work, each in seconds.items()]


def middle(runs: list[Measured]) -> Measured:
    """The median of each figure over runs of one shape."""
    figures = ("ttft_seconds", "tpot_seconds", "tokens_per_second")
    return replace_fields(runs[0], **{name: median(getattr(run, name) for run in runs) for name in figures})
