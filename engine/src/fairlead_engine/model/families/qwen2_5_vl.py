"""Qwen2.5-VL (arXiv 2502.13923): the decoder of Qwen2 with places in time, row and column, and a vision tower."""

from fairlead_common.models.model_config import ModelConfig
from fairlead_common.models.vision_config import VisionConfig
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.layers import GatedFeedForward
from fairlead_engine.model.vision_tower import PatchMerger, VisionLayer, VisionTower
from fairlead_engine.model.weights import Weights

_NORM_EPS = 1e-6
"""Of the tower's normalisations, whatever the decoder's."""
_TOWER = "visual"


def build(weights: Weights, config: ModelConfig) -> Decoder:
    assert config.vision is not None
    return weights.decoder(
        attention=weights.attention,
        feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp"),
        vision=_tower(weights, config.vision),
    )


def _tower(weights: Weights, config: VisionConfig) -> VisionTower:
    """The tower's products stay precise, even where the decoder's are rounded, and adapters leave them alone."""
    hidden, num_merged = config.hidden_size, config.merge_size**2
    merged = hidden * num_merged
    embedding = weights.patch_embedding(
        f"{_TOWER}.patch_embed.proj", hidden, 3, config.temporal_patch_size, config.patch_size, config.patch_size
    )
    layers = tuple(_layer(weights, f"{_TOWER}.blocks.{index}", config) for index in range(config.num_layers))
    inner, output = (
        weights.linear({f"{_TOWER}.merger.mlp.{name}": size}, merged, bias=True, is_sensitive=True)
        for name, size in ((0, merged), (2, config.out_size))
    )
    merger = PatchMerger(weights.norm(f"{_TOWER}.merger.ln_q", hidden, eps=_NORM_EPS), inner, output, num_merged)
    return VisionTower(config, embedding, layers, merger, weights.dtype, weights.device)


def _layer(weights: Weights, prefix: str, config: VisionConfig) -> VisionLayer:
    hidden, inner = config.hidden_size, config.intermediate_size
    return VisionLayer(
        before_attention=weights.norm(f"{prefix}.norm1", hidden, eps=_NORM_EPS),
        qkv=weights.linear({f"{prefix}.attn.qkv": 3 * hidden}, hidden, bias=True, is_sensitive=True),
        output=weights.linear({f"{prefix}.attn.proj": hidden}, hidden, bias=True, is_sensitive=True),
        before_feed_forward=weights.norm(f"{prefix}.norm2", hidden, eps=_NORM_EPS),
        feed_forward=GatedFeedForward(
            gate_up=weights.linear(
                {f"{prefix}.mlp.gate_proj": inner, f"{prefix}.mlp.up_proj": inner}, hidden, bias=True, is_sensitive=True
            ),
            down=weights.linear({f"{prefix}.mlp.down_proj": hidden}, inner, bias=True, is_sensitive=True),
        ),
        num_heads=config.num_heads,
    )
