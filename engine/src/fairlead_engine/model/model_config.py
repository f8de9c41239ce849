"""What `config.json` says of any model, checked and under one name per fact; families add what is theirs.

Everything that would make the model compute something else than it was trained to is refused here, before any weight is
read. Rotary scaling is read in both spellings: `rope_theta` with `rope_scaling`, and the newer `rope_parameters`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.model.classifier import Outcome
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.quantization.source import StoredWeights
from fairlead_engine.model.quantization.stored import parse_quantization
from fairlead_engine.model.rope import RopeConfig, RopeKind, yarn_scale
from fairlead_engine.model.vision.vision_config import VisionConfig
from fairlead_engine.model.windows import no_windows
from fairlead_engine.types import GENERATES, ModelTask


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """What whoever runs a decoder has to know of it. Sizes count elements; nothing here depends on how it is run."""

    architecture: str = ""
    """Name of the architecture, such as LlamaForCausalLM; filled in by who found the family by it."""
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Key and value heads; `num_heads / num_kv_heads` query heads share one."""
    head_dim: int
    """Elements per head, as queries and keys have them in the cache; not always `hidden_size / num_heads`."""
    shared_value_dim: int | None = None
    """Values are so many of a key's last elements; None = they are stored beside keys, and as long."""
    max_position_embeddings: int
    """Longest context, in tokens, that the model was made for."""
    dtype: str
    """Number format the checkpoint was saved in: float32, bfloat16 or float16."""
    eos_token_ids: tuple[int, ...]
    """Tokens that end an output; empty when neither checkpoint nor tokenizer names any."""
    quantization: StoredWeights | None = None
    """How the checkpoint's weights are quantised; None = they are floats."""
    task: ModelTask = GENERATES
    """What it was made for; filled in with `architecture`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(DecoderShape):
    """The shape of a model of ours, and all that its layers compute by."""

    intermediate_size: int
    """Width of the feed-forward layer, or of each expert."""
    windows: tuple[int, ...]
    """How many tokens, its own included, a token sees in each layer; 0 = all before it."""
    rms_norm_eps: float
    rope: RopeConfig
    local_rope: RopeConfig | None = None
    """Of layers that see a window; None = the same."""
    norm_offset: float = 0.0
    """What is added to the weights of normalisations, which some checkpoints store without it."""
    embedding_scale: float = 1.0
    """What embeddings are multiplied by, rounded to the numbers' format first."""
    query_scale: float = 1.0
    """What queries are multiplied by, beside what the size of a head says."""
    soft_cap: float = 0.0
    """Attention's scores are bent into ± this; 0 = they are not."""
    logit_soft_cap: float = 0.0
    """Logits are bent into ± this; 0 = they are not."""
    tie_word_embeddings: bool
    """Whether the output projection is the embedding table."""
    vision: VisionConfig | None = None
    """What sees images; None = nothing does."""
    outcome: Outcome = Outcome.PLAIN
    """What its classifier tells, if it has one; filled in with `architecture`."""

    def for_context(self, longest: int | None) -> "ModelConfig":
        """The same for an engine whose sequences have so many tokens at most; None = as many as it was made for."""
        longest = self.max_position_embeddings if longest is None else longest
        local = None if self.local_rope is None else self.local_rope.for_context(longest)
        return replace(self, rope=self.rope.for_context(longest), local_rope=local)

    @property
    def rotary_dim(self) -> int:
        """Elements of a head among which positions turn a share."""
        return self.head_dim

    @property
    def inner_sizes(self) -> dict[str, int]:
        """Widths of all feed-forward layers, by the field that says them."""
        return {"intermediate_size": self.intermediate_size}


