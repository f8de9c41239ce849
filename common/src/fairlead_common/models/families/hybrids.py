"""Families with Mamba-2's layers (arXiv 2405.21060) beside attention: Bamba."""

from dataclasses import dataclass

from fairlead_common.models.families.dense import attention_bias
from fairlead_common.models.families.recurrent import mamba_state, whole_contexts
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.model_config import ModelConfig, parse_shape
from fairlead_common.models.weight_formats import WeightPart, gated_feed_forward, share


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridConfig(ModelConfig):
    """Every layer has a gated feed-forward."""

    def feed_forward_parts(self, ranks: int) -> list[WeightPart]:
        inner = share(self.intermediate_size, ranks)
        return gated_feed_forward("feed_forward", self.num_layers, self.hidden_size, inner, bias=self.mlp_bias)


def parse_bamba(fields: JsonFields) -> HybridConfig:
    """A half of each head is turned where `rope_parameters` say nothing else."""
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
