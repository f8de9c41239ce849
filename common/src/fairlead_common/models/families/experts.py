"""Families with several experts in a layer, a few per token: Mixtral, gpt-oss, Qwen2-MoE, Qwen3-MoE,
GLM-4.5, MiniMax-M2, ERNIE 4.5, Granite, OLMoE, dots.llm1, K-EXAONE, Solar Open."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fairlead_common.models.families.dense import (
    QWEN3_HEAD_DIM,
    attention_bias,
    paired,
    sliding_rope,
    whole_unturned,
    windows_or_none,
    with_factors,
)
from fairlead_common.models.families.family import Family
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import refuse
from fairlead_common.models.model_config import (
    ModelConfig,
    QueryNorm,
    check_kinds,
    parse_shape,
    windows_alternating,
    windows_everywhere,
)
from fairlead_common.models.rope_config import RopeConfig, RopeKind, parse_rope
from fairlead_common.models.weight_formats import WeightPart, WeightRole, gated_feed_forward, share, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig(ModelConfig):
    """`intermediate_size` belongs to layers without experts."""

    num_experts: int
    num_experts_per_token: int
    expert_size: int
    """Width of each expert."""
    dense_layers: frozenset[int] = frozenset()
    """Layers with a single feed-forward instead of experts."""
    is_normalised: bool = True
    """Whether the weights of a token's experts sum to 1."""
    shared_expert_size: int = 0
    """Width of the expert that all tokens take; 0 = there is none."""
    has_expert_bias: bool = False
    """Whether experts and routers add a bias."""

    @property
    def num_dense(self) -> int:
        """Layers without experts."""
        return sum(index in self.dense_layers for index in range(self.num_layers))

    @property
    def widest(self) -> int:
        return self.num_experts_per_token * self.expert_size + self.shared_expert_size

    def feed_forward_parts(self, ranks: int) -> list[WeightPart]:
        inner = share(self.intermediate_size, ranks)
        dense = gated_feed_forward("mlp", self.num_dense, self.hidden_size, inner)
        return [*self.expert_parts(ranks, self.num_layers - self.num_dense), *dense]

    def _attending(self, num: int) -> ModelConfig:
        return replace(self, num_layers=num, recurrent=frozenset(), state=None, dense_layers=frozenset())

    def expert_parts(self, ranks: int, num: int) -> list[WeightPart]:
        """The part of `num` layers with experts on a rank."""
        if not num:
            return []
        hidden, bias = self.hidden_size, self.num_experts if self.has_expert_bias else 0
        parts = [WeightPart("mlp.gate", num, self.num_experts, hidden, WeightRole.NARROW, bias)]
        parts += gated_feed_forward(
            "mlp.experts", num * self.num_experts, hidden, share(self.expert_size, ranks), bias=self.has_expert_bias,
            role=WeightRole.EXPERT,
        )  # fmt: skip
        if self.shared_expert_size:
            shared = share(self.shared_expert_size, ranks)
            parts += gated_feed_forward("mlp.shared_expert", num, hidden, shared)
            parts.append(WeightPart("mlp.shared_expert_gate", num, 1, hidden, WeightRole.NARROW))
        return parts


_MOST_EXPERTS = 65_536
"""Of a layer: a hundred times those of published models, and few enough for a number of each."""


def expert_counts(fields: JsonFields, name: str, num: int, chosen: int | None) -> dict[str, Any]:
    """Number of experts, and of experts per token; `chosen`: the default of the family, None = the file must say."""
    if num > _MOST_EXPERTS:
        raise fields.invalid(name, f"must be at most {_MOST_EXPERTS}")
    per_token = fields.positive_int("num_experts_per_tok", chosen)
    if per_token > num:
        raise fields.invalid("num_experts_per_tok", f"must be at most {name} ({num})")
    return {"num_experts": num, "num_experts_per_token": per_token}


def parse_mixtral(fields: JsonFields) -> ExpertsConfig:
    shape = parse_shape(fields, num_kv_heads=8, rms_norm_eps=1e-5, rope_theta=1e6, windows=windows_everywhere)
    experts = expert_counts(fields, "num_local_experts", fields.positive_int("num_local_experts", 8), 2)
    return ExpertsConfig(**shape, **experts, expert_size=shape["intermediate_size"])


