"""DeepSeek-V2 and V3 (arXiv 2405.04434, 2412.19437): latent attention with one narrow head in the cache for all
heads, and many narrow experts, chosen within groups, beside shared experts; the first layers have no experts. V3.2
(arXiv 2512.02556) and GLM-5 choose the tokens that a query attends to."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fairlead_common.models.families.dense import query_growth
from fairlead_common.models.families.experts import RoutedExpertsConfig, from_zero, named_dense
from fairlead_common.models.families.family import Family
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import refuse
from fairlead_common.models.model_config import no_windows, parse_shape
from fairlead_common.models.rope_config import yarn_scale
from fairlead_common.models.weight_formats import WeightPart, WeightRole, share, vector

_MISTRAL4_ROPE = {
    "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 128.0, "original_max_position_embeddings": 8192,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekConfig(RoutedExpertsConfig):
    """`head_dim` is that of the one key head in the cache; `intermediate_size` is that of layers without experts."""

    query_rank: int | None
    """Width of the low-rank vector of queries; None = queries are projected directly."""
    plain_dim: int
    """Elements of a query or key head without rotary positions."""
    turned_dim: int
    """Elements of a query or key head with rotary positions; all heads share them in keys."""
    value_dim: int
    """Elements of a head's value."""
    is_interleaved: bool
    num_index_heads: int = 0
    """Heads of the indexer's queries."""
    is_index_interleaved: bool = False
    """Whether neighbours are turned together in index keys."""

    @property
    def latent_dim(self) -> int:
        """Elements of the latent vector from which keys and values are computed."""
        assert self.shared_value_dim is not None
        return self.shared_value_dim

    @property
    def rotary_dim(self) -> int:
        return self.turned_dim

    def attention_parts(self, ranks: int) -> list[WeightPart]:
        """Heads are split between ranks, and each rank has the latent."""
        hidden, latent, heads = self.hidden_size, self.latent_dim, share(self.num_heads, ranks)
        num = self.num_layers
        query = heads * (self.plain_dim + self.turned_dim)
        parts = [vector("self_attn.kv_a_layernorm", num, latent)]
        if self.query_rank is None:
            parts.append(WeightPart("self_attn.q_proj", num, query, hidden))
        else:
            rank = self.query_rank
            parts += [WeightPart("self_attn.q_b_proj", num, query, rank), vector("self_attn.q_a_layernorm", num, rank)]
            parts.append(WeightPart("self_attn.q_a_proj", num, rank, hidden, bias=rank if self.qkv_bias else 0))
        restored, down = heads * (self.plain_dim + self.value_dim), self.head_dim
        return [
            *parts,
            *self._index_parts(),
            WeightPart("self_attn.kv_a_proj_with_mqa", num, down, hidden, bias=down if self.qkv_bias else 0),
            WeightPart("self_attn.kv_b_proj", num, restored, latent, WeightRole.RESTORED),
            WeightPart("self_attn.o_proj", num, hidden, heads * self.value_dim, bias=hidden if self.output_bias else 0),
        ]

    def _index_parts(self) -> list[WeightPart]:
        """Of all indexers, which every rank has."""
        num, size, heads = len(self.indexed & {*range(self.num_layers)}), self.index_dim, self.num_index_heads
        if not num or self.query_rank is None:
            return []
        return [
            WeightPart("self_attn.indexer.wq_b", num, heads * size, self.query_rank, WeightRole.SENSITIVE),
            WeightPart("self_attn.indexer.wk", num, size, self.hidden_size, WeightRole.SENSITIVE),
            WeightPart("self_attn.indexer.weights_proj", num, heads, self.hidden_size, WeightRole.PRECISE),
            vector("self_attn.indexer.k_norm", num, 2 * size),
        ]


def parse_deepseek_v2(fields: JsonFields) -> DeepseekConfig:
    if (scoring := fields.text("scoring_func") or "softmax") != "softmax":
        raise refuse(f"scoring_func {scoring}", "of a DeepSeek-V2 softmax is supported")
    method = fields.text("topk_method") or "greedy"
    if method not in ("greedy", "group_limited_greedy"):
        raise refuse(f"topk_method {method}", "of a DeepSeek-V2 greedy and group_limited_greedy are supported")
    if fields.boolean("norm_topk_prob", False):
        raise refuse("norm_topk_prob", "of a DeepSeek-V2 weights of experts that do not sum to 1 are supported")
    groups: dict[str, Any] = {"num_groups": 1, "num_chosen_groups": 1}
    if method != "greedy":
        groups = _groups(fields, None, None)
    routing = {
        "num_experts_per_token": fields.positive_int("num_experts_per_tok"),
        "is_normalised": False,
        **groups,
        "routed_scale": fields.positive_number("routed_scaling_factor", 1.0),
    }
    return _parse(
        fields, routing, query_rank=1536, num_experts=64, num_shared_experts=2, expert_size=1407, first_dense=0
    )


