"""LFM2 (arXiv 2511.23404): most layers are short convolutions of gated inputs, the others attend; dense, or with
experts behind the first layers."""

from typing import Any

from fairlead_common.models.families.experts import RoutedExpertsConfig, expert_counts, from_zero
from fairlead_common.models.families.hybrids import HybridConfig
from fairlead_common.models.families.recurrent import recurrent_layers, whole_contexts
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.model_config import QueryNorm, StateShape, parse_shape


def parse_lfm2(fields: JsonFields) -> HybridConfig:
    return HybridConfig(**_shape(fields, _inner_size(fields)))


def parse_lfm2_moe(fields: JsonFields) -> RoutedExpertsConfig:
    shape = _shape(fields, fields.positive_int("intermediate_size", 7168))
    return RoutedExpertsConfig(
        **shape,
        **expert_counts(fields, "num_experts", fields.positive_int("num_experts", 32), 4),
        expert_size=fields.positive_int("moe_intermediate_size", 1792),
        is_normalised=fields.boolean("norm_topk_prob", True),
        routed_scale=fields.positive_number("routed_scaling_factor", 1.0),
        has_score_bias=fields.boolean("use_expert_bias", True),
        dense_layers=frozenset(range(min(shape["num_layers"], from_zero(fields, "num_dense_layers", 2)))),
    )


def _shape(fields: JsonFields, inner_size: int) -> dict[str, Any]:
    """Fields of `ModelConfig`. Older files have other names for three of them."""
    fields = fields.with_changes(
        {
            "intermediate_size": inner_size,
            "rms_norm_eps": fields.positive_number("norm_eps", 1e-5),
            "tie_word_embeddings": fields.boolean("tie_embedding", fields.boolean("tie_word_embeddings", True)),
        }
    )
    shape = parse_shape(fields, num_kv_heads=8, rope_theta=1e6, windows=whole_contexts)
    convolving, hidden = _convolving(fields, shape["num_layers"]), shape["hidden_size"]
    has_bias = fields.boolean("conv_bias", False)
    state = StateShape(
        num_key_heads=1, num_heads=hidden, key_dim=0, value_dim=1, num_projections=0, norm_eps=shape["rms_norm_eps"],
        kernel_size=fields.positive_int("conv_L_cache", 3), fields=("hidden_size", "hidden_size"),
        has_bias=has_bias, input_bias=has_bias, output_bias=has_bias,
    )  # fmt: skip
    return {
        **shape,
        "query_norm": QueryNorm.HEADS,
        "recurrent": convolving,
        "state": state if convolving else None,
    }


def _convolving(fields: JsonFields, num_layers: int) -> frozenset[int]:
    """Layers that do not attend: by `layer_types`, or all but `full_attn_idxs`; none where the file has neither."""
    if fields.has("layer_types"):
        return recurrent_layers(fields, num_layers, recurs=("conv",))
    if not fields.has("full_attn_idxs"):
        return frozenset()
    attending = {*fields.whole_numbers("full_attn_idxs")}
    if not attending or max(attending) >= num_layers:
        raise fields.invalid("full_attn_idxs", f"must name some of the {num_layers} layers, from 0 on")
    return frozenset(range(num_layers)) - attending


def _inner_size(fields: JsonFields) -> int:
    """Width of feed-forwards: two thirds of the given one times a factor, rounded up, unless that is switched off."""
    given = fields.positive_int("block_ff_dim", fields.positive_int("intermediate_size", 12288))
    if not fields.boolean("block_auto_adjust_ff_dim", True):
        return given
    inner = int(2 * given / 3)
    if fields.names("block_ffn_dim_multiplier") and not fields.has("block_ffn_dim_multiplier"):
        return max(1, inner)
    inner = int(fields.positive_number("block_ffn_dim_multiplier", 1.0) * inner)
    multiple = fields.positive_int("block_multiple_of", 256)
    return max(1, -(-inner // multiple)) * multiple
