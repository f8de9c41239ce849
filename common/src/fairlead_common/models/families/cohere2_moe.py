"""Cohere 2 with experts: both parts of a layer see the same; the first layers may be without experts and windows."""

from dataclasses import dataclass
from typing import Any

from fairlead_common.models.families.dense import attention_bias, paired
from fairlead_common.models.families.experts import RoutedExpertsConfig, expert_counts, from_zero, named_dense
from fairlead_common.models.families.family import Family
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import refuse
from fairlead_common.models.model_config import check_kinds
from fairlead_common.models.rope_config import UNTURNED


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohere2ExpertsConfig(RoutedExpertsConfig):
    """`intermediate_size` belongs to layers without experts."""

    is_sigmoid: bool
    """Whether scores of experts are sigmoids."""
    is_averaged: bool
    """Whether outputs of chosen and of shared experts are averaged; else added."""

    @property
    def inner_sizes(self) -> dict[str, int]:
        sizes = {"prefix_dense_intermediate_size": self.intermediate_size} if self.num_dense else {}
        return sizes if self.num_dense == self.num_layers else sizes | {"intermediate_size": self.expert_size}


def parse_cohere2_moe(fields: JsonFields) -> Cohere2ExpertsConfig:
    if (scores := fields.text("expert_selection_fn") or "softmax") not in ("softmax", "sigmoid"):
        raise refuse(f"expert_selection_fn {scores}", "of a Cohere 2 softmax and sigmoid are supported")
    if (joined := fields.text("shared_expert_combination_strategy") or "average") not in ("average", "sum"):
        raise refuse(f"shared_expert_combination_strategy {joined}", "of a Cohere 2 average and sum are supported")
    if fields.names("sliding_window") and not fields.has("sliding_window"):
        raise refuse("sliding_window null", "of a Cohere 2 with experts layers with a window are supported")
    first, num_layers = from_zero(fields, "first_k_dense_replace", 0), fields.positive_int("num_hidden_layers")
    dense = named_dense(fields, frozenset(range(min(first, num_layers))))
    shape = paired(
        fields,
        head_dim=128,
        rms_norm_eps=fields.positive_number("layer_norm_eps", 1e-5),
        windows=lambda fields: _windows(fields, first),
        tie_word_embeddings=True,
    )
    experts = expert_counts(fields, "num_experts", fields.positive_int("num_experts", 8), 2)
    inner, num_shared = shape["intermediate_size"], from_zero(fields, "num_shared_experts", 0)
    return Cohere2ExpertsConfig(
        **{**shape, "intermediate_size": fields.positive_int("prefix_dense_intermediate_size", inner)},
        **experts,
        **attention_bias(fields, False),
        **_unturned(fields, shape["windows"], dense),
        are_norms_centred=not fields.has("rms_norm_eps"),
        norms_per_layer=1,
        logit_scale=fields.positive_number("logit_scale", 0.0625),
        expert_size=inner,
        dense_layers=dense,
        has_score_bias=False,
        is_sigmoid=scores == "sigmoid",
        is_normalised=scores == "softmax" or fields.boolean("norm_topk_prob", True),
        num_shared_experts=num_shared,
        is_averaged=joined == "average",
    )


def _windows(fields: JsonFields, first: int) -> tuple[int, ...]:
    """The last of every few layers sees all, counted from the first, and anew behind the `first` ones."""
    num_layers, kinds = fields.positive_int("num_hidden_layers"), fields.texts("layer_types")
    window, every = fields.positive_int("sliding_window", 4096), fields.positive_int("sliding_window_pattern", 4)
    if kinds:
        check_kinds(fields, kinds, num_layers)
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    prefix = fields.positive_int("prefix_dense_sliding_window_pattern", 1)
    places = [(index + 1) % prefix if index < first else (index - first + 1) % every for index in range(num_layers)]
    return tuple(window if place else 0 for place in places)


def _unturned(fields: JsonFields, windows: tuple[int, ...], dense: frozenset[int]) -> dict[str, Any]:
    """Layers that see all have no positions, except those without experts in a pattern of 1."""
    turned = dense if fields.positive_int("prefix_dense_sliding_window_pattern", 1) == 1 else frozenset()
    unturned = frozenset(index for index, window in enumerate(windows) if not window) - turned
    return {"unturned": unturned, "local_rope": UNTURNED} if unturned else {}


FAMILIES = (
    Family("Cohere2MoeForCausalLM", "cohere2_moe", parse_cohere2_moe, "Cohere 2 with sparse experts, unquantised"),
)