def parse_deepseek_v3(fields: JsonFields) -> DeepseekConfig:
    return _parse(
        fields, _routing(fields, "DeepSeek-V3", 8, 4), query_rank=1536, num_experts=256, num_shared_experts=1,
        expert_size=2048, first_dense=3, has_score_bias=True,
    )  # fmt: skip


def parse_deepseek_v32(fields: JsonFields) -> DeepseekConfig:
    """DeepSeek-V3's layers, each with an indexer."""
    _check_interleaved(fields, "DeepSeek-V3.2", is_index_interleaved=False)
    config = _parse(
        fields, _routing(fields, "DeepSeek-V3.2", 8, 4), query_rank=1536, num_experts=256, num_shared_experts=1,
        expert_size=2048, first_dense=3, has_score_bias=True,
    )  # fmt: skip
    return _with_indexers(fields, config, frozenset(range(config.num_layers)), num_heads=64)


def parse_glm_moe_dsa(fields: JsonFields) -> DeepseekConfig:
    """GLM-5: the same, where some layers take over the choice of the layer before (arXiv 2603.12201)."""
    _check_interleaved(fields, "GLM-5", is_index_interleaved=True)
    config = _parse(
        fields, _routing(fields, "GLM-5", 1, 1), query_rank=2048, num_experts=256, num_shared_experts=1,
        expert_size=2048, first_dense=3, has_score_bias=True, plain_dim=192, value_dim=256, rms_norm_eps=1e-5,
    )  # fmt: skip
    return replace(
        _with_indexers(fields, config, _indexed(fields, config.num_layers), num_heads=32), is_index_interleaved=True
    )


def _routing(fields: JsonFields, name: str, num_groups: int, num_chosen_groups: int) -> dict[str, Any]:
    """As DeepSeek-V3 chooses experts; `name`: of the version, whose default groups the numbers are."""
    if (scoring := fields.text("scoring_func") or "sigmoid") != "sigmoid":
        raise refuse(f"scoring_func {scoring}", f"of a {name} sigmoid is supported")
    if (method := fields.text("topk_method") or "noaux_tc") != "noaux_tc":
        raise refuse(f"topk_method {method}", f"of a {name} noaux_tc is supported")
    return {
        "num_experts_per_token": fields.positive_int("num_experts_per_tok", 8),
        "is_normalised": fields.boolean("norm_topk_prob", True),
        **_groups(fields, num_groups, num_chosen_groups),
        "routed_scale": fields.positive_number("routed_scaling_factor", 2.5),
    }


def _check_interleaved(fields: JsonFields, name: str, *, is_index_interleaved: bool) -> None:
    """Raises ModelLoadError for positions that turn other pairs of elements than the version's."""
    for field, wanted in (("rope_interleave", True), ("indexer_rope_interleave", is_index_interleaved)):
        if fields.boolean(field, wanted) is not wanted:
            raise refuse(f"{field} {str(not wanted).lower()}", f"of a {name} {str(wanted).lower()} is supported")


def _with_indexers(
    fields: JsonFields, config: DeepseekConfig, indexed: frozenset[int], *, num_heads: int
) -> DeepseekConfig:
    """The configuration with indexers in these layers; `num_heads`: the default of the version."""
    if config.query_rank is None:
        raise refuse("q_lora_rank null", "an indexer reads the narrower vectors of queries; use a model with some")
    index_dim = fields.positive_int("index_head_dim", 128)
    if index_dim < config.turned_dim:
        raise fields.invalid("index_head_dim", f"must be at least qk_rope_head_dim ({config.turned_dim})")
    return replace(
        config,
        index_dim=index_dim,
        indexed=indexed,
        num_index_heads=fields.positive_int("index_n_heads", num_heads),
        num_chosen=fields.positive_int("index_topk", 2048),
        dense_layers=named_dense(fields, config.dense_layers),
    )


