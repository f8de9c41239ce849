"""LFM2 (arXiv 2511.23404) and LFM3: most layers are short convolutions of gated inputs, the others attend; LFM2 dense,
or with experts behind the first layers."""

from dataclasses import replace
from typing import Any

from fairlead_common.models.families.dense import attention_bias
from fairlead_common.models.families.experts import RoutedExpertsConfig, expert_counts, from_zero
from fairlead_common.models.families.family import Family
from fairlead_common.models.families.hybrids import HybridConfig
from fairlead_common.models.families.recurrent import recurrent_layers, whole_contexts
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import refuse
from fairlead_common.models.model_config import QueryNorm, StateShape, parse_shape
from fairlead_common.models.rope_config import parse_rope

_WHOLE, _LOCAL, _CONVOLVES = "full_attention", "sliding_attention", "conv"
"""Names of LFM3's layers."""
_LFM3_ROPE = {
    _LOCAL: {"rope_type": "default", "rope_theta": 10_000.0},
    _WHOLE: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
}


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
    return _with_convolutions(fields, shape, _convolving(fields, shape["num_layers"]), 3)


def _with_convolutions(
    fields: JsonFields, shape: dict[str, Any], convolving: frozenset[int], kernel_size: int
) -> dict[str, Any]:
    """`shape` with these layers; `kernel_size`: the default of the family."""
    has_bias = fields.boolean("conv_bias", False)
    state = StateShape(
        num_key_heads=1, num_heads=shape["hidden_size"], key_dim=0, value_dim=1, num_projections=0,
        norm_eps=shape["rms_norm_eps"], kernel_size=fields.positive_int("conv_L_cache", kernel_size),
        fields=("hidden_size", "hidden_size"), has_bias=has_bias, input_bias=has_bias, output_bias=has_bias,
    )  # fmt: skip
    return {
        **shape,
        "query_norm": QueryNorm.HEADS,
        "recurrent": convolving,
        "state": state if convolving else None,
    }


def parse_lfm3(fields: JsonFields) -> HybridConfig:
    """Layers that attend see a window by turns, with positions of their own, and gate each head's output."""
    eps = fields.positive_number("norm_eps", fields.positive_number("rms_norm_eps", 1e-5))
    changes: dict[str, Any] = {"rms_norm_eps": eps}
    if not fields.has("rope_parameters"):
        changes["rope_parameters"] = _LFM3_ROPE
    fields, kinds = fields.with_changes(changes), _lfm3_kinds(fields)
    window = fields.positive_int("sliding_window", 256) if _LOCAL in kinds else 0
    if _LOCAL in kinds and fields.names("sliding_window") and not fields.has("sliding_window"):
        raise fields.invalid("sliding_window", f"must be a positive integer where layer_types name {_LOCAL}")
    shape = parse_shape(
        fields, num_kv_heads=4, head_dim=128, intermediate_size=7680, tie_word_embeddings=True,
        windows=lambda _: tuple(window if kind == _LOCAL else 0 for kind in kinds),
    )  # fmt: skip
    convolving = frozenset(index for index, kind in enumerate(kinds) if kind == _CONVOLVES)
    config = HybridConfig(
        **_with_convolutions(fields, shape, convolving, 7),
        **attention_bias(fields, False),
        norms_per_layer=4 if fields.boolean("use_sandwich_norm", True) else 2,
        gates_heads=fields.boolean("use_attention_gate", True),
    )
    rope = parse_rope(fields, 1e6, _WHOLE, turned_share=1.0)
    return replace(config, rope=rope, local_rope=parse_rope(fields, 1e4, _LOCAL))


def _lfm3_kinds(fields: JsonFields) -> list[str]:
    """Of each layer: two attend among four, where the file says nothing else."""
    num_layers, kinds = fields.positive_int("num_hidden_layers"), fields.texts("layer_types")
    if not kinds:
        turns = {2: _WHOLE, 0: _LOCAL}
        kinds = [turns.get(index % 4, _CONVOLVES) if index else _CONVOLVES for index in range(num_layers)]
    if unknown := sorted({*kinds} - {_WHOLE, _LOCAL, _CONVOLVES}):
        raise refuse(f"layer_types {', '.join(unknown)}", f"supported are {_WHOLE}, {_LOCAL} and {_CONVOLVES}")
    if len(kinds) != num_layers:
        raise fields.invalid("layer_types", f"must name as many as num_hidden_layers ({num_layers})")
    if {*kinds} == {_CONVOLVES}:
        raise fields.invalid("layer_types", f"must name {_WHOLE} or {_LOCAL} at least once")
    return kinds


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


FAMILIES = (
    Family(
        "Lfm2ForCausalLM",
        "lfm2",
        parse_lfm2,
        "LFM2 (350M to 2.6B): layers that keep a [state], of a few KiB",
    ),
    Family(
        "Lfm2MoeForCausalLM",
        "lfm2_moe",
        parse_lfm2_moe,
        "LFM2 8B-A1B and 24B-A2B: the same with sparse experts",
        built_as="Lfm2ForCausalLM",
        gguf="lfm2moe",
    ),
    Family(
        "Lfm3ForCausalLM", "lfm3", parse_lfm3, "LFM3: the same layers beside attention with windows and gated heads"
    ),
)
