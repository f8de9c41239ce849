"""The command: starts an engine in this process, measures for as long as it may, writes profile and picture.

Progress goes to standard error, a line per shape; the summary is standard output.
"""

import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from statistics import median

from msgspec.structs import replace as replace_fields

from fairlead_engine.characterise.measuring import Recorder, Shape, measure, shapes
from fairlead_engine.characterise.picture import draw
from fairlead_engine.characterise.record import make_profile, summary
from fairlead_engine.config import CharacteriseConfig, EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.profile import Steps
from fairlead_engine.core.step_cost import StepWork
from fairlead_engine.errors import ConfigError, StartError
from fairlead_protocol.profiles import EngineProfile, Measured, write_profile

_LONGEST_QUEUE = 2**31
_ROUNDS = 3

Tell = Callable[[str], None]
"""Gets a line of progress at a time."""


def run(config: EngineConfig, command: CharacteriseConfig) -> int:
    """Returns the exit status: 0 measured and written, 1 the model or the files cannot be had, which is told."""
    try:
        measure_and_write(config, command)
    except StartError as error:
        print(error.message, file=sys.stderr, flush=True)
        return 1
    return 0


def measure_and_write(config: EngineConfig, command: CharacteriseConfig) -> None:
    """Raises StartError for a model that cannot be run, ConfigError for files that cannot be written."""
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
    """Every shape that `time_limit` seconds are enough for, as often as they are enough for it, up to `_ROUNDS` times;
    the first shape always. Medians count: of a shape, and of the steps that do the same work in different rounds.
    """
    random_ids = random.Random(seed)
    engine.step_cost = recorder = Recorder()
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