def _indexed(fields: JsonFields, num_layers: int) -> frozenset[int]:
    """Layers that choose tokens themselves: by `indexer_types`, by the older `index_topk_pattern`, or by a rhythm."""
    kinds = fields.texts("indexer_types")
    if not kinds and fields.has("index_topk_pattern"):
        name, letters = "index_topk_pattern", {"F": "full", "S": "shared"}
        given = list(fields.text(name) or "") if fields.is_text(name) else fields.texts(name)
        kinds = [letters.get(each, each) for each in given]
    if not kinds:
        every = max(1, from_zero(fields, "index_topk_freq", 1))
        offset = from_zero(fields, "index_skip_topk_offset", 2)
        return frozenset(layer for layer in range(num_layers) if max(layer - offset + 1, 0) % every == 0)
    if unknown := sorted({*kinds} - {"full", "shared"}):
        raise refuse(f"indexer_types {', '.join(unknown)}", "full and shared are supported")
    if len(kinds) != num_layers:
        raise fields.invalid("indexer_types", f"must name as many as num_hidden_layers ({num_layers})")
    if kinds[0] != "full":
        raise fields.invalid("indexer_types", "must begin with full: before the first layer nothing is chosen")
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == "full")


def parse_glm4_moe_lite(fields: JsonFields) -> DeepseekConfig:
    """GLM-4.7-Flash: DeepSeek-V3's layers."""
    routing = {
        "num_experts_per_token": fields.positive_int("num_experts_per_tok", 4),
        "is_normalised": fields.boolean("norm_topk_prob", True),
        **_groups(fields, 1, 1),
        "routed_scale": fields.positive_number("routed_scaling_factor", 1.8),
    }
    config = _parse(
        fields, routing, query_rank=768, num_experts=64, num_shared_experts=1, expert_size=1536, first_dense=1,
        has_score_bias=True, plain_dim=192, value_dim=256, rms_norm_eps=1e-5,
    )  # fmt: skip
    return replace(config, dense_layers=named_dense(fields, config.dense_layers))


def parse_mistral4(fields: JsonFields) -> DeepseekConfig:
    """DeepSeek's layers with experts by a softmax, and queries that grow with their positions."""
    scaling = fields.section("rope_parameters") or fields.section("rope_scaling")
    if scaling is None:  # absent, or an empty object
        fields = fields.with_changes({"rope_parameters": _MISTRAL4_ROPE})
        scaling = JsonFields(fields.path, _MISTRAL4_ROPE)
    routing = {
        "num_experts_per_token": fields.positive_int("num_experts_per_tok", 4),
        "is_normalised": fields.boolean("norm_topk_prob", True),
        **_groups(fields, 1, 1),
        "routed_scale": fields.positive_number("routed_scaling_factor", 1.0),
        "is_softmax": True,
    }
    config = _parse(
        fields.with_changes({"kv_lora_rank": fields.positive_int("kv_lora_rank", 256)}), routing, query_rank=1024,
        num_experts=128, num_shared_experts=1, expert_size=2048, first_dense=0, plain_dim=64, turned_share=1.0,
    )  # fmt: skip
    return replace(config, rope=replace(config.rope, share=1.0), query_growth=query_growth(scaling))


def parse_youtu(fields: JsonFields) -> DeepseekConfig:
    """DeepSeek-V3's attention, without experts."""
    none = {"first_k_dense_replace": fields.positive_int("num_hidden_layers"), "n_shared_experts": 0}
    none["num_nextn_predict_layers"] = 0
    one = dict.fromkeys(("n_routed_experts", "num_experts_per_tok", "n_group", "topk_group"), 1)
    tied = fields.boolean("tie_word_embeddings", True)
    return parse_deepseek_v3(fields.with_changes({**none, **one, "tie_word_embeddings": tied}))


def _groups(fields: JsonFields, num: int | None, num_chosen: int | None) -> dict[str, Any]:
    return {
        "num_groups": fields.positive_int("n_group", num),
        "num_chosen_groups": fields.positive_int("topk_group", num_chosen),
    }


