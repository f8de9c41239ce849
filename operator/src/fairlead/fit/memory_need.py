"""Memory of each rank for a model, by the engine's settings and defaults: weights, cache, work space.

Weights and cache are laid out as in the engine, to nearly a byte. Work space follows from the shapes of the largest
step, without kernels and libraries: verdicts that rest on it are called estimates.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fairlead.api.llmdeployment import LLMDeploymentSpec
from fairlead.api.quantities import parse_bytes
from fairlead_common.models.choices import (
    ADAPTER_EXPERT_RANK,
    ADAPTER_RANK,
    BLOCK_SIZE,
    LEAST_UTILIZATION,
    NUM_ADAPTERS,
    UTILIZATION,
    DeviceKind,
    Dtype,
    KvCacheDtype,
    SpeculativeMethod,
    step_limits,
)
from fairlead_common.models.model_config import ModelConfig
from fairlead_common.models.weight_formats import (
    FLOAT_BYTES,
    ROUNDED,
    WeightLayout,
    WeightPart,
    WeightRole,
    block_bytes,
)

_LIBRARIES = {DeviceKind.CPU: 450 * 2**20, DeviceKind.CUDA: 900 * 2**20}
"""An engine's process without a model: Python and torch; on a GPU the context and cuBLAS."""
_LOGIT_BYTES = 20
"""Per word while a token is drawn: the computed logit, in float32, and sorting."""
_CHOSEN_BYTES = 9
"""Per key that an indexer chooses for a token: its slot, and whether it is one."""
_ADAPTERS_GIVEN = frozenset({"lora-modules", "adapter-folder"})
_MOST_DIGITS = 9
"""Of an argument that counts something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """How an engine is told to run a model: fields of `spec.engine`, and what `extraArgs` say instead."""

    dtype: str = "auto"
    quantization: str | None = None
    head_quantization: str | None = None
    kv_dtype: str = "auto"
    kv_memory: int | None = None
    """Bytes; None = what is left."""
    host_kv_memory: int = 0
    """Bytes of the host's memory for prefixes that the cache has no room for."""
    block_size: int = BLOCK_SIZE
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    ranks: int = 1
    utilization: float = UTILIZATION
    num_adapters: int = 0
    """Adapters that have room on the device."""
    adapter_rank: int = ADAPTER_RANK
    """Of the largest."""
    expert_rank: int = ADAPTER_EXPERT_RANK
    """Of the largest of experts."""
    guesser: str | None = None
    """Source of the speculative model or heads in memory; None = none."""
    is_draft: bool = False
    """Whether the guesser is a model with a shape of its own, not heads."""
    guesses_itself: bool = False
    """Whether a layer of the model's own checkpoint guesses."""
    is_open: bool = False
    """Whether another image or a device argument may change everything."""

    @property
    def draft(self) -> str | None:
        """The source of a model that guesses."""
        return self.guesser if self.is_draft else None

    @classmethod
    def of(cls, spec: LLMDeploymentSpec) -> "EngineChoice":
        """Raises ValueError, naming the argument, for an invalid number in `extraArgs`."""
        engine = spec.engine
        extra, speculative = _extra(engine.extra_args), engine.speculative
        has_any = bool(spec.adapters) or not _ADAPTERS_GIVEN.isdisjoint(extra)
        num_adapters = NUM_ADAPTERS if engine.max_loras is None and has_any else engine.max_loras or 0
        adapter_rank = _number(extra, "max-lora-rank", engine.max_lora_rank) or ADAPTER_RANK
        expert_rank = _number(extra, "max-lora-expert-rank", engine.max_lora_expert_rank, least=0)
        memory, host_memory = _bytes(extra, "kv-cache-memory"), _bytes(extra, "host-kv-cache-memory")
        return cls(
            dtype=_one_of(extra, "dtype", Dtype) or str(engine.dtype),
            quantization=extra.get("quantization", engine.quantization and str(engine.quantization)),
            head_quantization=_one_of(extra, "head-quantization", ROUNDED),
            kv_dtype=_one_of(extra, "kv-cache-dtype", KvCacheDtype) or str(engine.kv_cache.dtype),
            kv_memory=engine.kv_cache.memory if memory is None else memory,
            host_kv_memory=host_memory or 0,
            block_size=_number(extra, "block-size", engine.kv_cache.block_size) or BLOCK_SIZE,
            max_model_len=_number(extra, "max-model-len", engine.max_model_len),
            max_num_seqs=_number(extra, "max-num-seqs", engine.max_num_seqs),
            max_num_batched_tokens=_number(extra, "max-num-batched-tokens", engine.max_num_batched_tokens),
            ranks=_number(extra, "tensor-parallel-size", engine.tensor_parallel_size) or 1,
            utilization=_share(extra),
            num_adapters=_number(extra, "max-loras", num_adapters, least=0) or 0,
            adapter_rank=adapter_rank,
            expert_rank=min(ADAPTER_EXPERT_RANK, adapter_rank) if expert_rank is None else expert_rank,
            guesser=None if speculative is None else speculative.source,
            is_draft=speculative is not None and speculative.method is SpeculativeMethod.DRAFT,
            guesses_itself=speculative is not None and speculative.method is SpeculativeMethod.MTP,
            is_open=engine.image is not None or "device" in extra,
        )

    def num_seqs(self, device: DeviceKind) -> int:
        """Sequences of one step."""
        return step_limits(device, self.max_num_seqs, self.max_num_batched_tokens)[0]

    def num_batched_tokens(self, device: DeviceKind) -> int:
        """Tokens of one step."""
        return step_limits(device, self.max_num_seqs, self.max_num_batched_tokens)[1]