@dataclass(frozen=True, slots=True, kw_only=True)
class PhimoeConfig(ExpertsConfig):
    jitter: float
    """Half the distance from the best score, as a share, within which an expert counts beside the best."""


def parse_phimoe(fields: JsonFields) -> PhimoeConfig:
    """Mixtral with two experts of a token that are weighted apart, and biases; scales of stretched positions are
    given for contexts up to the length of pre-training, and for longer ones."""
    shape = parse_shape(fields, num_kv_heads=8, rms_norm_eps=1e-5, rope_theta=1e6, windows=windows_everywhere)
    experts = expert_counts(fields, "num_local_experts", fields.positive_int("num_local_experts", 16), 2)
    if experts["num_experts_per_token"] != 2:
        raise fields.unsupported("num_experts_per_tok", "of a Phi with experts two for each token are supported")
    rope, scaling = shape["rope"], fields.section("rope_parameters") or fields.section("rope_scaling")
    if rope.kind not in (RopeKind.DEFAULT, RopeKind.LONGROPE):
        raise refuse(f"rotary scaling {rope.kind}", "of a Phi with experts longrope is supported")
    if rope.kind is RopeKind.LONGROPE and scaling is not None:
        long, short = (scaling.positive_number(f"{name}_mscale") for name in ("long", "short"))
        shape["rope"] = replace(rope, scale=long, short_scale=short)
    return PhimoeConfig(
        **shape,
        **experts,
        **attention_bias(fields, False),
        expert_size=shape["intermediate_size"],
        are_norms_centred=True,
        have_norms_bias=True,
        head_bias=fields.boolean("lm_head_bias", False),
        jitter=fields.positive_number("router_jitter_noise", 0.01),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GptOssConfig(ExpertsConfig):
    gate_alpha: float
    """Factor of a gate within the sigmoid."""
    gate_limit: float
    """The largest gate, and the largest magnitude behind a gate."""

    def expert_parts(self, ranks: int, num: int) -> list[WeightPart]:
        """Gate and up of an expert are one projection, whose rows lie by turns."""
        return [replace(part, projections=1) for part in ExpertsConfig.expert_parts(self, ranks, num)]


def parse_gpt_oss(fields: JsonFields) -> GptOssConfig:
    windows = partial(windows_alternating, default=128, every=2)
    shape = parse_shape(
        fields, num_kv_heads=8, head_dim=64, rms_norm_eps=1e-5, rope_theta=150_000.0, windows=windows
    )  # fmt: skip
    num_experts = fields.positive_int("num_local_experts", fields.positive_int("num_experts", 128))
    return GptOssConfig(
        **shape,
        **expert_counts(fields, "num_local_experts", num_experts, 4),
        **attention_bias(fields, True),
        expert_size=shape["intermediate_size"],
        has_expert_bias=True,
        has_sinks=True,
        gate_alpha=fields.positive_number("swiglu_alpha", 1.702),
        gate_limit=fields.positive_number("swiglu_limit", 7.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenExpertsConfig(ExpertsConfig):
    """What Qwen's models with experts have in common."""

    @property
    def inner_sizes(self) -> dict[str, int]:
        sizes = {"intermediate_size": self.intermediate_size, "moe_intermediate_size": self.expert_size}
        shared = {"shared_expert_intermediate_size": self.shared_expert_size} if self.shared_expert_size else {}
        return sizes | shared


def parse_qwen2_moe(fields: JsonFields) -> QwenExpertsConfig:
    return QwenExpertsConfig(
        **qwen_experts(fields, parse_shape(fields), expert_size=1408, num_experts=60, chosen=4),
        shared_expert_size=fields.positive_int("shared_expert_intermediate_size", 5632),
        qkv_bias=fields.boolean("qkv_bias", True),
    )


def parse_qwen3_moe(fields: JsonFields) -> QwenExpertsConfig:
    shape = parse_shape(fields, num_kv_heads=4, head_dim=QWEN3_HEAD_DIM)
    return QwenExpertsConfig(
        **qwen_experts(fields, shape, expert_size=768, num_experts=128, chosen=8),
        **attention_bias(fields, False),
        query_norm=QueryNorm.HEADS,
    )


def parse_mellum(fields: JsonFields) -> QwenExpertsConfig:
    """Windows, positions and experts by layer; bases of positions are in sections alone."""
    fields = fields.with_changes({"rope_theta": None})
    windows = partial(windows_alternating, default=1024, every=1)
    shape = parse_shape(fields, num_kv_heads=4, head_dim=QWEN3_HEAD_DIM, windows=windows)
    experts = qwen_experts(fields, shape, expert_size=896, num_experts=64, chosen=8, sums=True)
    experts["dense_layers"] = named_dense(fields, frozenset())
    rope = parse_rope(fields, 500_000.0, "full_attention")
    local = sliding_rope(fields, 10_000.0) or RopeConfig(theta=10_000.0)
    return QwenExpertsConfig(
        **{**experts, "rope": rope}, **attention_bias(fields, False), local_rope=local, query_norm=QueryNorm.HEADS
    )


def qwen_experts(
    fields: JsonFields, shape: dict[str, Any], *, expert_size: int, num_experts: int, chosen: int, sums: bool = False
) -> dict[str, Any]:
    """`shape` with the fields of experts; missing fields are the family's defaults, of which `sums` is that the weights
    of a token's experts sum to 1. Newer versions of transformers have
    another name for `num_experts`."""
    num_experts = fields.positive_int("num_experts", fields.positive_int("num_local_experts", num_experts))
    num_layers, each = shape["num_layers"], fields.positive_int("decoder_sparse_step", 1)
    experts = expert_counts(fields, "num_experts", num_experts, chosen)
    dense = {*fields.whole_numbers("mlp_only_layers")} | {index for index in range(num_layers) if (index + 1) % each}
    return {
        **shape,
        **experts,
        "expert_size": fields.positive_int("moe_intermediate_size", expert_size),
        "is_normalised": fields.boolean("norm_topk_prob", sums),
        "dense_layers": frozenset(dense),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedExpertsConfig(ExpertsConfig):
    """Experts chosen within groups, beside experts that all tokens take; behind layers without."""

    num_groups: int = 1
    """Groups of experts."""
    num_chosen_groups: int = 1
    """Groups from which the experts of a token are chosen."""
    routed_scale: float = 1.0
    """Factor of the weights of experts."""
    has_score_bias: bool = True
    """Whether scores are sigmoids, to which a bias is added for choosing; else they are a softmax."""
    is_softmax: bool = False
    """Whether scores are a softmax, with a bias or with groups that are chosen by their best two experts."""
    num_shared_experts: int = 0
    """Experts that all tokens take, stored as one."""

    @property
    def inner_sizes(self) -> dict[str, int]:
        sizes = {}
        if self.dense_layers:
            sizes["intermediate_size"] = self.intermediate_size
        if len(self.dense_layers) < self.num_layers:
            sizes["moe_intermediate_size"] = self.expert_size
        return sizes

    @property
    def widest(self) -> int:
        experts = (self.num_experts_per_token + self.num_shared_experts) * self.expert_size
        return max(self.intermediate_size, experts)

    def expert_parts(self, ranks: int, num: int) -> list[WeightPart]:
        parts = ExpertsConfig.expert_parts(self, ranks, num)
        if num and self.has_score_bias:
            parts.append(vector("mlp.gate.e_score_correction_bias", num, self.num_experts))
        if num and self.num_shared_experts:
            inner = share(self.num_shared_experts * self.expert_size, ranks)
            parts += gated_feed_forward("mlp.shared_experts", num, self.hidden_size, inner)
        return parts

    def unserved_parts(self) -> list[WeightPart]:
        if not (num := self.num_guessing_layers):
            return []
        copies = WeightPart("embed_tokens", 2 * num, self.vocab_size, self.hidden_size, WeightRole.EMBEDDING)
        return [*self._guessing_layers(num), copies]


def parse_glm4_moe(fields: JsonFields) -> RoutedExpertsConfig:
    """GLM-4.5 and 4.6: half of each head is turned."""
    shape = parse_shape(fields, rms_norm_eps=1e-5, turned_share=0.5)
    num_experts = fields.positive_int("n_routed_experts", 128)
    if (groups := fields.positive_int("n_group", 1)) != 1:
        raise refuse(f"n_group {groups}", "of a GLM experts in one group are supported")
    return RoutedExpertsConfig(
        **shape,
        **expert_counts(fields, "n_routed_experts", num_experts, 8),
        qkv_bias=fields.boolean("attention_bias", False),
        query_norm=QueryNorm.HEADS if fields.boolean("use_qk_norm", False) else QueryNorm.NONE,
        expert_size=fields.positive_int("moe_intermediate_size", 1408),
        is_normalised=fields.boolean("norm_topk_prob", True),
        routed_scale=fields.positive_number("routed_scaling_factor", 1.0),
        num_shared_experts=from_zero(fields, "n_shared_experts", 1),
        dense_layers=first_dense(fields, 1),
        num_guessing_layers=from_zero(fields, "num_nextn_predict_layers", 0),
    )


def parse_dots1(fields: JsonFields) -> RoutedExpertsConfig:
    """dots.llm1: experts chosen as DeepSeek-V3 does, behind Qwen3's attention; a few last layers may have a window."""
    if (scoring := fields.text("scoring_func") or "noaux_tc") not in ("noaux_tc", "sigmoid"):
        raise refuse(f"scoring_func {scoring}", "of a dots.llm1 noaux_tc is supported")
    shape = parse_shape(fields, windows=_dots1_windows)
    config = RoutedExpertsConfig(
        **shape,
        **expert_counts(fields, "n_routed_experts", fields.positive_int("n_routed_experts"), None),
        **attention_bias(fields, False),
        query_norm=QueryNorm.HEADS,
        expert_size=fields.positive_int("moe_intermediate_size", 1408),
        is_normalised=fields.boolean("norm_topk_prob", False),
        routed_scale=fields.positive_number("routed_scaling_factor", 1.0),
        num_groups=fields.positive_int("n_group", 1),
        num_chosen_groups=fields.positive_int("topk_group", 1),
        num_shared_experts=from_zero(fields, "n_shared_experts", 0),
        dense_layers=first_dense(fields, 0),
    )
    check_groups(fields, config)
    return config


def parse_exaone_moe(fields: JsonFields) -> RoutedExpertsConfig:
    """K-EXAONE: EXAONE 4's heads and windows before experts chosen as DeepSeek-V3 does."""
    shape = parse_shape(fields, rms_norm_eps=1e-5, windows=windows_or_none(fields))
    config = RoutedExpertsConfig(
        **shape,
        **whole_unturned(fields, shape),
        **expert_counts(fields, "num_experts", fields.positive_int("num_experts", 64), 8),
        query_norm=QueryNorm.HEADS,
        expert_size=fields.positive_int("moe_intermediate_size", 1024),
        is_normalised=fields.boolean("norm_topk_prob", True),
        routed_scale=fields.positive_number("routed_scaling_factor", 2.5),
        num_groups=fields.positive_int("n_group", 1),
        num_chosen_groups=fields.positive_int("topk_group", 1),
        num_shared_experts=from_zero(fields, "num_shared_experts", 1),
        dense_layers=named_dense(fields, first_dense(fields, 1)),
    )
    check_groups(fields, config)
    return config


def parse_solar_open(fields: JsonFields) -> RoutedExpertsConfig:
    """Llama's attention, whose output adds no bias, before experts chosen as DeepSeek-V3 does in all layers."""
    expert_size = fields.positive_int("moe_intermediate_size", 1280)
    config = RoutedExpertsConfig(
        **parse_shape(
            fields, num_kv_heads=8, head_dim=128, intermediate_size=expert_size, rms_norm_eps=1e-5, rope_theta=1e6
        ),
        **expert_counts(fields, "n_routed_experts", fields.positive_int("n_routed_experts", 128), 8),
        qkv_bias=fields.boolean("attention_bias", False),
        expert_size=expert_size,
        is_normalised=fields.boolean("norm_topk_prob", True),
        routed_scale=fields.positive_number("routed_scaling_factor", 1.0),
        num_groups=fields.positive_int("n_group", 1),
        num_chosen_groups=fields.positive_int("topk_group", 1),
        num_shared_experts=from_zero(fields, "n_shared_experts", 1),
    )
    check_groups(fields, config)
    return config


def _dots1_windows(fields: JsonFields) -> tuple[int, ...]:
    """`sliding_window`, which may be null, in layers that `layer_types` names, or from `max_window_layers` on."""
    windows, kinds = windows_everywhere(fields, 4096), fields.texts("layer_types")
    if not kinds:
        first = from_zero(fields, "max_window_layers", 62)
        return tuple(window if index >= first else 0 for index, window in enumerate(windows))
    check_kinds(fields, kinds, len(windows))
    if "sliding_attention" in kinds and not any(windows):
        raise fields.invalid("sliding_window", "must be a positive integer where layer_types name sliding_attention")
    return tuple(window if kind == "sliding_attention" else 0 for kind, window in zip(kinds, windows, strict=True))


def check_groups(fields: JsonFields, config: RoutedExpertsConfig) -> None:
    """Raises ModelLoadError unless each group has the two experts by which groups are chosen, and enough are chosen."""
    num, groups = config.num_experts, config.num_groups
    if num % groups or num // groups < 2:
        raise fields.invalid("n_group", f"must divide n_routed_experts ({num}) into groups of two or more")
    if config.num_chosen_groups > groups:
        raise fields.invalid("topk_group", f"must be at most n_group ({groups})")
    available = num // groups * config.num_chosen_groups
    if config.num_experts_per_token > available:
        raise fields.invalid("num_experts_per_tok", f"must be at most {available}, the experts of topk_group groups")


def parse_ernie4_5_moe(fields: JsonFields) -> RoutedExpertsConfig:
    """Experts in every few layers from one on, chosen by a softmax and a bias."""
    if fields.boolean("use_bias", False):
        raise refuse("use_bias", "of an ERNIE with experts projections without a bias are supported")
    shape = paired(fields, num_kv_heads=4, rms_norm_eps=1e-5, rope_theta=500_000.0, tie_word_embeddings=True)
    last = shape["num_layers"] - 1
    if fields.has("moe_layer_end_index") and not fields.is_exactly("moe_layer_end_index", -1):
        last = min(last, fields.whole_number("moe_layer_end_index"))
    first, every = from_zero(fields, "moe_layer_start_index", 1), fields.positive_int("moe_layer_interval", 1)
    num_experts = fields.positive_int("moe_num_experts", fields.positive_int("num_experts", 64))
    per_token = fields.positive_int("moe_k", fields.positive_int("num_experts_per_tok", 6))
    if per_token > num_experts:
        raise fields.invalid("moe_k", f"must be at most moe_num_experts ({num_experts})")
    routed = {index for index in range(first, last + 1) if not (index + 1) % every}
    return RoutedExpertsConfig(
        **shape,
        num_experts=num_experts,
        num_experts_per_token=per_token,
        expert_size=fields.positive_int("moe_intermediate_size", 1536),
        is_softmax=True,
        num_shared_experts=from_zero(fields, "moe_num_shared_experts", 2),
        dense_layers=frozenset(range(shape["num_layers"])) - routed,
    )


def parse_granite_moe(fields: JsonFields) -> ExpertsConfig:
    """Granite with experts in all layers."""
    shape = parse_shape(fields)
    experts = expert_counts(fields, "num_local_experts", fields.positive_int("num_local_experts", 8), 2)
    config = ExpertsConfig(**shape, **experts, **attention_bias(fields, False), expert_size=shape["intermediate_size"])
    return with_factors(fields, config)


def parse_olmoe(fields: JsonFields) -> ExpertsConfig:
    """OLMo 2's attention, and experts in all layers."""
    if fields.has("clip_qkv"):
        raise refuse("clip_qkv", "of an OLMoE projections that are not clipped are supported")
    shape = parse_shape(fields, rms_norm_eps=1e-5)
    num_experts = fields.positive_int("num_experts", fields.positive_int("num_local_experts", 64))
    return ExpertsConfig(
        **shape,
        **expert_counts(fields, "num_experts", num_experts, 8),
        **attention_bias(fields, False),
        query_norm=QueryNorm.PROJECTIONS,
        expert_size=shape["intermediate_size"],
        is_normalised=fields.boolean("norm_topk_prob", False),
    )


def parse_minimax_m2(fields: JsonFields) -> RoutedExpertsConfig:
    """All layers have experts; the first `rotary_dim` elements of a head are turned."""
    head_dim = fields.positive_int("head_dim", 128)
    turned = fields.positive_int("rotary_dim", head_dim)
    shape = parse_shape(fields, num_kv_heads=8, head_dim=head_dim, rope_theta=5e6, turned_share=turned / head_dim)
    experts = expert_counts(fields, "num_local_experts", fields.positive_int("num_local_experts", 256), 8)
    return RoutedExpertsConfig(
        **shape, **experts, query_norm=QueryNorm.PROJECTIONS, expert_size=shape["intermediate_size"]
    )


def from_zero(fields: JsonFields, name: str, default: int) -> int:
    """A whole number, where null stands for 0."""
    if not fields.names(name):
        return default
    return fields.whole_number(name)


def first_dense(fields: JsonFields, default: int) -> frozenset[int]:
    """Layers without experts by `first_k_dense_replace`: the first `default` where the file has none."""
    first, num_layers = from_zero(fields, "first_k_dense_replace", default), fields.positive_int("num_hidden_layers")
    return frozenset(range(min(first, num_layers)))


def named_dense(fields: JsonFields, default: frozenset[int]) -> frozenset[int]:
    """Layers without experts by `mlp_layer_types`; `default` where the file has none."""
    num_layers, kinds = fields.positive_int("num_hidden_layers"), fields.texts("mlp_layer_types")
    if unknown := sorted({*kinds} - {"dense", "sparse"}):
        raise refuse(f"mlp_layer_types {', '.join(unknown)}", "dense and sparse are supported")
    if kinds and len(kinds) != num_layers:
        raise fields.invalid("mlp_layer_types", f"must name as many as num_hidden_layers ({num_layers})")
    return frozenset(index for index, kind in enumerate(kinds) if kind == "dense") if kinds else default


FAMILIES = (
    Family("Dots1ForCausalLM", "dots1", parse_dots1, "dots.llm1: sparse experts"),
    Family(
        "Ernie4_5_MoeForCausalLM",
        "ernie4_5_moe",
        parse_ernie4_5_moe,
        "ERNIE 4.5 21B-A3B and 300B-A47B, unquantised or in GGUF: sparse experts; layers for multi-token "
        "prediction are left out",
    ),
    Family(
        "ExaoneMoeForCausalLM",
        "exaone_moe",
        parse_exaone_moe,
        "K-EXAONE: the same with sparse experts; the layer for multi-token prediction is left out",
    ),
    Family(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        parse_glm4_moe,
        "GLM-4.5, 4.6, 4.7 and their Air models: sparse experts; [multi-token prediction][mtp]",
    ),
    Family(
        "GptOssForCausalLM",
        "gpt_oss",
        parse_gpt_oss,
        "gpt-oss-20b and 120b, as they are stored (MXFP4) or in floats: sparse experts",
    ),
    Family("GraniteMoeForCausalLM", "granitemoe", parse_granite_moe, "Granite 3 1B-A400M and 3B-A800M: sparse experts"),
    Family(
        "MellumForCausalLM",
        "mellum",
        parse_mellum,
        "Mellum 2 12B-A2.5B: sparse experts; the layer for multi-token prediction is left out",
        built_as="Qwen2MoeForCausalLM",
    ),
    Family("MiniMaxM2ForCausalLM", "minimax_m2", parse_minimax_m2, "MiniMax-M2: sparse experts"),
    Family("MixtralForCausalLM", "mixtral", parse_mixtral, "Mixtral 8x7B and 8x22B: sparse experts"),
    Family("OlmoeForCausalLM", "olmoe", parse_olmoe, "OLMoE: sparse experts", built_as="Qwen2MoeForCausalLM"),
    Family(
        "PhimoeForCausalLM",
        "phimoe",
        parse_phimoe,
        "Phi-3.5-MoE: sparse experts, weighted apart",
        built_as="MixtralForCausalLM",
    ),
    Family(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        parse_qwen2_moe,
        "Qwen1.5-MoE, Qwen2-57B-A14B: sparse experts beside one that every token takes",
    ),
    Family(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        parse_qwen3_moe,
        "Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder: sparse experts",
        built_as="Qwen2MoeForCausalLM",
    ),
    Family(
        "SolarOpenForCausalLM",
        "solar_open",
        parse_solar_open,
        "Solar Open: sparse experts",
        built_as="Dots1ForCausalLM",
    ),
)