def parse_shape(
    fields: JsonFields,
    *,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    rms_norm_eps: float = 1e-6,
    rope_theta: float = 10000.0,
    windows: Callable[[JsonFields], tuple[int, ...]] = no_windows,
    activation: str = "silu",
    tie_word_embeddings: bool = False,
    rope_names: Mapping[str, str] = {},
    turns_part: bool = False,
) -> dict[str, Any]:
    """The fields of `ModelConfig` as `config.json` spells them in every family.

    The arguments are the family's defaults: None = as many key and value heads as query heads, and a head size of
    hidden size over heads; `windows` reads what a token sees in each layer; `rope_names` and `turns_part` are
    `parse_rope`'s. Raises ModelLoadError: ModelConfigInvalid, or UnsupportedArchitecture for what no layer here
    computes.
    """
    hidden_size = fields.positive_int("hidden_size")
    num_heads = fields.positive_int("num_attention_heads")
    num_kv_heads = fields.positive_int("num_key_value_heads", num_kv_heads or num_heads)
    if num_heads % num_kv_heads:
        raise fields.invalid("num_key_value_heads", f"must divide num_attention_heads ({num_heads})")
    found = fields.text("hidden_activation") or fields.text("hidden_act") or activation
    if found != activation:
        raise refuse(f"hidden_act {found}", f"{activation} is supported")
    dtype = fields.text("dtype") or fields.text("torch_dtype") or "float32"
    if dtype not in ("float32", "bfloat16", "float16"):
        raise refuse(f"dtype {dtype}", "supported are float32, bfloat16 and float16")
    head_dim = _head_dim(fields, head_dim, hidden_size, num_heads)
    rope = parse_rope(fields, rope_theta, names=rope_names, turns_part=turns_part)
    _check_turned(fields, rope, head_dim)
    longest = fields.positive_int("max_position_embeddings")
    if rope.kind is RopeKind.YARN:  # some files say what the model was made for first, some what it is made for now
        longest = max(longest, int(rope.original_max_position_embeddings * rope.factor))
    return {
        "vocab_size": fields.positive_int("vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": fields.positive_int("intermediate_size"),
        "num_layers": fields.positive_int("num_hidden_layers"),
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "windows": windows(fields),
        "max_position_embeddings": longest,
        "rms_norm_eps": fields.positive_number("rms_norm_eps", rms_norm_eps),
        "rope": rope,
        "tie_word_embeddings": fields.boolean("tie_word_embeddings", tie_word_embeddings),
        "dtype": dtype,
        "eos_token_ids": fields.token_ids("eos_token_id"),
        "quantization": parse_quantization(fields),
    }


def refuse(what: str, remedy: str) -> ModelLoadError:
    """The error for an option that changes what the model computes and that no layer implements; raise it."""
    return ModelLoadError(
        ModelLoadReason.UNSUPPORTED_ARCHITECTURE, f"config.json asks for {what}, which this engine lacks; {remedy}"
    )


def _head_dim(fields: JsonFields, default: int | None, hidden_size: int, num_heads: int) -> int:
    if fields.has("head_dim") or default is not None:
        head_dim = fields.positive_int("head_dim", default)
    elif hidden_size % num_heads:
        raise fields.invalid(
            "num_attention_heads", f"must divide hidden_size ({hidden_size}) when head_dim is left out"
        )
    else:
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        raise fields.invalid("head_dim", "must be even: rotary positions turn pairs of elements")
    return head_dim


def _check_turned(fields: JsonFields, rope: RopeConfig, head_dim: int) -> None:
    num_turned = rope.num_turned(head_dim)
    if num_turned < 2 or num_turned % 2:
        raise fields.invalid("partial_rotary_factor", f"must leave an even part of head_dim ({head_dim})")
    if rope.kind is RopeKind.LONGROPE and {len(rope.short_factors), len(rope.long_factors)} != {num_turned // 2}:
        raise refuse(
            f"{len(rope.short_factors)} short and {len(rope.long_factors)} long factors of positions",
            f"longrope has one for each two of the {num_turned} elements of a head that are turned",
        )


def parse_rope(
    fields: JsonFields,
    default_theta: float,
    kind_of_layer: str | None = None,
    *,
    names: Mapping[str, str] = {},
    turns_part: bool = False,
) -> RopeConfig:
    """Newer checkpoints keep the base in `rope_parameters`, older ones beside `rope_scaling`. `kind_of_layer`: which of
    several they may have is wanted. `names`: what the family calls kinds otherwise; `turns_part`: whether its heads may
    be turned in part."""
    scaling = fields.section("rope_parameters") or fields.section("rope_scaling") or JsonFields.empty(fields.path)
    if kind_of_layer is not None:
        scaling = scaling.section(kind_of_layer) or scaling
    partial = scaling.positive_number("partial_rotary_factor", fields.positive_number("partial_rotary_factor", 1.0))
    if partial > 1.0 or (partial != 1.0 and not turns_part):
        raise refuse(f"partial_rotary_factor {partial:g}", "use a model whose heads are rotated whole")
    theta = scaling.positive_number("rope_theta", fields.positive_number("rope_theta", default_theta))
    name = scaling.text("rope_type") or scaling.text("type") or RopeKind.DEFAULT
    name = names.get(name, name)
    if name not in set(RopeKind):
        known = ", ".join(RopeKind)
        raise refuse(f"rotary scaling {name}", f"supported are {known}")
    kind = RopeKind(name)
    if kind in (RopeKind.DEFAULT, RopeKind.DYNAMIC):
        return RopeConfig(theta=theta, kind=kind, share=partial)
    if kind is RopeKind.LONGROPE:
        return _longrope(fields, scaling, theta, partial)
    if partial != 1.0:
        raise refuse(f"partial_rotary_factor {partial:g} with {name}", "use a model whose heads are rotated whole")
    if kind is RopeKind.LINEAR:
        return RopeConfig(theta=theta, kind=kind, factor=scaling.positive_number("factor"))
    if kind is RopeKind.YARN:
        return _yarn(fields, scaling, theta)
    low, high = scaling.positive_number("low_freq_factor"), scaling.positive_number("high_freq_factor")
    if low >= high:
        raise scaling.invalid("low_freq_factor", f"must be below high_freq_factor ({high})")
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=scaling.positive_number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=scaling.positive_int("original_max_position_embeddings"),
    )


def _longrope(fields: JsonFields, scaling: JsonFields, theta: float, share: float) -> RopeConfig:
    """Phi-3 has the context of pre-training beside `rope_scaling`."""
    longest = fields.positive_int("max_position_embeddings")
    original = fields.positive_int(
        "original_max_position_embeddings", scaling.positive_int("original_max_position_embeddings", longest)
    )
    factor = scaling.positive_number("factor", longest / original)
    stretch = 1.0 if factor <= 1.0 or original == 1 else math.sqrt(1.0 + math.log(factor) / math.log(original))
    return RopeConfig(
        theta=theta,
        kind=RopeKind.LONGROPE,
        share=share,
        factor=factor,
        original_max_position_embeddings=original,
        scale=scaling.positive_number("attention_factor", stretch),
        short_factors=scaling.positive_numbers("short_factor"),
        long_factors=scaling.positive_numbers("long_factor"),
    )


def _yarn(fields: JsonFields, scaling: JsonFields, theta: float) -> RopeConfig:
    longest = fields.positive_int("max_position_embeddings")
    original = scaling.positive_int("original_max_position_embeddings", longest)
    factor = scaling.positive_number("factor", longest / original)
    if scaling.has("attention_factor"):
        scale = scaling.positive_number("attention_factor")
    elif scaling.has("mscale") and scaling.has("mscale_all_dim"):
        scale = yarn_scale(factor, scaling.positive_number("mscale"))
        scale /= yarn_scale(factor, scaling.positive_number("mscale_all_dim"))
    else:
        scale = yarn_scale(factor)
    return RopeConfig(
        theta=theta,
        kind=RopeKind.YARN,
        factor=factor,
        original_max_position_embeddings=original,
        beta_fast=scaling.positive_number("beta_fast", 32.0),
        beta_slow=scaling.positive_number("beta_slow", 1.0),
        truncate=scaling.boolean("truncate", True),
        scale=scale,
        score_weight=scaling.positive_number("mscale_all_dim", 0.0) if scaling.has("mscale_all_dim") else 0.0,
    )
