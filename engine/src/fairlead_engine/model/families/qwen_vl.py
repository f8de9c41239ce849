"""Qwen2.5-VL (arXiv 2502.13923), Qwen3-VL (arXiv 2511.21631) and Qwen3.5: decoders of other families with places in
time, row and column, and a vision tower, from Qwen3-VL on with learned positions.

A tower's products stay precise, even where the decoder's are rounded, and adapters leave them alone.
"""

from collections.abc import Callable
from functools import partial

from torch.nn import functional

from fairlead_common.models.families.experts import QwenExpertsConfig
from fairlead_common.models.families.qwen_vl import Qwen3VisionConfig
from fairlead_common.models.model_config import ModelConfig
from fairlead_common.models.vision_config import VisionConfig
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families import recurrent
from fairlead_engine.model.families.experts import qwen_feed_forward
from fairlead_engine.model.layers import FeedForward, GatedFeedForward, RMSNorm, UngatedFeedForward
from fairlead_engine.model.linear import Linear
from fairlead_engine.model.vision_tower import PatchMerger, StretchedPositions, VisionLayer, VisionTower
from fairlead_engine.model.weights import Weights

_NORM_EPS = 1e-6
"""Of the tower's normalisations, whatever the decoder's."""
_OLDER_TOWER, _TOWER = "visual", "model.visual"


def build_2_5(weights: Weights, config: ModelConfig) -> Decoder:
    assert config.vision is not None
    return weights.decoder(vision=_older_tower(weights, config.vision))


def build(weights: Weights, config: ModelConfig) -> Decoder:
    return weights.decoder(vision=_tower(weights, config))


def build_experts(weights: Weights, config: QwenExpertsConfig) -> Decoder:
    return weights.decoder(feed_forward=qwen_feed_forward(weights, config), vision=_tower(weights, config))


def build_recurrent(weights: Weights, config: ModelConfig) -> Decoder:
    return recurrent.build_qwen(weights, config, _tower(weights, config))


def _older_tower(weights: Weights, config: VisionConfig) -> VisionTower:
    hidden, inner, patch = config.hidden_size, config.intermediate_size, config.patch_size
    norm = partial(weights.norm, eps=_NORM_EPS)

    def layer(prefix: str) -> VisionLayer:
        gates = {f"{prefix}.mlp.gate_proj": inner, f"{prefix}.mlp.up_proj": inner}
        gate_up, down = _product(weights, gates, hidden), _product(weights, {f"{prefix}.mlp.down_proj": hidden}, inner)
        return _layer(weights, prefix, config, norm, GatedFeedForward(gate_up=gate_up, down=down))

    embedding = f"{_OLDER_TOWER}.patch_embed.proj"
    return VisionTower(
        config,
        weights.patch_embedding(embedding, hidden, 3, config.temporal_patch_size, patch, patch),
        tuple(layer(f"{_OLDER_TOWER}.blocks.{index}") for index in range(config.num_layers)),
        _merger(
            weights, f"{_OLDER_TOWER}.merger", config, ("mlp.0", "mlp.2"), norm(f"{_OLDER_TOWER}.merger.ln_q", hidden)
        ),
        weights.dtype,
        weights.device,
    )


def _tower(weights: Weights, config: ModelConfig) -> VisionTower:
    vision = config.vision
    assert isinstance(vision, Qwen3VisionConfig)
    hidden, inner, patch = vision.hidden_size, vision.intermediate_size, vision.patch_size
    norm = partial(weights.layer_norm, eps=_NORM_EPS)

    def layer(prefix: str) -> VisionLayer:
        up = _product(weights, {f"{prefix}.mlp.linear_fc1": inner}, hidden)
        down = _product(weights, {f"{prefix}.mlp.linear_fc2": hidden}, inner)
        activation = partial(functional.gelu, approximate="tanh")
        return _layer(weights, prefix, vision, norm, UngatedFeedForward(up=up, down=down, activation=activation))

    def merger(prefix: str, normed: int) -> PatchMerger:
        """`normed`: elements that are normalised together."""
        return _merger(weights, prefix, vision, ("linear_fc1", "linear_fc2"), norm(f"{prefix}.norm", normed))

    return VisionTower(
        config=vision,
        embedding=weights.patch_embedding(
            f"{_TOWER}.patch_embed.proj", hidden, 3, vision.temporal_patch_size, patch, patch, bias=True
        ),
        positions=StretchedPositions(weights.plain(f"{_TOWER}.pos_embed.weight", vision.num_positions, hidden)),
        layers=tuple(layer(f"{_TOWER}.blocks.{index}") for index in range(vision.num_layers)),
        merger=merger(f"{_TOWER}.merger", hidden),
        deep_mergers={
            index: merger(f"{_TOWER}.deepstack_merger_list.{place}", hidden * vision.merge_size**2)
            for place, index in enumerate(vision.deep_layers)
        },
        dtype=weights.dtype,
        device=weights.device,
    )


def _merger(
    weights: Weights, prefix: str, config: VisionConfig, products: tuple[str, str], norm: RMSNorm
) -> PatchMerger:
    """`products`: names of the inner and the output product."""
    num_merged = config.merge_size**2
    merged = config.hidden_size * num_merged
    inner, output = (
        _product(weights, {f"{prefix}.{name}": size}, merged)
        for name, size in zip(products, (merged, config.out_size), strict=True)
    )
    return PatchMerger(norm, inner, output, num_merged)


def _layer(
    weights: Weights, prefix: str, config: VisionConfig, norm: Callable[[str, int], RMSNorm], feed_forward: FeedForward
) -> VisionLayer:
    hidden = config.hidden_size
    return VisionLayer(
        before_attention=norm(f"{prefix}.norm1", hidden),
        qkv=_product(weights, {f"{prefix}.attn.qkv": 3 * hidden}, hidden),
        output=_product(weights, {f"{prefix}.attn.proj": hidden}, hidden),
        before_feed_forward=norm(f"{prefix}.norm2", hidden),
        feed_forward=feed_forward,
        num_heads=config.num_heads,
    )


def _product(weights: Weights, outputs: dict[str, int], num_inputs: int) -> Linear:
    return weights.linear(outputs, num_inputs, bias=True, is_sensitive=True)