def _extra(arguments: Sequence[str]) -> Mapping[str, str]:
    """Arguments written `--NAME VALUE` or `--NAME=VALUE`; the last of a name wins."""
    found: dict[str, str] = {}
    for index, argument in enumerate(arguments):
        name, mark, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--"):
            continue
        if not mark and index + 1 < len(arguments) and not arguments[index + 1].startswith("--"):
            value = arguments[index + 1]
        found[name] = value
    return found


def _number(extra: Mapping[str, str], name: str, otherwise: int | None, *, least: int = 1) -> int | None:
    if name not in extra:
        return otherwise
    digits = extra[name]
    if not digits.isdecimal() or len(digits) > _MOST_DIGITS or int(digits) < least:
        bound = "above 0" if least else "from 0"
        raise ValueError(f"engine.extraArgs: --{name} {digits[:20]} is not a whole number {bound}")
    return int(digits)


def _one_of(extra: Mapping[str, str], name: str, known: Iterable[str]) -> str | None:
    if (value := extra.get(name)) is not None and value not in set(known):
        raise ValueError(f"engine.extraArgs: --{name} {value[:20]} is none of {', '.join(known)}")
    return value


def _bytes(extra: Mapping[str, str], name: str) -> int | None:
    if (memory := extra.get(name)) is None:
        return None
    try:
        found = parse_bytes(memory)
    except ValueError as error:
        raise ValueError(f"engine.extraArgs: --{name}: {error}") from error
    if not 0 < found < 2**63:
        raise ValueError(f"engine.extraArgs: --{name} {memory[:20]} is no memory that a machine has")
    return found


