"""Families whose layers keep a state of each sequence, except every few, which attend: Qwen3-Next and Qwen3.5, by the
gated delta rule (arXiv 2412.06464), and Granite 4, by Mamba-2 (arXiv 2405.21060)."""

from dataclasses import dataclass, replace
from typing import Any

from fairlead_common.models.families.dense import QWEN3_HEAD_DIM, attention_bias, with_factors
from fairlead_common.models.families.experts import ExpertsConfig, QwenExpertsConfig, from_zero, qwen_experts
from fairlead_common.models.families.family import Family
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import refuse
from fairlead_common.models.model_config import ModelConfig, QueryNorm, StateShape, parse_shape
from fairlead_common.models.rope_config import UNTURNED
from fairlead_common.models.weight_formats import WeightPart, WeightRole, gated_feed_forward, pieces, share

_ATTENDS = ("full_attention", "attention")
"""Names in `layer_types`, by newer and older files."""


def parse_qwen3_next(fields: JsonFields) -> QwenExpertsConfig:
    shape = qwen_experts(
        fields,
        _shape(fields, num_kv_heads=2, num_projections=1, num_guessing_layers=1),
        expert_size=512,
        num_experts=512,
        chosen=10,
        sums=True,
    )
    return QwenExpertsConfig(**shape, shared_expert_size=fields.positive_int("shared_expert_intermediate_size", 512))


def parse_qwen3_5(fields: JsonFields) -> ModelConfig:
    return ModelConfig(**_shape(fields, num_kv_heads=4))


def parse_qwen3_5_moe(fields: JsonFields) -> QwenExpertsConfig:
    shape = qwen_experts(
        fields,
        _shape(fields, num_kv_heads=2, intermediate_size=512),
        expert_size=512,
        num_experts=256,
        chosen=8,
        sums=True,
    )
    return QwenExpertsConfig(**shape, shared_expert_size=fields.positive_int("shared_expert_intermediate_size", 512))


def _shape(
    fields: JsonFields,
    num_kv_heads: int,
    num_projections: int = 2,
    intermediate_size: int | None = None,
    num_guessing_layers: int = 0,
) -> dict[str, Any]:
    """Fields of all of these families. Qwen3-Next's checkpoints have a layer that guesses and say nothing of it."""
    guessing = from_zero(fields, "num_nextn_predict_layers", num_guessing_layers)
    shape = parse_shape(
        fields, num_kv_heads=num_kv_heads, head_dim=2 * QWEN3_HEAD_DIM, windows=whole_contexts, turned_share=0.25,
        intermediate_size=intermediate_size,
    )  # fmt: skip
    state = StateShape(
        num_key_heads=fields.positive_int("linear_num_key_heads", 16),
        num_heads=fields.positive_int("linear_num_value_heads", 32),
        key_dim=fields.positive_int("linear_key_head_dim", 128),
        value_dim=fields.positive_int("linear_value_head_dim", 128),
        kernel_size=fields.positive_int("linear_conv_kernel_dim", 4),
        num_projections=num_projections,
        norm_eps=shape["rms_norm_eps"],
        fields=("linear_num_key_heads", "linear_num_value_heads"),
    )
    if state.num_heads % state.num_key_heads:
        raise fields.invalid(
            "linear_num_value_heads", f"must be a multiple of linear_num_key_heads ({state.num_key_heads})"
        )
    return {
        **shape,
        **attention_bias(fields, False),
        "query_norm": QueryNorm.HEADS,
        "norm_offset": 1.0,
        "gates_attention": True,
        "recurrent": recurrent_layers(fields, shape["num_layers"]),
        "state": state,
        "num_guessing_layers": from_zero(fields, "mtp_num_hidden_layers", guessing),
    }


def whole_contexts(fields: JsonFields) -> tuple[int, ...]:
    return (0,) * fields.positive_int("num_hidden_layers")


