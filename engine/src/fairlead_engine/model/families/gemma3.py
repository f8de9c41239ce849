"""Gemma 3 with its vision tower (arXiv 2503.19786): the decoder is the one that it is by itself."""

from dataclasses import dataclass
from functools import partial

from torch import Tensor
from torch.nn import functional

from fairlead_common.models.model_config import ModelConfig
from fairlead_common.models.siglip_config import SiglipConfig
from fairlead_engine.kernels.gates import gelu_mul
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.dense import GEMMA_NORMS
from fairlead_engine.model.layers import RMSNorm, UngatedFeedForward
from fairlead_engine.model.vision_tower import StretchedPositions, VisionLayer, VisionTower
from fairlead_engine.model.weights import Weights

_TOWER, _PROJECTOR = "vision_tower", "multi_modal_projector"


@dataclass(frozen=True, slots=True)
class PatchPooling:
    """Projects the mean of the patches of a merged patch to one vector of the decoder's width."""

    norm: RMSNorm
    """Of each patch."""
    pooled_norm: RMSNorm
    projection: Tensor
    """[hidden, out]."""
    num_merged: int

    def __call__(self, stream: Tensor) -> Tensor:
        """[patches, hidden] → [merged patches, out]."""
        pooled = self.norm.alone(stream).view(-1, self.num_merged, stream.shape[1]).mean(1)
        return self.pooled_norm.alone(pooled) @ self.projection


def build(weights: Weights, config: ModelConfig) -> Decoder:
    assert isinstance(config.vision, SiglipConfig)
    return weights.decoder(
        feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp", combine=gelu_mul),
        norms=GEMMA_NORMS,
        vision=_tower(weights, config.vision),
    )


def _tower(weights: Weights, config: SiglipConfig) -> VisionTower:
    """The tower's products stay precise, even where the decoder's are rounded, and adapters leave them alone."""
    hidden, size, embeddings = config.hidden_size, config.patch_size, f"{_TOWER}.embeddings"
    weights.skip(f"{_TOWER}.head.")  # pools an image to one vector, for other uses of the tower
    return VisionTower(
        config=config,
        embedding=weights.patch_embedding(f"{embeddings}.patch_embedding", hidden, 3, size, size, bias=True),
        positions=StretchedPositions(
            weights.plain(f"{embeddings}.position_embedding.weight", config.num_patches, hidden)
        ),
        turns=False,
        layers=tuple(_layer(weights, f"{_TOWER}.encoder.layers.{index}", config) for index in range(config.num_layers)),
        merger=PatchPooling(
            norm=weights.layer_norm(f"{_TOWER}.post_layernorm", hidden, eps=config.norm_eps),
            pooled_norm=weights.norm(f"{_PROJECTOR}.mm_soft_emb_norm", hidden, eps=config.norm_eps),
            projection=weights.plain(f"{_PROJECTOR}.mm_input_projection_weight", hidden, config.out_size),
            num_merged=config.merge_size**2,
        ),
        dtype=weights.dtype,
        device=weights.device,
    )


def _layer(weights: Weights, prefix: str, config: SiglipConfig) -> VisionLayer:
    hidden, inner = config.hidden_size, config.intermediate_size
    qkv = {f"{prefix}.self_attn.{name}_proj": hidden for name in "qkv"}
    return VisionLayer(
        before_attention=weights.layer_norm(f"{prefix}.layer_norm1", hidden, eps=config.norm_eps),
        qkv=weights.linear(qkv, hidden, bias=True, is_sensitive=True),
        output=weights.linear({f"{prefix}.self_attn.out_proj": hidden}, hidden, bias=True, is_sensitive=True),
        before_feed_forward=weights.layer_norm(f"{prefix}.layer_norm2", hidden, eps=config.norm_eps),
        feed_forward=UngatedFeedForward(
            up=weights.linear({f"{prefix}.mlp.fc1": inner}, hidden, bias=True, is_sensitive=True),
            down=weights.linear({f"{prefix}.mlp.fc2": hidden}, inner, bias=True, is_sensitive=True),
            activation=partial(functional.gelu, approximate="tanh"),
        ),
        num_heads=config.num_heads,
    )
