"""Qwen3-VL (arXiv 2511.21631) and Qwen3.5: decoders of other families with places in time, row and column, and a vision
tower with learned positions."""

from functools import partial

from torch.nn import functional

from fairlead_common.models.families.experts import QwenExpertsConfig
from fairlead_common.models.families.qwen_vl import Qwen3VisionConfig
from fairlead_common.models.model_config import ModelConfig
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families import recurrent
from fairlead_engine.model.families.experts import qwen_feed_forward
from fairlead_engine.model.layers import CentredNorm, UngatedFeedForward
from fairlead_engine.model.vision_tower import PatchMerger, StretchedPositions, VisionLayer, VisionTower
from fairlead_engine.model.weights import Weights

_NORM_EPS = 1e-6
_TOWER = "model.visual"


def build(weights: Weights, config: ModelConfig) -> Decoder:
    return weights.decoder(
        attention=weights.attention,
        feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp"),
        vision=_tower(weights, config),
    )


def build_experts(weights: Weights, config: QwenExpertsConfig) -> Decoder:
    return weights.decoder(
        attention=weights.attention, feed_forward=qwen_feed_forward(weights, config), vision=_tower(weights, config)
    )


def build_recurrent(weights: Weights, config: ModelConfig) -> Decoder:
    return recurrent.build_qwen(weights, config, _tower(weights, config))


def _tower(weights: Weights, config: ModelConfig) -> VisionTower:
    """Its products stay precise, even where the decoder's are rounded, and adapters leave them alone."""
    vision = config.vision
    assert isinstance(vision, Qwen3VisionConfig)
    hidden, patch = vision.hidden_size, vision.patch_size
    return VisionTower(
        config=vision,
        embedding=weights.patch_embedding(
            f"{_TOWER}.patch_embed.proj", hidden, 3, vision.temporal_patch_size, patch, patch, bias=True
        ),
        positions=StretchedPositions(weights.plain(f"{_TOWER}.pos_embed.weight", vision.num_positions, hidden)),
        layers=tuple(_layer(weights, f"{_TOWER}.blocks.{index}", vision) for index in range(vision.num_layers)),
        merger=_merger(weights, f"{_TOWER}.merger", vision, normed=hidden),
        deep_mergers={
            layer: _merger(
                weights, f"{_TOWER}.deepstack_merger_list.{place}", vision, normed=hidden * vision.merge_size**2
            )
            for place, layer in enumerate(vision.deep_layers)
        },
        dtype=weights.dtype,
        device=weights.device,
    )


def _merger(weights: Weights, prefix: str, config: Qwen3VisionConfig, *, normed: int) -> PatchMerger:
    """`normed`: elements that are normalised together."""
    merged = config.hidden_size * config.merge_size**2
    inner, output = (
        weights.linear({f"{prefix}.{name}": size}, merged, bias=True, is_sensitive=True)
        for name, size in (("linear_fc1", merged), ("linear_fc2", config.out_size))
    )
    return PatchMerger(_norm(weights, f"{prefix}.norm", normed), inner, output, config.merge_size**2)


def _layer(weights: Weights, prefix: str, config: Qwen3VisionConfig) -> VisionLayer:
    hidden, inner = config.hidden_size, config.intermediate_size
    return VisionLayer(
        before_attention=_norm(weights, f"{prefix}.norm1", hidden),
        qkv=weights.linear({f"{prefix}.attn.qkv": 3 * hidden}, hidden, bias=True, is_sensitive=True),
        output=weights.linear({f"{prefix}.attn.proj": hidden}, hidden, bias=True, is_sensitive=True),
        before_feed_forward=_norm(weights, f"{prefix}.norm2", hidden),
        feed_forward=UngatedFeedForward(
            up=weights.linear({f"{prefix}.mlp.linear_fc1": inner}, hidden, bias=True, is_sensitive=True),
            down=weights.linear({f"{prefix}.mlp.linear_fc2": hidden}, inner, bias=True, is_sensitive=True),
            activation=partial(functional.gelu, approximate="tanh"),
        ),
        num_heads=config.num_heads,
    )


def _norm(weights: Weights, name: str, size: int) -> CentredNorm:
    return weights.layer_norm(name, size, eps=_NORM_EPS)
