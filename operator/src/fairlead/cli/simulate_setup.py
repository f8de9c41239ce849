"""From the arguments of `fairlead simulate autoscaling` to traces and contenders: whose settings play on which load."""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
import yaml

from fairlead.api.llmdeployment import Autoscaling, LLMDeployment, ScalingMode
from fairlead.api.quantities import format_duration
from fairlead.api.schema import InvalidValue, UnknownField, api_fields, decode
from fairlead.cli.check_command import read_deployments
from fairlead.cli.options import UsageError
from fairlead.demand.signals import Capacity
from fairlead.simulator.scaling.loads import GPU, Machine, Trace, named
from fairlead.simulator.scaling.policies import KNOWING, OURS, POLICIES
from fairlead.simulator.scaling.recording import Recording, RecordingError, Section, read_recording, stairs
from fairlead.simulator.scaling.trial import Contender
from fairlead_common.wire.messages import StepCost
from fairlead_common.wire.profiles import EngineProfile, ProfileUnreadable, read_profile

ASSUMED_START_SECONDS = 60.0
ASSUMED_TARGET_SECONDS = 2.0
ASSUMED_TOKEN_BUDGET = 2048
SHARE_AT_START = 0.8
"""Of the capacity of the replicas there are when a recording begins."""
_WHERE = "spec.autoscaling"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSetup:
    """A whole simulation, before the first run."""

    traces: Sequence[Trace]
    contenders: Sequence[Contender]
    """The first is ours, beside whom the others are put."""
    recording: Recording | None = None
    """The requests of the only trace; None = arrivals at random."""
    notes: Sequence[str] = field(default_factory=tuple)
    """What the simulation takes for granted, in sentences."""


def setup(args: argparse.Namespace) -> SimulationSetup:
    """Raises UsageError, naming file, line and column, or the field."""
    deployments = read_deployments(args.filename) if args.filename else []
    own = [each for deployment in deployments for each in _contenders(deployment, args.tried)]
    if args.tried and not own:
        raise UsageError("--try changes an LLMDeployment", "add -f FILE")
    own = _told_apart(own)
    for text in args.policies or ():
        if not any(_is_named(each, [text]) for each in POLICIES):
            raise UsageError(f"no policy is called anything like {text!r}", f"there are {'; '.join(POLICIES)}")
    others = [each for each in POLICIES if _is_named(each, args.policies) and each != OURS]
    first = own[0].spec if own else None
    contenders = own or [Contender(name=OURS)]
    # Those that know the load are a measure, which bounds of the settings would bend.
    contenders += [Contender(name=each, policy=each, spec=None if each in KNOWING else first) for each in others]
    profile = _profile(args)
    machine, notes = _machine(args, deployments[0] if deployments else None, profile)
    if args.trace is None:
        return SimulationSetup(traces=_benchmarks(args, machine, profile), contenders=contenders, notes=notes)
    recording = _recording(args)
    trace = _trace(args, recording, machine or _at_target(args, GPU), profile)
    if any(each.spec is not None and each.spec.schedules for each in own) and not (args.begin or recording.begins):
        hint = "say when it begins: --begin 2026-01-05T08:00+01:00"
        raise UsageError(f"{recording.name} has no time of day, which schedules go by", hint)
    return SimulationSetup(
        traces=[trace], contenders=contenders, recording=recording, notes=[_told(recording, trace), *notes]
    )  # fmt: skip


# -- contenders --------------------------------------------------------------------------------------------------------


def _contenders(deployment: LLMDeployment, tried: Sequence[str]) -> list[Contender]:
    name, spec = deployment.metadata.name, deployment.spec.autoscaling
    if spec is None or spec.mode is not ScalingMode.FAIRLEAD:
        sentence = f"{name}: {_WHERE} is not there" if spec is None else f"{name}: {_WHERE}.mode is {spec.mode}"
        raise UsageError(f"{sentence}, so Fairlead would not scale it", f"write {_WHERE} with maxReplicas and targets")
    contenders = [Contender(name=name, spec=spec)]
    return contenders + [Contender(name=f"{name}, {each}", spec=changed(spec, each)) for each in tried]


