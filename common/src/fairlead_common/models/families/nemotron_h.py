"""Nemotron-H: layers of one kind each: Mamba-2's (arXiv 2405.21060), attention without positions, feed-forwards without
gates, or experts without gates."""

from dataclasses import dataclass

from fairlead_common.models.families.experts import RoutedExpertsConfig, check_groups, expert_counts
from fairlead_common.models.families.family import Family
from fairlead_common.models.families.recurrent import whole_contexts
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import refuse
from fairlead_common.models.model_config import StateShape, parse_shape
from fairlead_common.models.rope_config import UNTURNED
from fairlead_common.models.weight_formats import WeightPart, WeightRole, share, vector

_MAMBA, _ATTENTION, _DENSE, _EXPERTS = "linear_attention", "full_attention", "mlp", "moe"
_LETTERS = {"M": _MAMBA, "*": _ATTENTION, "-": _DENSE, "E": _EXPERTS}
_OLD_NAMES = {"mamba": _MAMBA, "attention": _ATTENTION}


@dataclass(frozen=True, slots=True, kw_only=True)
class NemotronHConfig(RoutedExpertsConfig):
    """`dense_layers` are all that have no experts; those with a feed-forward are `plain_layers`."""

    plain_layers: frozenset[int]
    """Layers with a single feed-forward."""
    latent_size: int | None
    """Width of what experts read and write; None = `hidden_size`."""

    @property
    def widest(self) -> int:
        experts = self.num_experts_per_token * self.expert_size + self.shared_expert_size
        return max(self.intermediate_size, experts)

    @property
    def inner_sizes(self) -> dict[str, int]:
        sizes = {"intermediate_size": self.intermediate_size} if self.plain_layers else {}
        if len(self.dense_layers) == self.num_layers:
            return sizes
        shared = {"moe_shared_expert_intermediate_size": self.shared_expert_size}
        return sizes | shared | {"moe_intermediate_size": self.expert_size}

    def feed_forward_parts(self, ranks: int) -> list[WeightPart]:
        plain = self._plain("mixer", len(self.plain_layers), share(self.intermediate_size, ranks))
        return [*plain, *self.expert_parts(ranks, self.num_layers - len(self.dense_layers))]

    def expert_parts(self, ranks: int, num: int) -> list[WeightPart]:
        if not num:
            return []
        hidden, latent, inner = self.hidden_size, self.latent_size, share(self.expert_size, ranks)
        each, width, role = num * self.num_experts, latent or hidden, WeightRole.EXPERT
        parts = [
            WeightPart("mixer.gate", num, self.num_experts, hidden, WeightRole.NARROW),
            vector("mixer.gate.e_score_correction_bias", num, self.num_experts),
            WeightPart("mixer.experts.up_proj", each, inner, width, role),
            WeightPart("mixer.experts.down_proj", each, width, inner, role),
            *self._plain("mixer.shared_experts", num, share(self.shared_expert_size, ranks)),
        ]
        if latent is None:
            return parts
        down = WeightPart("mixer.fc1_latent_proj", num, latent, hidden, bias=latent if self.mlp_bias else 0)
        up = WeightPart("mixer.fc2_latent_proj", num, hidden, latent, bias=hidden if self.mlp_bias else 0)
        return [*parts, down, up]

    def _plain(self, name: str, num: int, inner: int) -> list[WeightPart]:
        hidden, bias = self.hidden_size, self.mlp_bias
        return [
            WeightPart(f"{name}.up_proj", num, inner, hidden, bias=inner if bias else 0),
            WeightPart(f"{name}.down_proj", num, hidden, inner, bias=hidden if bias else 0),
        ] if num else []  # fmt: skip