def _parse(
    fields: JsonFields,
    routing: dict[str, Any],
    *,
    query_rank: int,
    num_experts: int,
    num_shared_experts: int,
    expert_size: int,
    first_dense: int,
    has_score_bias: bool = False,
    plain_dim: int = 128,
    value_dim: int = 128,
    rms_norm_eps: float = 1e-6,
    turned_share: float | None = None,
) -> DeepseekConfig:
    """`routing`: how the version chooses experts. The other arguments are defaults of the version, and
    `turned_share` is `parse_shape`'s."""
    turned, latent = fields.positive_int("qk_rope_head_dim", 64), fields.positive_int("kv_lora_rank", 512)
    if turned % 2:
        raise fields.invalid("qk_rope_head_dim", "must be even: rotary positions turn pairs of elements")
    has_rank = fields.has("q_lora_rank") or not fields.names("q_lora_rank")
    bias = fields.boolean("attention_bias", False)
    if bias and not has_rank:
        raise refuse("attention_bias without q_lora_rank", "use a model whose projections add no bias")
    if fields.boolean("mlp_bias", False):
        raise refuse("mlp_bias", "use a model whose feed-forward layers add no bias")
    windows = partial(no_windows, other="indexed_attention")
    plain = fields.positive_int("qk_nope_head_dim", plain_dim)
    head_dim = turned if turned_share is None else plain + turned
    shape = parse_shape(
        fields, head_dim=head_dim, rms_norm_eps=rms_norm_eps, windows=windows, turned_share=turned_share
    )
    rope = shape["rope"]
    # A head in the cache is longer than those that were trained, by whose size scores are divided.
    scale = ((latent + turned) / (plain + turned)) ** 0.5 * yarn_scale(rope.factor, rope.score_weight) ** 2
    shape |= {"num_kv_heads": 1, "head_dim": latent + turned, "shared_value_dim": latent, "query_scale": scale}
    first = from_zero(fields, "first_k_dense_replace", first_dense)
    every = fields.positive_int("moe_layer_freq", 1)
    config = DeepseekConfig(
        **shape,
        query_rank=fields.positive_int("q_lora_rank", query_rank) if has_rank else None,
        plain_dim=plain,
        turned_dim=turned,
        value_dim=fields.positive_int("v_head_dim", value_dim),
        qkv_bias=bias,
        output_bias=bias,
        is_interleaved=fields.boolean("rope_interleave", True),
        num_experts=fields.positive_int("n_routed_experts", num_experts),
        **routing,
        has_score_bias=has_score_bias,
        expert_size=fields.positive_int("moe_intermediate_size", expert_size),
        num_shared_experts=from_zero(fields, "n_shared_experts", num_shared_experts),
        dense_layers=frozenset(each for each in range(shape["num_layers"]) if each < first or each % every),
        num_guessing_layers=from_zero(fields, "num_nextn_predict_layers", 0) if has_score_bias else 0,
    )
    _check_experts(fields, config)
    return config


def _check_experts(fields: JsonFields, config: DeepseekConfig) -> None:
    num_experts, num_groups = config.num_experts, config.num_groups
    if num_experts % num_groups:
        raise fields.invalid("n_group", f"must divide n_routed_experts ({num_experts})")
    if config.num_chosen_groups > num_groups:
        raise fields.invalid("topk_group", f"must be at most n_group ({num_groups})")
    available = num_experts // num_groups * config.num_chosen_groups
    if config.num_experts_per_token > available:
        raise fields.invalid("num_experts_per_tok", f"must be at most {available}, the experts of topk_group groups")


FAMILIES = (
    Family(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        parse_deepseek_v2,
        "DeepSeek-V2, V2.5 and their Lite and Coder models: latent attention, sparse experts",
        built_as="DeepseekV3ForCausalLM",
    ),
    Family(
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        parse_deepseek_v3,
        "DeepSeek-V3, V3.1 and R1, Kimi-K2, and what is built like them: the same; [multi-token prediction][mtp]",
    ),
    Family(
        "DeepseekV32ForCausalLM",
        "deepseek_v32",
        parse_deepseek_v32,
        "DeepSeek-V3.2 and V3.2-Exp, as they are stored (FP8) or in floats: the same with an [indexer]",
        built_as="DeepseekV3ForCausalLM",
    ),
    Family(
        "Glm4MoeLiteForCausalLM",
        "glm4_moe_lite",
        parse_glm4_moe_lite,
        "GLM-4.7-Flash: latent attention, sparse experts; [multi-token prediction][mtp]",
        built_as="DeepseekV3ForCausalLM",
    ),
    Family(
        "GlmMoeDsaForCausalLM",
        "glm_moe_dsa",
        parse_glm_moe_dsa,
        "GLM-5 and 5.2: latent attention with an [indexer], sparse experts; the layer for multi-token prediction "
        "is left out",
        built_as="DeepseekV3ForCausalLM",
    ),
    Family(
        "Mistral4ForCausalLM",
        "mistral4",
        parse_mistral4,
        "Mistral Small 4, by its text part: latent attention, sparse experts",
        built_as="DeepseekV3ForCausalLM",
    ),
    Family(
        "YoutuForCausalLM",
        "youtu",
        parse_youtu,
        "Youtu-LLM 2B: latent attention",
        built_as="DeepseekV3ForCausalLM",
    ),
)