def changed(spec: Autoscaling, text: str) -> Autoscaling:
    """With other settings: `targets.queueDepth=8,maxReplicas=6`, by the names of the fields. Raises UsageError."""
    hint = "write fields of spec.autoscaling, as in --try targets.queueDepth=8,scaleDown.stabilizationWindow=30s"
    for part in text.split(","):
        path, equals, value = (each.strip() for each in part.partition("="))
        if not equals or not all(path.split(".")):
            raise UsageError(f"--try {text}: {part!r} is no FIELD=VALUE", hint)
        try:
            raw: Any = yaml.safe_load(value)
            for name in reversed(path.split(".")):
                raw = {name: raw}
            spec = _merged(spec, decode(Autoscaling, raw, _WHERE, strict=True), path.split("."))
        except (InvalidValue, UnknownField, yaml.YAMLError, RecursionError) as error:
            raise UsageError(f"--try {text}: {error}", hint) from error
    return spec


def _merged(spec: Any, given: Any, path: Sequence[str]) -> Any:
    """The one field of `given` that the path leads to, in place of that of `spec`."""
    cls: Any = type(given)
    name = next(each.name for each in api_fields(cls) if each.key == path[0])
    value, old = getattr(given, name), getattr(spec, name)
    if len(path) > 1 and old is not None:
        value = _merged(old, value, path[1:])
    return replace(spec, **{name: value})


def _told_apart(contenders: Sequence[Contender]) -> list[Contender]:
    """With a number behind names that occurred before."""
    seen: dict[str, int] = {}
    found = []
    for each in contenders:
        seen[each.name] = number = seen.get(each.name, 0) + 1
        found.append(each if number == 1 else replace(each, name=f"{each.name} #{number}"))
    return found


def _is_named(policy: str, texts: Sequence[str] | None) -> bool:
    return texts is None or any(text.lower() in policy.lower() for text in texts)


# -- machine -----------------------------------------------------------------------------------------------------------


def _profile(args: argparse.Namespace) -> EngineProfile | None:
    if args.engine_profile is None:
        return None
    try:
        return read_profile(args.engine_profile)
    except ProfileUnreadable as error:
        raise UsageError(f"--engine-profile: {error}", "`fairlead-engine characterise` writes one") from error


def _machine(
    args: argparse.Namespace, deployment: LLMDeployment | None, profile: EngineProfile | None
) -> tuple[Machine | None, list[str]]:
    """The engine to play with, and sentences on what is assumed; None = nothing is known, so each benchmark has its
    own."""
    if deployment is None and profile is None and args.step_cost is None and args.slots is None:
        return None, [] if args.trace is None else [_assumed(args, None, GPU)]
    engine = None if deployment is None else deployment.spec.engine
    slots, budget = (None, None) if engine is None else (engine.max_num_seqs, engine.max_num_batched_tokens)
    known = None if profile is None else Capacity.measured(profile, args.slots or slots, budget)
    cost: StepCost = args.step_cost or (profile.step_cost if profile is not None else GPU.cost)
    machine = replace(
        GPU,
        cost=cost,
        slots=known.max_num_seqs if known is not None else args.slots or slots or GPU.slots,
        token_budget=known.token_budget if known is not None else budget or ASSUMED_TOKEN_BUDGET,
    )
    machine = replace(machine, target=_target(args, deployment))
    if known is not None:
        machine = replace(machine, num_blocks=known.kv_blocks)
    return machine, [_assumed(args, profile, machine)]


def _at_target(args: argparse.Namespace, machine: Machine) -> Machine:
    return replace(machine, target=_target(args, None))


def _target(args: argparse.Namespace, deployment: LLMDeployment | None) -> float:
    """Longest time to first token, by which contenders are judged."""
    spec = None if deployment is None else deployment.spec.autoscaling
    told = None if spec is None or spec.targets is None else spec.targets.time_to_first_token
    return float(args.target or told or ASSUMED_TARGET_SECONDS)


