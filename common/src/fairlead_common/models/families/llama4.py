"""Llama 4: layers of chunked attention with positions between layers of whole attention without, and experts with
sigmoid scores, which are factors of their inputs, beside one for all tokens."""

from dataclasses import dataclass
from typing import Any

from fairlead_common.models.families.dense import attention_bias, paired, unturned_layers
from fairlead_common.models.families.experts import RoutedExpertsConfig, expert_counts
from fairlead_common.models.families.family import Family
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import refuse
from fairlead_common.models.model_config import QueryGrowth, QueryNorm, check_kinds
from fairlead_common.models.rope_config import RopeKind

_CHUNKED, _CHUNK = "chunked_attention", 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama4Config(RoutedExpertsConfig):
    """`intermediate_size` belongs to layers without experts, as in all families; the file calls it otherwise."""

    @property
    def inner_sizes(self) -> dict[str, int]:
        sizes = {"intermediate_size_mlp": self.intermediate_size} if self.num_dense else {}
        return sizes if self.num_dense == self.num_layers else sizes | {"intermediate_size": self.expert_size}


def parse_llama4(fields: JsonFields) -> Llama4Config:
    unturned = unturned_layers(fields)
    shape = paired(
        fields, num_kv_heads=8, head_dim=128, rms_norm_eps=1e-5, rope_theta=500_000.0,
        windows=lambda fields: _windows(fields, unturned.get("unturned", frozenset())),
    )  # fmt: skip
    if (kind := shape["rope"].kind) not in (RopeKind.DEFAULT, RopeKind.LINEAR, RopeKind.LLAMA3):
        raise refuse(f"rotary scaling {kind}", "of a Llama 4 default, linear and llama3 are supported")
    num_experts, expert_size = fields.positive_int("num_local_experts", 16), shape["intermediate_size"]
    return Llama4Config(
        **{**shape, "intermediate_size": fields.positive_int("intermediate_size_mlp", 16_384)},
        **unturned,
        **attention_bias(fields, False),
        **expert_counts(fields, "num_local_experts", num_experts, 1),
        are_windows_aligned=True,
        query_norm=QueryNorm.LENGTHS if fields.boolean("use_qk_norm", True) else QueryNorm.NONE,
        query_growth=_growth(fields, unturned),
        expert_size=expert_size,
        has_score_bias=False,
        num_shared_experts=1,
        dense_layers=_dense_layers(fields),
    )


def _windows(fields: JsonFields, unturned: frozenset[int]) -> tuple[int, ...]:
    num_layers, kinds = fields.positive_int("num_hidden_layers"), fields.texts("layer_types")
    is_whole = fields.names("attention_chunk_size") and not fields.has("attention_chunk_size")
    chunk = 0 if is_whole else fields.positive_int("attention_chunk_size", _CHUNK)
    if not kinds:
        return tuple(0 if index in unturned else chunk for index in range(num_layers))
    check_kinds(fields, kinds, num_layers, _CHUNKED)
    return tuple(chunk if kind == _CHUNKED else 0 for kind in kinds)


def _growth(fields: JsonFields, unturned: dict[str, Any]) -> QueryGrowth | None:
    if not unturned or fields.is_exactly("attn_temperature_tuning", False):  # older files have a number
        return None
    return QueryGrowth(fields.positive_int("floor_scale", 8192), fields.positive_number("attn_scale", 0.1), 1)


def _dense_layers(fields: JsonFields) -> frozenset[int]:
    num_layers, every = fields.positive_int("num_hidden_layers"), fields.positive_int("interleave_moe_layer_step", 1)
    routed: Any = range(every - 1, num_layers, every)
    if fields.has("moe_layers"):
        routed = fields.whole_numbers("moe_layers")
    return frozenset(range(num_layers)) - {*routed}


FAMILIES = (
    Family(
        "Llama4ForCausalLM",
        "llama4_text",
        parse_llama4,
        "Llama 4 Scout and Maverick, unquantised or in GGUF: sparse experts, attention in chunks",
    ),
)
