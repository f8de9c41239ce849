"""DeepSeek-V2 and V3 (arXiv 2405.04434, 2412.19437): latent attention; behind a few dense layers, many narrow experts,
chosen within groups, beside shared experts for all tokens. V3.2 and GLM-5 choose the tokens that a query attends to. V3
and GLM-4.5 bring a layer for one token further."""

from collections.abc import Callable

import torch

from fairlead_common.models.families.deepseek import DeepseekConfig
from fairlead_common.models.families.experts import RoutedExpertsConfig
from fairlead_engine.model.checkpoint import WHOLE
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.experts import routed_experts
from fairlead_engine.model.key_index import KeyIndexer, KeyNorm
from fairlead_engine.model.latent_attention import LatentAttention, LowRankQuery
from fairlead_engine.model.layers import AttentionLayer
from fairlead_engine.model.shard import scaled
from fairlead_engine.model.weights import GuessingNames, Weights, layer_index

_NORM_EPS = 1e-6
"""Of the normalisations within attention, whatever the configuration says about the rest."""


def build(weights: Weights, config: DeepseekConfig) -> Decoder:
    return _decoder(weights, config, lambda prefix: _attention(weights, config, f"{prefix}.self_attn"))


def build_glm4_moe(weights: Weights, config: RoutedExpertsConfig) -> Decoder:
    """GLM-4.5 (arXiv 2508.06471): the same experts behind grouped-query attention."""
    return _decoder(weights, config, weights.attention)


def _decoder(weights: Weights, config: RoutedExpertsConfig, attention: Callable[[str], AttentionLayer]) -> Decoder:
    """Layers behind the model's guess: the first is read where it is wanted; the rest, and its copies of the model's
    embedding and output projection, are left. Where layers choose keys the first is left, too."""
    for index in range(config.num_layers, config.num_layers + config.num_guessing_layers):
        weights.skip(f"model.layers.{index}.")
    offsets = None  # of scores: with zeros a group's score is that of its best two
    if config.is_softmax and not config.has_score_bias:
        offsets = torch.zeros(config.num_experts, device=weights.device)
    beside = f"model.layers.{config.num_layers}"
    own = ("eh_proj", "enorm", "hnorm", "shared_head.norm")
    names = GuessingNames("num_nextn_predict_layers", beside, *(f"{beside}.{name}" for name in own))
    return weights.decoder(
        attention=attention,
        feed_forward=lambda prefix: routed_experts(weights, config, prefix, offsets=offsets),
        guessing=names if config.num_guessing_layers and not config.indexed else None,
    )


def _attention(weights: Weights, config: DeepseekConfig, prefix: str) -> LatentAttention:
    """Each rank has heads of its own; all have the whole latent."""
    latent, plain, value = config.latent_dim, config.plain_dim, config.value_dim
    heads, query_dim, bias = weights.shard.part(config.num_heads), plain + config.turned_dim, config.output_bias
    num_here = heads.stop - heads.start
    query_size, query_part = config.num_heads * query_dim, scaled(heads, query_dim)
    key = {f"{prefix}.kv_a_proj_with_mqa": config.head_dim}
    low_rank = None
    if config.query_rank is None:
        query, first_part = {f"{prefix}.q_proj": query_size}, query_part
    else:
        query, first_part = {f"{prefix}.q_a_proj": config.query_rank}, WHOLE
        low_rank = LowRankQuery(
            weights.norm(f"{prefix}.q_a_layernorm", config.query_rank, eps=_NORM_EPS),
            weights.linear({f"{prefix}.q_b_proj": query_size}, config.query_rank, row_parts=[query_part]),
        )
    of_head = plain + value
    up = weights.dequantized(f"{prefix}.kv_b_proj", config.num_heads * of_head, latent, scaled(heads, of_head))
    key_up, value_up = torch.split(up.view(num_here, of_head, latent), [plain, value], dim=1)
    slots = weights.slots
    adapters = None
    if slots is not None:
        adapters = slots.adapted_heads(f"{prefix}.kv_b_proj", config.num_heads, plain, value, latent, heads)
    return LatentAttention(
        down=weights.linear(query | key, config.hidden_size, bias=bias, row_parts=[first_part, WHOLE]),
        low_rank=low_rank,
        latent_norm=weights.norm(f"{prefix}.kv_a_layernorm", latent, eps=_NORM_EPS),
        key_up=key_up.contiguous(),
        value_up=value_up.transpose(1, 2).contiguous(),
        project=weights.linear(
            {f"{prefix}.o_proj": config.hidden_size}, config.num_heads * value, bias=bias,
            column_part=scaled(heads, value),
        ),
        rotary_dim=config.turned_dim,
        is_interleaved=config.is_interleaved,
        query_scale=config.query_scale,
        query_growth=config.query_growth,
        indexer=_indexer(weights, config, prefix),
        shares_choice=bool(config.num_chosen),
        adapters=adapters,
    )  # fmt: skip


def _indexer(weights: Weights, config: DeepseekConfig, attention: str) -> KeyIndexer | None:
    """None = the layer has none."""
    if layer_index(attention.removesuffix(".self_attn")) not in config.indexed or config.query_rank is None:
        return None
    prefix, size, heads = f"{attention}.indexer", config.index_dim, config.num_index_heads
    return KeyIndexer(
        query=weights.linear({f"{prefix}.wq_b": heads * size}, config.query_rank, is_sensitive=True),
        key=weights.linear({f"{prefix}.wk": size}, config.hidden_size, is_sensitive=True),
        key_norm=KeyNorm(*(weights.offsets(f"{prefix}.k_norm.{kind}", size) for kind in ("weight", "bias"))),
        weigh=weights.linear({f"{prefix}.weights_proj": heads}, config.hidden_size, is_sensitive=True),
        num_heads=heads,
        rotary_dim=config.turned_dim,
        is_interleaved=config.is_index_interleaved,
        num_chosen=config.num_chosen,
    )