def _assumed(args: argparse.Namespace, profile: EngineProfile | None, machine: Machine) -> str:
    cost = machine.cost
    words = f"engine: {machine.slots} slots, a step of one sequence takes {1000 * (cost.base + cost.decode_seq):.3g} ms"
    if profile is None and args.step_cost is None:
        return f"{words} (assumed; --engine-profile or --step-cost says otherwise)"
    return words


def _cold_start(args: argparse.Namespace, profile: EngineProfile | None) -> float | None:
    if args.start_seconds is not None:
        return float(args.start_seconds)
    return None if profile is None or not profile.start_seconds else sum(profile.start_seconds.values())


# -- traces ------------------------------------------------------------------------------------------------------------


def _benchmarks(args: argparse.Namespace, machine: Machine | None, profile: EngineProfile | None) -> list[Trace]:
    """The catalogue's, on the machine where one is given."""
    for name in ("since", "seconds", "begin"):
        if getattr(args, name) is not None:
            flag = {"since": "--from", "seconds": "--for", "begin": "--begin"}[name]
            raise UsageError(f"{flag} is about a recording", "add --trace FILE")
    traces = named(args.loads or (), held_out=args.held_out)
    if not traces:
        known = ", ".join(repr(each.name) for each in named((), held_out=args.held_out))
        raise UsageError(f"--loads {' '.join(args.loads)}: no load has such a name", f"there are {known}")
    start = _cold_start(args, profile)
    if machine is not None:
        traces = [replace(each, machine=machine) for each in traces]
    elif args.target is not None:
        traces = [replace(each, machine=_at_target(args, each.machine)) for each in traces]
    return traces if start is None else [replace(each, cold_start=start) for each in traces]


def _recording(args: argparse.Namespace) -> Recording:
    if args.loads or args.held_out:
        raise UsageError("--trace is a load by itself", "leave --loads and --held-out out")
    section = Section(since=args.since or 0.0, seconds=args.seconds or math.inf, speed=args.speed)
    hint = "docs/guides/autoscaling.md says which formats are read"
    try:
        return read_recording(args.trace, section)
    except RecordingError as error:
        raise UsageError(str(error), hint) from error
    except OSError as error:
        raise UsageError(f"--trace {args.trace} cannot be read: {error.strerror}", hint) from error


def _trace(args: argparse.Namespace, recording: Recording, machine: Machine, profile: EngineProfile | None) -> Trace:
    """The load of a recording, in capacities of the machine."""
    longest = max(each.prompt_tokens for each in recording.requests)
    if profile is None:  # nothing says how large caches are: slots are the only bound
        machine = replace(machine, num_blocks=max(machine.num_blocks, machine.slots * -(-longest // 16)))
    machine = replace(
        machine,
        prompt=recording.mean("prompt_tokens"),
        uncached=recording.mean("uncached_tokens"),
        output=recording.mean("output_tokens"),
    )
    rates, start = recording.load(machine), _cold_start(args, profile)
    first = rates[:6]
    begins: datetime | None = args.begin or recording.begins
    trace = Trace(
        name=recording.name,
        load=partial(stairs, rates),
        seconds=recording.seconds,
        machine=machine,
        cold_start=ASSUMED_START_SECONDS if start is None else start,
        replicas=math.ceil(sum(first) / len(first) / SHARE_AT_START),
        most_replicas=max(30, math.ceil(2.0 * max(rates))),
        quiet=0.0,
        recorded=recording.requests,
    )
    return trace if begins is None else replace(trace, begins=begins)


def _told(recording: Recording, trace: Trace) -> str:
    machine = trace.machine
    lengths = f"{machine.prompt} prompt tokens ({machine.uncached} to compute) and {machine.output} of an answer"
    rates = f"one replica has room for {machine.capacity:.3g} requests/s, and starts in {trace.cold_start:.3g} s"
    seconds = format_duration(round(recording.seconds))
    return f"{recording.name}: {len(recording.requests)} requests in {seconds}, on average {lengths}; {rates}"


def jsonable(args: argparse.Namespace) -> Mapping[str, Any]:
    """Arguments for a report."""
    given = {key: value for key, value in vars(args).items() if key not in ("run", "command", "simulation")}
    cost = given["step_cost"]
    return given | {"step_cost": None if cost is None else msgspec.to_builtins(cost)}
