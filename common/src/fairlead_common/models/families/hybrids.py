"""Families with Mamba-2's layers (arXiv 2405.21060) beside attention: Bamba and Falcon-H1."""

from dataclasses import dataclass, replace

from fairlead_common.models.families.dense import attention_bias
from fairlead_common.models.families.family import Family
from fairlead_common.models.families.recurrent import mamba_state, whole_contexts
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.model_config import ModelConfig, StateNorm, parse_shape
from fairlead_common.models.weight_formats import WeightPart, gated_feed_forward, share


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridConfig(ModelConfig):
    """Every layer has a gated feed-forward."""

    def feed_forward_parts(self, ranks: int) -> list[WeightPart]:
        inner = share(self.intermediate_size, ranks)
        return gated_feed_forward("feed_forward", self.num_layers, self.hidden_size, inner, bias=self.mlp_bias)


def parse_bamba(fields: JsonFields) -> HybridConfig:
    """A half of each head is turned where `rope_parameters` say nothing else; a share beside them is not read."""
    fields = fields.with_changes({"partial_rotary_factor": None})
    shape = parse_shape(fields, num_kv_heads=8, rms_norm_eps=1e-5, windows=whole_contexts, turned_share=0.5)
    attending, num_layers = {*fields.whole_numbers("attn_layer_indices")}, shape["num_layers"]
    if not attending or max(attending) >= num_layers:
        raise fields.invalid("attn_layer_indices", f"must name some of the {num_layers} layers, from 0 on")
    wide = shape["hidden_size"] * fields.positive_int("mamba_expand", 2)
    return HybridConfig(
        **shape,
        **attention_bias(fields, False),
        mlp_bias=fields.boolean("mlp_bias", False),
        recurrent=frozenset(range(num_layers)) - attending,
        state=mamba_state(fields, wide, shape["rms_norm_eps"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FalconH1Config(HybridConfig):
    """All layers attend and keep a state, of the same input. Factors are of inputs, inner vectors and outputs."""

    attention_factors: tuple[float, float]
    """Of attention's input and output."""
    state_factors: tuple[float, float]
    """Of the recurrent part's input and output."""
    projection_factors: tuple[float, ...]
    """Of the recurrent part's projections: gates, values, keys, queries and steps."""
    gate_factor: float
    """Of the feed-forward's gate."""
    down_factor: float
    """Of the feed-forward's output."""


def parse_falcon_h1(fields: JsonFields) -> FalconH1Config:
    shape = parse_shape(fields, num_kv_heads=8, rms_norm_eps=1e-5, windows=whole_contexts)
    wide = shape["hidden_size"] * fields.positive_int("mamba_expand", 2)
    if fields.has("mamba_d_ssm") or not fields.names("mamba_d_ssm"):
        wide = fields.positive_int("mamba_d_ssm", 1024)
    norm = StateNorm.NOWHERE
    if fields.boolean("mamba_rms_norm", False):
        is_before = fields.boolean("mamba_norm_before_gate", True)
        norm = StateNorm.BEFORE_GATE if is_before else StateNorm.BEHIND_GATE
    state = mamba_state(fields, wide, shape["rms_norm_eps"])
    gate_factor, down_factor = _factors(fields, "mlp_multipliers", 2)
    everywhere = frozenset(range(shape["num_layers"]))
    return FalconH1Config(
        **shape,
        **attention_bias(fields, False),
        mlp_bias=fields.boolean("mlp_bias", False),
        recurrent=everywhere,
        attending=everywhere,
        state=replace(state, norm=norm, output_bias=fields.boolean("projectors_bias", False)),
        embedding_scale=fields.positive_number("embedding_multiplier", 1.0),
        logit_scale=fields.positive_number("lm_head_multiplier", 1.0),
        query_scale=fields.positive_number("key_multiplier", 1.0),
        attention_factors=_in_and_out(fields, "attention_in_multiplier", "attention_out_multiplier"),
        state_factors=_in_and_out(fields, "ssm_in_multiplier", "ssm_out_multiplier"),
        projection_factors=_factors(fields, "ssm_multipliers", 5),
        gate_factor=gate_factor,
        down_factor=down_factor,
    )


def _in_and_out(fields: JsonFields, first: str, second: str) -> tuple[float, float]:
    return fields.positive_number(first, 1.0), fields.positive_number(second, 1.0)


def _factors(fields: JsonFields, name: str, number: int) -> tuple[float, ...]:
    """A list of so many factors; absent, all are 1."""
    if not fields.has(name):
        return (1.0,) * number
    found = fields.positive_numbers(name)
    if len(found) != number:
        raise fields.invalid(name, f"must have {number} numbers")
    return found


FAMILIES = (
    Family(
        "BambaForCausalLM",
        "bamba",
        parse_bamba,
        "Bamba 9B: layers that keep a [state]",
    ),
    Family(
        "FalconH1ForCausalLM",
        "falcon_h1",
        parse_falcon_h1,
        "Falcon-H1 (0.5B to 34B): all layers attend and keep a [state] side by side",
    ),
)
