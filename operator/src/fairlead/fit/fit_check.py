"""Whether a model fits: its shape by `config.json`, and the verdict, in numbers and in a sentence.

Arithmetic proves two things: weights larger than the memory, and a model that the ranks cannot divide. All else is
called an estimate.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from fairlead.fit.memory_need import EngineChoice, Need, computed_dtype, reckon, weights_format
from fairlead_common.models.choices import (
    CPU_CACHE_BYTES,
    CPU_CACHE_SHARE,
    LEAST_LOWERED,
    LOWERED_MULTIPLE,
    DeviceKind,
)
from fairlead_common.models.families.registry import ARCHITECTURES, CLASSIFIER, ENCODERS, find_family
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import ModelLoadError, ModelLoadReason
from fairlead_common.models.model_config import ModelConfig
from fairlead_common.models.text_part import decoder_fields
from fairlead_common.models.weight_formats import ROUNDED
from fairlead_common.wire.model_sources import SourceError, parse_source


def read_shape(config: object) -> ModelConfig:
    """The model of a parsed `config.json`. Raises ModelLoadError, naming the field, for models that the engine would
    refuse, and for unknown architectures."""
    if not isinstance(config, Mapping):
        raise ModelLoadError(ModelLoadReason.MODEL_CONFIG_INVALID, "config.json must hold a JSON object")
    fields = decoder_fields(JsonFields(Path("config.json"), dict(config)))
    name = find_family(fields)
    if name not in ARCHITECTURES:
        raise ModelLoadError(
            ModelLoadReason.UNSUPPORTED_ARCHITECTURE, f"config.json: architectures: {_unknown(fields)}"
        )
    return replace(ARCHITECTURES[name].parse(fields), architecture=name)


def _unknown(fields: JsonFields) -> str:
    named = fields.texts("architectures")
    told = ", ".join(named) or fields.text("model_type") or "nothing"
    if any(CLASSIFIER in each or each in ENCODERS for each in named):
        return f"names {told}, which is an encoder or a classifier: those are not reckoned, only what generates is"
    known = ", ".join(ARCHITECTURES)
    return (
        f"names {told}, which is none of the families that the engine computes itself ({known}); it may run through "
        "transformers' code, and what that takes is not reckoned"
    )


def unreckoned(source: str) -> str:
    """Why the need of a model is not known, whatever a `config.json` says; empty = it may be. `source`: any text."""
    try:
        is_gguf = parse_source(source).names_gguf
    except SourceError:
        return ""
    return f"{source} is a GGUF file, whose tensors have formats of their own: it is not reckoned" if is_gguf else ""


def undivided(shape: ModelConfig, ranks: int) -> str:
    """Why so many ranks cannot divide the model; empty = they can."""
    heads = shape.num_heads
    if heads % ranks:
        return f"which does not divide the model's {heads} attention heads (num_attention_heads)"
    for kv_heads, _ in shape.stored_kv():
        if kv_heads % ranks and ranks % kv_heads:
            named = f"{kv_heads} heads of keys and values (num_key_value_heads)"
            return f"which neither divides the model's {named} nor is a multiple of them"
    for name, size in shape.undivided_sizes(ranks).items():
        return f"which does not divide the model's {name}, {size}"
    return ""


class Verdict(StrEnum):
    """The verdict on a model and a replica's memory: a `Reason` of the condition Fits."""

    FITS = "Fits"
    """It starts, and holds as many sequences of the longest context as were asked for."""
    FEWER_SEQUENCES = "FewerSequences"
    """The engine starts, and holds fewer of them at once: others wait, or begin anew."""
    TOO_LARGE = "TooLarge"
    """By all that can be reckoned it does not start."""
    WEIGHTS_TOO_LARGE = "WeightsTooLarge"
    """Its weights alone are larger than the memory: certain on a GPU."""
    NOT_DIVISIBLE = "NotDivisible"
    """`engine.tensorParallelSize` does not divide it: certain."""
    NOT_SUPPORTED = "NotSupported"
    """The engine refuses the model with these settings."""
    MEMORY_UNKNOWN = "MemoryUnknown"
    """What a replica gets is not known."""

    @property
    def starts(self) -> bool:
        return self in (Verdict.FITS, Verdict.FEWER_SEQUENCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a replica gets."""

    device: DeviceKind
    per_rank: int | None
    """Bytes of each GPU, or of the container over its ranks; None = not known."""
    name: str = ""
    """Source of the figure, such as `resources.profile nvidia-l4`."""
    unknown: str = ""
    """Where it is not known: what to write, and where."""
    is_certain: bool = True
    """Whether the figure is final; a template may raise it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The verdict and what it rests on. Bytes are one rank's."""

    verdict: Verdict
    message: str
    shape: ModelConfig
    choice: EngineChoice
    memory: Memory
    need: Need
    max_model_len: int
    """Requested, or the model's own."""
    sequences: int
    """That are to be held at once; where nobody says how many, one."""
    draft: ModelConfig | None = None
    """Shape of the speculative model, if known."""
    usable: int | None = None
    """Bytes for weights, cache and work space; None = not known."""
    cache: int | None = None
    """What is left for the cache."""
    held_tokens: int | None = None
    """That the cache holds."""

    @property
    def held_sequences(self) -> int | None:
        """Sequences of the longest context that the cache holds at once."""
        if self.cache is None:
            return None
        return max(0, self.cache) // max(1, self.need.kv(self.max_model_len))

    @property
    def wanted_kv(self) -> int:
        """Bytes of the cache that is asked for."""
        return self.need.kv(self.max_model_len, self.sequences)

    @property
    def is_certain_no(self) -> bool:
        """Whether pods could only fail. A CPU's weights lie partly in mapped files, so their size proves nothing;
        arguments for another model or device, and another engine's image, may change anything."""
        if self.choice.is_open:
            return False
        is_too_large = self.verdict is Verdict.WEIGHTS_TOO_LARGE and self.memory.device is DeviceKind.CUDA
        return self.verdict is Verdict.NOT_DIVISIBLE or (is_too_large and self.memory.is_certain)


def check(shape: ModelConfig, choice: EngineChoice, memory: Memory, draft: ModelConfig | None = None) -> Fit:
    """`draft`: the shape of `choice.guesser`, if known. Never raises: an engine's refusal is a verdict."""
    device = memory.device
    need = reckon(shape, choice, device, draft)
    longest = choice.max_model_len or shape.max_position_embeddings
    found = Fit(
        verdict=Verdict.FITS, message="", shape=shape, choice=choice, memory=memory, need=need,
        max_model_len=longest, sequences=choice.max_num_seqs or 1, draft=draft,
    )  # fmt: skip
    if refusal := _refusal(shape, choice):
        return _said(found, *refusal)
    if memory.per_rank is None:
        return _said(found, Verdict.MEMORY_UNKNOWN, f"{_needs(found)}; {memory.unknown}")
    least = reckon(shape, choice, device, least=True).weights
    if least > memory.per_rank:
        each = "" if choice.ranks == 1 else f" on each of {choice.ranks} ranks"
        message = f"the weights alone take {size(least)}{each}, and {memory.name} has {size(memory.per_rank)}"
        return _said(found, Verdict.WEIGHTS_TOO_LARGE, message)
    return _judged(found, memory.per_rank)


def size(num_bytes: float) -> str:
    """As a person writes it: 1.5 GiB, 64.2 MiB, 300 B."""
    for exponent, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(num_bytes) >= 1024**exponent:
            return f"{num_bytes / 1024**exponent:.1f} {unit}"
    return f"{num_bytes:.0f} B"


def _refusal(shape: ModelConfig, choice: EngineChoice) -> tuple[Verdict, str] | None:
    if why := undivided(shape, choice.ranks):
        return Verdict.NOT_DIVISIBLE, f"engine.tensorParallelSize is {choice.ranks}, {why}"
    if choice.guesses_itself and not shape.num_guessing_layers:
        message = "engine.speculative.method is mtp, and the model brings no layer for it that is read here"
        return Verdict.NOT_SUPPORTED, f"{message} (num_nextn_predict_layers): choose another method, or leave it out"
    if choice.quantization is not None and choice.quantization not in ROUNDED:
        return Verdict.NOT_SUPPORTED, f"engine.quantization {choice.quantization} is none of {', '.join(ROUNDED)}"
    stored = shape.stored
    is_named = stored is not None and stored.has_name and choice.quantization == stored.name
    if stored is not None and choice.quantization is not None and not is_named:
        message = f"engine.quantization is {choice.quantization}, and the checkpoint's weights are {stored.name} " + (
            "already" if stored.has_name else "or others already, by config.json"
        )
        return Verdict.NOT_SUPPORTED, f"{message}: leave it out, or take the unquantised checkpoint"
    kept = weights_format(shape, choice)
    if kept is not None and kept.group is not None and (name := _divides_group(shape, choice, kept.group)):
        message = f"engine.tensorParallelSize is {choice.ranks}, and of {name} it divides columns that have one scale"
        return Verdict.NOT_SUPPORTED, f"{message} ({kept.group})"
    if (choice.max_model_len or 0) > shape.max_position_embeddings:
        made_for = shape.max_position_embeddings
        message = f"engine.maxModelLen is {choice.max_model_len}, and the model was made for {made_for} tokens"
        return Verdict.NOT_SUPPORTED, message
    return None


def _divides_group(shape: ModelConfig, choice: EngineChoice, group: int) -> str:
    """The layer whose groups of columns the ranks would divide; empty = none."""
    kept = weights_format(shape, choice)
    if choice.ranks == 1 or kept is None:
        return ""
    whole = {part.name: part.columns for part in shape.parts()}
    for part in shape.parts(choice.ranks):
        if kept.takes(part) and part.columns != whole[part.name] and part.columns % group:
            return part.name
    return ""


def _judged(found: Fit, memory: int) -> Fit:
    choice, need, device = found.choice, found.need, found.memory.device
    usable = memory - choice.host_kv_memory if device is DeviceKind.CPU else memory
    if device is DeviceKind.CUDA and choice.kv_memory is None:
        usable = int(memory * choice.utilization)
    left = usable - need.beside_cache
    cache = min(left, choice.kv_memory) if choice.kv_memory is not None else left
    if device is DeviceKind.CPU and choice.kv_memory is None:
        free = memory - need.loaded - need.libraries
        cache = min(left, CPU_CACHE_BYTES // choice.ranks, int(CPU_CACHE_SHARE * free))
    longest = found.max_model_len
    held = need.tokens_in(cache)
    if choice.max_model_len is None and held < longest and held >= min(LEAST_LOWERED, longest):
        longest = held // LOWERED_MULTIPLE * LOWERED_MULTIPLE  # as the engine lowers a context that nobody asked for
    judged = replace(found, max_model_len=longest, usable=usable, cache=cache, held_tokens=held)
    if cache < need.kv(longest) or held < min(longest, 2):
        return _said(judged, Verdict.TOO_LARGE, _short(judged, usable))
    if choice.kv_memory is not None and choice.kv_memory > left:
        message = (
            f"engine.kvCache.memory is {size(choice.kv_memory)}, and beside {_beside(judged)} {size(left)} are left"
        )
        return _said(judged, Verdict.TOO_LARGE, message)
    sequences = judged.held_sequences or 0
    if sequences < found.sequences:
        message = (
            f"starts, and holds {sequences} sequences of {longest} tokens at once, not the {found.sequences} of "
            f"engine.maxNumSeqs: {size(judged.wanted_kv)} of cache are wanted, and {size(cache)} are left; shorter "
            "sequences are held in greater numbers, others wait or begin anew"
        )
        return _said(judged, Verdict.FEWER_SEQUENCES, message)
    return _said(
        judged,
        Verdict.FITS,
        f"{_needs(judged)}; {found.memory.name} has {size(memory)}, which holds "
        f"{judged.held_sequences} such sequences at once",
    )


def _short(found: Fit, usable: int) -> str:
    length, one = found.max_model_len, found.need.kv(found.max_model_len)
    has = f"of {found.memory.name} {size(usable)} may be used"
    what = f"the cache of one sequence of {length} tokens takes {size(one)}"
    if found.choice.max_model_len is None:
        what = f"the cache of {min(length, LEAST_LOWERED)} tokens, the fewest that the engine starts with, takes "
        what += size(found.need.kv(min(length, LEAST_LOWERED)))
    left = max(0, found.cache or 0)
    return f"{what}, and beside {_beside(found)} {size(left)} are left for it: {has}"


def _beside(found: Fit) -> str:
    need = found.need
    weights = ", ".join([f"weights ({size(need.weights)})", *(f"{what} ({size(each)})" for what, each in extras(need))])
    return f"{weights} and work space (about {size(need.work_space + need.libraries)})"


def extras(need: Need) -> list[tuple[str, int]]:
    """What is loaded beside a model's weights."""
    loaded = [("what guesses tokens", need.draft), ("places for adapters", need.adapters)]
    return [(what, each) for what, each in loaded if each]


def _needs(found: Fit) -> str:
    number = f"{found.sequences} sequences" if found.sequences > 1 else "one sequence"
    each = "" if found.choice.ranks == 1 else f"on each of {found.choice.ranks} GPUs "
    beside = "".join(f"{what} {size(number)}, " for what, number in extras(found.need))
    return (
        f"{each}weights take {size(found.need.weights)}, {beside}the cache of {number} of {found.max_model_len} tokens "
        f"{size(found.wanted_kv)}, work space about {size(found.need.work_space + found.need.libraries)}"
    )


def _said(found: Fit, verdict: Verdict, message: str) -> Fit:
    return replace(found, verdict=verdict, message=message)


def assumed(found: Fit) -> tuple[str, ...]:
    """What the numbers take for granted, in sentences."""
    said = []
    device, shape, choice = found.memory.device, found.shape, found.choice
    if device is DeviceKind.CPU and computed_dtype(shape, choice, device, least=True) != computed_dtype(
        shape, choice, device
    ):
        said.append(
            "reckoned in float32, which CPUs without AMX or AVX512-BF16 compute half precision in; with "
            "engine.dtype bfloat16, or on others, weights and cache take half"
        )
    if found.choice.max_num_seqs is None:
        said.append("engine.maxNumSeqs is not set, so the cache is held to one sequence of the longest context")
    if choice.guesser is not None and found.draft is None:
        why = "whose config.json is not at hand, " if choice.is_draft else ""
        said.append(f"engine.speculative.source, {why}takes memory that is not reckoned")
    return tuple(said)
