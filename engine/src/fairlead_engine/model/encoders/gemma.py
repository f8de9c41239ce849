"""EmbeddingGemma (arXiv 2509.20354): the layers of Gemma 3, in which tokens see both ways."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairlead_common.models.families.dense import parse_gemma3_layers
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import refuse
from fairlead_common.models.model_config import ModelConfig
from fairlead_common.models.rope_config import RopeKind
from fairlead_engine.kernels.attention.whole_prompts import PromptGroup, Reach, attend_whole
from fairlead_engine.kernels.gates import gelu_mul
from fairlead_engine.kernels.norm_rope_store import HeadNorm, norm_rope
from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.decoder import TokenEmbedding
from fairlead_engine.model.encoders.encoder import Encoder, EncoderConfig, EncoderStep
from fairlead_engine.model.encoders.parts import EncoderTensors
from fairlead_engine.model.families.dense import GEMMA_NORMS
from fairlead_engine.model.layers import Attention, DecoderLayer, GatedFeedForward, LayerNorms, RMSNorm, Rotation
from fairlead_engine.model.rope import RotaryEmbedding
from fairlead_engine.model.shard import ALONE
from fairlead_engine.model.task import longest_prompt, read_task


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaConfig(EncoderConfig):
    """Of EmbeddingGemma."""

    decoder: ModelConfig
    """The same layers', as if tokens saw one way."""
    layer_reaches: tuple[Reach, ...]
    """Of each layer."""


@dataclass(frozen=True, slots=True)
class GemmaLayers:
    """The embedding and all layers."""

    embedding: TokenEmbedding
    rotary: RotaryEmbedding
    local_rotary: RotaryEmbedding
    layers: tuple[tuple[DecoderLayer, Attention, Reach], ...]
    """Each with its attention, and the reach."""
    final_norm: RMSNorm

    def __call__(self, step: EncoderStep) -> Tensor:
        """The last hidden states [tokens, hidden]."""
        dtype = self.embedding.weight.dtype
        everywhere, local = (Rotation(*rotary(step.positions, dtype)) for rotary in (self.rotary, self.local_rotary))
        update: Tensor | None = None
        stream = self.embedding(step.token_ids)
        for layer, attention, reach in self.layers:
            heads, stream = layer.before_attention(update, stream)
            attended = _attend(attention, heads, everywhere if reach is None else local, step.groups[reach])
            update, stream = layer.after_attention(attended, stream)
        return self.final_norm(update, stream)[0]


def _attend(attention: Attention, heads: Tensor, rotation: Rotation, groups: list[PromptGroup]) -> Tensor:
    """Heads of queries, keys and values side by side → [tokens, heads x head_dim]."""
    num_kv_heads = attention.num_kv_heads
    query, key, value = norm_rope(
        heads, num_kv_heads, num_kv_heads, rotation.cosines, rotation.sines, attention.head_norm
    )
    return attend_whole(query * attention.query_scale, key, value, groups)


class GemmaFamily:
    """An `EncoderFamily`."""

    def parse(self, fields: JsonFields, architecture: str) -> GemmaConfig:
        """As `EncoderFamily` says."""
        decoder = parse_gemma3_layers(fields)
        if decoder.soft_cap:
            raise refuse(f"attn_logit_softcapping {decoder.soft_cap:g}", "use a model whose scores have no bound")
        if decoder.rope.kind is RopeKind.LONGROPE:
            raise refuse("rotary scaling longrope", "its factors depend on the length of a text; use another model")
        reaches = tuple(window // 2 if window else None for window in decoder.windows)
        return GemmaConfig(
            architecture=architecture,
            vocab_size=decoder.vocab_size,
            hidden_size=decoder.hidden_size,
            num_layers=decoder.num_layers,
            reaches=tuple(dict.fromkeys(reaches)),
            layer_reaches=reaches,
            decoder=decoder,
            longest_prompt=longest_prompt(fields.path.parent, decoder.max_position_embeddings),
            dtype=decoder.dtype,
            task=read_task(fields, architecture, sees_all=True),
        )

    def build(self, checkpoint: Checkpoint, config: EncoderConfig) -> Encoder:
        """As `EncoderFamily` says."""
        assert isinstance(config, GemmaConfig)
        shape, tensors = config.decoder, EncoderTensors(checkpoint)
        prefix = "model." if checkpoint.has("model.embed_tokens.weight") else ""
        words = tensors.tensor(f"{prefix}embed_tokens.weight", shape.vocab_size, shape.hidden_size)
        scale = float(torch.tensor(shape.embedding_scale, dtype=words.dtype))
        local_rope = shape.local_rope or shape.rope
        layers = GemmaLayers(
            embedding=TokenEmbedding(words, 0, ALONE, scale),
            rotary=RotaryEmbedding(shape.rope, shape.head_dim, tensors.device),
            local_rotary=RotaryEmbedding(local_rope, shape.head_dim, tensors.device),
            layers=tuple(
                (*_layer(tensors, shape, f"{prefix}layers.{index}"), reach)
                for index, reach in enumerate(config.layer_reaches)
            ),
            final_norm=_norm(tensors, f"{prefix}norm", shape.hidden_size, shape),
        )
        checkpoint.check_all_read(unless="lm_head.weight")
        return Encoder(
            config=config,
            layers=layers,
            classifier=None,
            num_parameters=tensors.num_parameters,
            weight_bytes=tensors.weight_bytes,
        )


def _layer(tensors: EncoderTensors, shape: ModelConfig, prefix: str) -> tuple[DecoderLayer, Attention]:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    attention = _attention(tensors, shape, f"{prefix}.self_attn")
    feed_forward = GatedFeedForward(
        gate_up=tensors.linear({f"{prefix}.mlp.gate_proj": inner, f"{prefix}.mlp.up_proj": inner}, hidden, bias=False),
        down=tensors.linear({f"{prefix}.mlp.down_proj": hidden}, inner, bias=False),
        combine=gelu_mul,
    )
    norms = LayerNorms(*(_norm(tensors, f"{prefix}.{name}", hidden, shape) for name in GEMMA_NORMS))
    return DecoderLayer(norms, attention, feed_forward), attention


def _attention(tensors: EncoderTensors, shape: ModelConfig, prefix: str) -> Attention:
    query_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    projections = {f"{prefix}.q_proj": query_size, f"{prefix}.k_proj": kv_size, f"{prefix}.v_proj": kv_size}
    query_norm, key_norm = (_norm(tensors, f"{prefix}.{name}", shape.head_dim, shape) for name in ("q_norm", "k_norm"))
    return Attention(
        qkv=tensors.linear(projections, shape.hidden_size, bias=shape.qkv_bias),
        output=tensors.linear({f"{prefix}.o_proj": shape.hidden_size}, query_size, bias=shape.output_bias),
        head_norm=HeadNorm(query_norm.weight, key_norm.weight, shape.rms_norm_eps),
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        query_scale=shape.query_scale,
    )


def _norm(tensors: EncoderTensors, name: str, size: int, shape: ModelConfig) -> RMSNorm:
    weight = tensors.tensor(f"{name}.weight", size)
    return RMSNorm((weight.float() + shape.norm_offset).to(weight.dtype), shape.rms_norm_eps)


EMBEDDING_GEMMA = GemmaFamily()
