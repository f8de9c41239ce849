"""Remedies: changes of a CR's fields that would make the model fit, tried by the same arithmetic."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from fairlead.fit.fit_check import Fit, Memory, Verdict, check, size, undivided
from fairlead.fit.memory_need import EngineChoice
from fairlead_common.models.choices import DeviceKind

_ROUND = 256
_MOST_RANKS = 64
_MOST_CHANGES = 3
_FORMATS = {DeviceKind.CUDA: ("fp8", "int8"), DeviceKind.CPU: ("int8", "int4-weight-only")}
"""Smaller formats per device. GPUs keep 4-bit weights as 8-bit ones, so those are no remedy."""
_SHORTEST = 2048
"""Shortest context worth proposing, if the model allows as much."""


@dataclass(frozen=True, slots=True)
class SpecChange:
    """One field."""

    field: str
    """Below `spec`."""
    value: str
    also: str = ""
    """What has to go with it."""

    def __str__(self) -> str:
        return f"{self.field}: {self.value}{f' ({self.also})' if self.also else ''}"


@dataclass(frozen=True, slots=True)
class Remedy:
    """Changes that together make it fit."""

    changes: tuple[SpecChange, ...]
    becomes: Fit

    def __str__(self) -> str:
        return " and ".join(map(str, self.changes))

    @property
    def told(self) -> str:
        """With what comes of it."""
        weights, held = self.becomes.need.weights, self.becomes.held_sequences
        room = "" if held is None else f", {held} x {self.becomes.max_model_len} tokens at once"
        return f"{self}: weights {size(weights)}{room}"


def remedies(found: Fit, profiles: Mapping[str, Memory] = {}) -> tuple[Remedy, ...]:
    """Single changes that make the model fit; without any, the fewest combined. `profiles`: alternatives by name. Empty
    for a model that fits, or with unknown memory."""
    if found.verdict in (Verdict.FITS, Verdict.MEMORY_UNKNOWN):
        return ()
    steps = list(_steps(found))
    alone = [remedy for change, choice in steps if (remedy := _tried(found, choice, change)) is not None]
    alone += [remedy for name, memory in profiles.items() if (remedy := _elsewhere(found, name, memory)) is not None]
    if alone or found.verdict in (Verdict.NOT_DIVISIBLE, Verdict.NOT_SUPPORTED):
        return tuple(alone)
    together = [_together(found, ())]
    for name, memory in profiles.items():
        if memory.per_rank is not None and memory != found.memory:
            together.append(_together(replace(found, memory=memory), (SpecChange("resources.profile", name),)))
    fewest = min((len(each.changes) for each in together if each), default=0)
    return tuple(each for each in together if each is not None and len(each.changes) == fewest)


def _tried(found: Fit, choice: EngineChoice, *changes: SpecChange) -> Remedy | None:
    """None = still does not fit; a change of an undividing number of ranks need only divide."""
    becomes = _checked(found, choice)
    is_enough = becomes.verdict is Verdict.FITS
    if found.verdict is Verdict.NOT_DIVISIBLE:
        is_enough = changes[0].field == "engine.tensorParallelSize"
    return Remedy(changes, becomes) if is_enough else None


def _checked(found: Fit, choice: EngineChoice) -> Fit:
    return check(found.shape, choice, found.memory, None if choice.guesser is None else found.draft)


def _elsewhere(found: Fit, name: str, memory: Memory) -> Remedy | None:
    if memory == found.memory or memory.per_rank is None:
        return None
    becomes = check(found.shape, found.choice, memory, found.draft)
    return Remedy((SpecChange("resources.profile", name),), becomes) if becomes.verdict is Verdict.FITS else None


def _steps(found: Fit) -> Iterator[tuple[SpecChange, EngineChoice]]:
    """Single changes that may be enough, cheapest first."""
    choice = found.choice
    if choice.quantization is not None and found.verdict is Verdict.NOT_SUPPORTED:
        yield SpecChange("engine.quantization", "left out"), replace(choice, quantization=None)
    if found.verdict is Verdict.FEWER_SEQUENCES and found.held_sequences:
        held = found.held_sequences
        yield SpecChange("engine.maxNumSeqs", str(held)), replace(choice, max_num_seqs=held)
    if (shorter := _shorter(found)) is not None:
        yield SpecChange("engine.maxModelLen", str(shorter)), replace(choice, max_model_len=shorter)
    yield from _kv(choice)
    yield from _fewer_beside(found)
    yield from _quantised(found)
    yield from _ranks(found)


def _shorter(found: Fit) -> int | None:
    """The longest context that fits, all else being equal."""
    most = found.shape.max_position_embeddings
    if found.verdict is Verdict.NOT_SUPPORTED:
        return most if (found.choice.max_model_len or 0) > most else None
    if found.held_tokens is None:
        return None
    each = found.held_tokens // max(1, found.sequences) // _ROUND * _ROUND
    return each if min(_SHORTEST, most) <= each < found.max_model_len else None


def _kv(choice: EngineChoice) -> Iterator[tuple[SpecChange, EngineChoice]]:
    if choice.kv_dtype == "auto":
        also = "int8 on GPUs before compute capability 8.9"
        yield SpecChange("engine.kvCache.dtype", "fp8", also), replace(choice, kv_dtype="fp8")


def _fewer_beside(found: Fit) -> Iterator[tuple[SpecChange, EngineChoice]]:
    """Of what is in memory beside the model."""
    choice = found.choice
    if choice.num_adapters > 1:
        yield SpecChange("engine.maxLoras", "1"), replace(choice, num_adapters=1)
    if found.draft is not None or choice.guesses_itself:
        yield SpecChange("engine.speculative", "left out"), replace(choice, guesser=None, guesses_itself=False)


def _quantised(found: Fit) -> Iterator[tuple[SpecChange, EngineChoice]]:
    if found.shape.stored is None and found.choice.quantization is None:
        for name in _FORMATS[found.memory.device]:
            yield SpecChange("engine.quantization", name), replace(found.choice, quantization=name)


def _ranks(found: Fit) -> Iterator[tuple[SpecChange, EngineChoice]]:
    """More GPUs when memory is short; for an undividing number, the nearest that divide."""
    now, device = found.choice.ranks, found.memory.device
    divide = [each for each in range(1, _MOST_RANKS + 1) if not undivided(found.shape, each)]
    if found.verdict is Verdict.NOT_DIVISIBLE:
        wanted = [each for each in (max((one for one in divide if one < now), default=0),) if each]
        wanted += [each for each in divide if each > now][:1]
    elif device is DeviceKind.CUDA:
        wanted = [each for each in divide if each > now]
    else:
        wanted = []
    also = "with {} GPUs in resources" if device is DeviceKind.CUDA else ""
    choices = [(each, replace(found.choice, ranks=each)) for each in wanted]
    if found.verdict is not Verdict.NOT_DIVISIBLE:  # the fewest, and the next that leave more room
        choices = [each for each in choices if _checked(found, each[1]).verdict is Verdict.FITS][:2]
    for each, choice in choices:
        yield SpecChange("engine.tensorParallelSize", str(each), also.format(each)), choice


def _together(found: Fit, before: tuple[SpecChange, ...]) -> Remedy | None:
    """The fewest combined changes of weights, cache, length and ranks, after those made `before`."""
    options = [*_kv(found.choice), *_quantised(found)]
    length = min(_SHORTEST, found.shape.max_position_embeddings)
    if length < found.max_model_len:
        options.append((SpecChange("engine.maxModelLen", str(length)), replace(found.choice, max_model_len=length)))
    if (found.choice.max_num_seqs or 0) > 1:
        options.append((SpecChange("engine.maxNumSeqs", "1"), replace(found.choice, max_num_seqs=1)))
    if found.memory.device is DeviceKind.CUDA and not before:
        for each in (2, 4, 8, 16):
            if each > found.choice.ranks and not undivided(found.shape, each):
                change = SpecChange("engine.tensorParallelSize", str(each), f"with {each} GPUs in resources")
                options.append((change, replace(found.choice, ranks=each)))
    for count in range(1, _MOST_CHANGES - len(before) + 1):
        for chosen in combinations(options, count):
            changes = [change for change, _ in chosen]
            if len({change.field for change in changes}) == count:
                choice = _merged(found.choice, [each for _, each in chosen])
                if (remedy := _tried(found, choice, *before, *changes)) is not None:
                    return remedy
    return None


def _merged(base: EngineChoice, changed: list[EngineChoice]) -> EngineChoice:
    """All that each has changed."""
    values = {}
    for each in changed:
        for name in ("kv_dtype", "quantization", "max_model_len", "max_num_seqs", "ranks"):
            if getattr(each, name) != getattr(base, name):
                values[name] = getattr(each, name)
    return replace(base, **values)