def recurrent_layers(
    fields: JsonFields, num_layers: int, recurs: tuple[str, ...] = ("linear_attention", "mamba")
) -> frozenset[int]:
    """Those that `layer_types` names, or all but every `full_attention_interval`-th. `recurs`: their names there."""
    kinds = fields.texts("layer_types")
    if not kinds:
        every = fields.positive_int("full_attention_interval", 4)
        if every > num_layers:
            raise fields.invalid("full_attention_interval", f"must be at most num_hidden_layers ({num_layers})")
        return frozenset(index for index in range(num_layers) if (index + 1) % every)
    if unknown := sorted({*kinds} - {*_ATTENDS, *recurs}):
        raise refuse(f"layer_types {', '.join(unknown)}", f"supported are {_ATTENDS[0]} and {recurs[0]}")
    if len(kinds) != num_layers:
        raise fields.invalid("layer_types", f"must name as many as num_hidden_layers ({num_layers})")
    if {*kinds}.isdisjoint(_ATTENDS):
        raise fields.invalid("layer_types", f"must name {_ATTENDS[0]} at least once")
    return frozenset(index for index, kind in enumerate(kinds) if kind in recurs)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraniteHybridConfig(ExpertsConfig):
    """Every layer has a feed-forward for all tokens, and perhaps experts beside it (`num_experts` 0 = none)."""

    @property
    def inner_sizes(self) -> dict[str, int]:
        return {"intermediate_size": self.expert_size, "shared_intermediate_size": self.shared_expert_size}

    def feed_forward_parts(self, ranks: int) -> list[WeightPart]:
        num, hidden = self.num_layers, self.hidden_size
        shared = share(self.shared_expert_size, ranks)
        parts = [
            WeightPart("shared_mlp.input_linear", num, 2 * shared, hidden, projections=pieces(2, ranks)),
            WeightPart("shared_mlp.output_linear", num, hidden, shared),
        ]
        if not self.num_experts:
            return parts
        inner, role = share(self.expert_size, ranks), WeightRole.EXPERT
        parts.append(WeightPart("block_sparse_moe.router", num, self.num_experts, hidden, WeightRole.NARROW))
        return parts + gated_feed_forward("block_sparse_moe", num * self.num_experts, hidden, inner, role=role)


def mamba_state(fields: JsonFields, wide: int, norm_eps: float) -> StateShape:
    """Of Mamba-2's layers by fields that begin with `mamba_`. `wide`: elements of all values of a token."""
    if not fields.is_unbounded("time_step_limit"):
        raise fields.unsupported("time_step_limit", "use a model whose steps are bounded by nothing")
    num_heads = fields.positive_int("mamba_n_heads", 128)
    is_given = fields.has("mamba_d_head") and not fields.is_exactly("mamba_d_head", "auto")
    if wide % num_heads or (is_given and fields.positive_int("mamba_d_head") * num_heads != wide):
        raise fields.invalid("mamba_d_head", f"must be {wide}, the width of all heads, over mamba_n_heads")
    num_groups = fields.positive_int("mamba_n_groups", 1)
    if num_heads % num_groups:
        raise fields.invalid("mamba_n_heads", f"must be a multiple of mamba_n_groups ({num_groups})")
    has_bias = fields.boolean("mamba_proj_bias", False)
    return StateShape(
        num_key_heads=num_groups, num_heads=num_heads, key_dim=fields.positive_int("mamba_d_state", 256),
        value_dim=wide // num_heads, kernel_size=fields.positive_int("mamba_d_conv", 4), num_projections=0,
        norm_eps=norm_eps, fields=("mamba_n_groups", "mamba_n_heads"),
        has_bias=fields.boolean("mamba_conv_bias", True), input_bias=has_bias, output_bias=has_bias,
    )  # fmt: skip


def parse_granite_hybrid(fields: JsonFields) -> GraniteHybridConfig:
    shape = parse_shape(fields, windows=whole_contexts)
    wide = shape["hidden_size"] * fields.positive_int("mamba_expand", 2)
    config = GraniteHybridConfig(
        **shape, **attention_bias(fields, False), recurrent=recurrent_layers(fields, shape["num_layers"]),
        state=mamba_state(fields, wide, shape["rms_norm_eps"]),
        num_experts=from_zero(fields, "num_local_experts", 8),
        num_experts_per_token=from_zero(fields, "num_experts_per_tok", 2), expert_size=shape["intermediate_size"],
        shared_expert_size=fields.positive_int("shared_intermediate_size", 1024),
    )  # fmt: skip
    turned = fields.text("position_embedding_type") == "rope"
    return with_factors(fields, config if turned else replace(config, rope=UNTURNED))


FAMILIES = (
    Family(
        "GraniteMoeHybridForCausalLM",
        "granitemoehybrid",
        parse_granite_hybrid,
        "Granite 4, dense and with sparse experts: layers that keep a [state]",
    ),
    Family(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        parse_qwen3_next,
        "Qwen3-Next: sparse experts, and layers that keep a [state]",
    ),
    Family(
        "Qwen3_5ForCausalLM",
        "qwen3_5_text",
        parse_qwen3_5,
        "Qwen3.5 (text), dense: layers that keep a [state]",
        built_as="Qwen3NextForCausalLM",
    ),
    Family(
        "Qwen3_5MoeForCausalLM",
        "qwen3_5_moe_text",
        parse_qwen3_5_moe,
        "Qwen3.5 (text) with sparse experts, and the same layers",
        built_as="Qwen3NextForCausalLM",
    ),
)