def _share(extra: Mapping[str, str]) -> float:
    try:
        share = float(extra.get("gpu-memory-utilization", UTILIZATION))
    except ValueError as error:
        raise ValueError(f"engine.extraArgs: --gpu-memory-utilization: {error}") from error
    if not LEAST_UTILIZATION <= share <= 1.0:  # which no NaN is
        problem = f"must be from {LEAST_UTILIZATION} to 1, not {share}"
        raise ValueError(f"engine.extraArgs: --gpu-memory-utilization: {problem}")
    return share


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Bytes of one rank."""

    weights: int
    draft: int
    """Weights of the speculative model, or of the checkpoint's layer that guesses, which are not divided."""
    adapters: int
    """The device's adapter slots, empty or not."""
    kv_block: int
    """A block of the cache, with the keys and values of what guesses."""
    block_size: int
    """Tokens of it."""
    work_space: int
    """Of the largest step; on a GPU of its graphs as well."""
    libraries: int

    @property
    def kv_token(self) -> float:
        return self.kv_block / self.block_size

    def kv(self, tokens: int, sequences: int = 1) -> int:
        """Cache of so many sequences of so many tokens."""
        return sequences * -(-tokens // self.block_size) * self.kv_block

    def tokens_in(self, memory: int) -> int:
        """That a cache of so many bytes holds."""
        return max(0, memory) // self.kv_block * self.block_size

    @property
    def beside_cache(self) -> int:
        return self.loaded + self.work_space + self.libraries

    @property
    def loaded(self) -> int:
        """What is there before the first step."""
        return self.weights + self.draft + self.adapters


def computed_dtype(shape: ModelConfig, choice: EngineChoice, device: DeviceKind, *, least: bool = False) -> str:
    """The number format of weights and activations. CPUs compute half precision as bfloat16 if they support it, else as
    float32; which is unknown here. `least`: assume support."""
    asked = shape.dtype if choice.dtype == Dtype.AUTO else choice.dtype
    if device is DeviceKind.CUDA or asked == Dtype.FLOAT32:
        return asked
    if choice.dtype == Dtype.BFLOAT16 or least:
        return "bfloat16"
    return "float32"


def weights_format(shape: ModelConfig, choice: EngineChoice) -> WeightLayout | None:
    """Of linear layers; None = floats."""
    if shape.stored is not None:
        return shape.stored
    return ROUNDED.get(choice.quantization or "")


def reckon(
    shape: ModelConfig,
    choice: EngineChoice,
    device: DeviceKind,
    draft: ModelConfig | None = None,
    *,
    least: bool = False,
) -> Need:
    """Need of one rank; with a `draft` model that of the first rank, which holds it. `least`: as in
    `computed_dtype`."""
    each = FLOAT_BYTES[computed_dtype(shape, choice, device, least=least)]
    need = Need(
        weights=weight_bytes(shape, choice, device, each),
        draft=0,
        adapters=adapter_bytes(shape, choice, each),
        kv_block=kv_block_bytes(shape, choice, each),
        block_size=choice.block_size,
        work_space=_work_space(shape, choice, device, each),
        libraries=_LIBRARIES[device],
    )
    if choice.guesses_itself:
        own = _kept_bytes(shape, shape.guessing_parts(), choice, device, each)
        return replace(need, draft=own, kv_block=need.kv_block + _layers_block_bytes(shape, 1, choice, each))
    if draft is None:
        return need
    alone = replace(choice, ranks=1, quantization=None, head_quantization=None, num_adapters=0)
    its = reckon(draft, alone, device, least=least)
    return replace(
        need,
        draft=its.weights,
        kv_block=need.kv_block + its.kv_block,
        work_space=max(need.work_space, its.work_space),
    )


def weight_bytes(shape: ModelConfig, choice: EngineChoice, device: DeviceKind, each: int) -> int:
    """Of one rank's weights in memory; `each`: bytes of a float."""
    parts = shape.parts(choice.ranks)
    total = _kept_bytes(shape, parts, choice, device, each)
    head = next(
        (
            part
            for part in parts
            if part.role is (WeightRole.EMBEDDING if shape.tie_word_embeddings else WeightRole.HEAD)
        ),
        None,
    )
    return total + (0 if head is None else _of_head(head, shape.tie_word_embeddings, choice, device, each))


def _kept_bytes(
    shape: ModelConfig, parts: Iterable[WeightPart], choice: EngineChoice, device: DeviceKind, each: int
) -> int:
    """Of some of the model's parts in memory, a tied output projection aside."""
    kept, total = weights_format(shape, choice), 0
    for part in parts:
        is_quantised = kept is not None and kept.takes(part) and part.role is not WeightRole.RESTORED
        total += kept.kept_bytes(part, device, each) if is_quantised and kept is not None else part.weights * each
        total += part.biases * each
    return total


def _of_head(head: WeightPart, is_tied: bool, choice: EngineChoice, device: DeviceKind, each: int) -> int:
    """The output projection's bytes beside its floats. CPUs keep their own copy of a tied embedding."""
    if (rounded := ROUNDED.get(choice.head_quantization or "")) is not None:
        kept = rounded.kept_bytes(head, device, each)
        return kept if is_tied else kept - head.weights * each
    return head.weights * each if is_tied and device is DeviceKind.CPU else 0


def adapter_bytes(shape: ModelConfig, choice: EngineChoice, each: int) -> int:
    """Adapter slots: two narrow products beside each adaptable layer and expert, of the largest rank."""
    ranks = dict.fromkeys((WeightRole.LINEAR, WeightRole.RESTORED, WeightRole.NARROW), choice.adapter_rank)
    ranks[WeightRole.EXPERT] = choice.expert_rank
    numbers = sum(
        ranks.get(part.role, 0) * part.num * (part.projections * part.columns + part.rows)
        for part in shape.parts(choice.ranks)
    )
    return choice.num_adapters * numbers * each


def kv_block_bytes(shape: ModelConfig, choice: EngineChoice, each: int) -> int:
    """Of one block of one rank's cache, without the keys and values of what guesses."""
    return _layers_block_bytes(shape, shape.num_attention_layers, choice, each)


def _layers_block_bytes(shape: ModelConfig, num_layers: int, choice: EngineChoice, each: int) -> int:
    """Of one block of one rank's cache, for so many of the model's layers."""
    is_float = choice.kv_dtype == KvCacheDtype.AUTO
    return sum(
        block_bytes(
            num_alike, *kv, choice.block_size, each if is_float else 1, has_scales=not is_float,
            has_values=shape.shared_value_dim is None, num_indexed=len(shape.indexed), index_dim=shape.index_dim,
        )
        for kv, num_alike in Counter(shape.stored_kv(choice.ranks)[:num_layers]).items()
    )  # fmt: skip


def _work_space(shape: ModelConfig, choice: EngineChoice, device: DeviceKind, each: int) -> int:
    """The largest step: stream, heads and feed-forward of its tokens, logits of its sequences; a GPU's graphs take as
    much again. Beside it, a recurrent model's states of all sequences."""
    tokens, sequences = choice.num_batched_tokens(device), choice.num_seqs(device)
    own = shape.num_heads // choice.ranks
    heads = max((own + 2 * kv_heads) * head_dim for kv_heads, head_dim in shape.stored_kv(choice.ranks))
    of_token = (4 * shape.stream_size + 2 * heads + 3 * -(-shape.widest // choice.ranks)) * each
    of_token += _CHOSEN_BYTES * shape.num_chosen
    step = tokens * of_token + sequences * shape.vocab_size * _LOGIT_BYTES
    states = (sequences + 1) * shape.state_bytes(each, choice.ranks)
    return states + (2 * step if device is DeviceKind.CUDA else step)