def parse_nemotron_h(fields: JsonFields) -> NemotronHConfig:
    kinds = _kinds(fields)
    fields = fields.with_changes({"num_hidden_layers": len(kinds), "layer_types": None})
    _check_options(fields)
    shape = parse_shape(fields, num_kv_heads=8, head_dim=128, windows=whole_contexts, intermediate_size=21504)
    eps = fields.positive_number("layer_norm_epsilon", 1e-5)
    shape |= {"rms_norm_eps": eps, "rope": UNTURNED, "tie_word_embeddings": False}  # never tied, whatever files say
    layers = {kind: frozenset(index for index, each in enumerate(kinds) if each == kind) for kind in {*kinds}}
    recurrent, experts = layers.get(_MAMBA, frozenset()), layers.get(_EXPERTS, frozenset())
    config = NemotronHConfig(
        **shape,
        **expert_counts(fields, "n_routed_experts", fields.positive_int("n_routed_experts", 8), 2),
        mlp_bias=fields.boolean("mlp_bias", False),
        norms_per_layer=1,
        recurrent=recurrent,
        attending=layers.get(_ATTENTION, frozenset()),
        state=_state(fields, eps) if recurrent else None,
        plain_layers=layers.get(_DENSE, frozenset()),
        dense_layers=frozenset(range(len(kinds))) - experts,
        expert_size=fields.positive_int("moe_intermediate_size", 7688),
        shared_expert_size=fields.positive_int("moe_shared_expert_intermediate_size", 7688),
        latent_size=fields.positive_int("moe_latent_size") if fields.has("moe_latent_size") else None,
        is_normalised=fields.boolean("norm_topk_prob", True),
        routed_scale=fields.positive_number("routed_scaling_factor", 1.0),
        num_groups=fields.positive_int("n_group", 1),
        num_chosen_groups=fields.positive_int("topk_group", 1),
    )
    if experts:
        check_groups(fields, config)
    return config


def _kinds(fields: JsonFields) -> list[str]:
    """Of all layers; older files have a letter for each."""
    pattern = fields.text("hybrid_override_pattern")
    names = fields.texts("layers_block_type") or fields.texts("layer_types")
    kinds = [_OLD_NAMES.get(name, name) for name in names]
    if not kinds and pattern is not None:
        kinds = [_LETTERS.get(letter, letter) for letter in pattern]
    kinds = kinds or [_MAMBA, _EXPERTS, _ATTENTION, _DENSE]
    if unknown := sorted({*kinds} - {*_LETTERS.values()}):
        raise refuse(f"layers of kind {', '.join(unknown)}", f"supported are {', '.join(_LETTERS.values())}")
    if _ATTENTION not in kinds:
        name = "layers_block_type" if names else "hybrid_override_pattern"
        raise fields.invalid(name, f"must name {_ATTENTION} (*) at least once")
    return kinds


def _check_options(fields: JsonFields) -> None:
    for name, needed in (("mlp_hidden_act", "relu2"), ("mamba_hidden_act", "silu")):
        if not fields.is_exactly(name, needed) and fields.has(name):
            raise fields.unsupported(name, f"{needed} is supported")
    if fields.boolean("attention_bias", False):
        raise fields.unsupported("attention_bias", "use a model whose attention adds no bias")
    if fields.has("sliding_window"):
        raise fields.unsupported("sliding_window", "use a model whose layers all attend to the whole context")
    if not fields.is_unbounded("time_step_limit"):
        raise fields.unsupported("time_step_limit", "use a model whose steps are bounded by nothing")


def _state(fields: JsonFields, norm_eps: float) -> StateShape:
    num_heads = fields.positive_int("mamba_num_heads", 128)
    num_groups = fields.positive_int("mamba_n_groups", fields.positive_int("n_groups", 8))
    if num_heads % num_groups:
        raise fields.invalid("mamba_num_heads", f"must be a multiple of n_groups ({num_groups})")
    has_bias = fields.boolean("use_bias", False)
    return StateShape(
        num_key_heads=num_groups, num_heads=num_heads, key_dim=fields.positive_int("ssm_state_size", 128),
        value_dim=fields.positive_int("mamba_head_dim", 64), num_projections=0, norm_eps=norm_eps,
        fields=("n_groups", "mamba_num_heads"),
        kernel_size=fields.positive_int("mamba_d_conv", fields.positive_int("conv_kernel", 4)),
        has_bias=fields.boolean("mamba_conv_bias", fields.boolean("use_conv_bias", True)),
        input_bias=has_bias, output_bias=has_bias,
        least_step=fields.positive_number("mamba_dt_min", fields.positive_number("time_step_min", 0.001)),
    )  # fmt: skip


FAMILIES = (
    Family(
        "NemotronHForCausalLM",
        "nemotron_h",
        parse_nemotron_h,
        "Nemotron-H, Nemotron Nano 2 and Nemotron 3: layers that keep a [state], sparse experts; layers for "
        "multi-token prediction are left out",
    ),
)
