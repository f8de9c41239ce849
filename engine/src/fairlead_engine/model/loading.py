"""From a folder of weights to a `Decoder`: which tensors make which layer, under the names Hugging Face gives them."""

from pathlib import Path

import torch
from torch import Tensor

from fairlead_engine.kernels.norm_rope import HeadNorm
from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.config import ModelConfig
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.layers import Attention, DecoderLayer, GatedFeedForward, RMSNorm
from fairlead_engine.model.linear import Linear, make_linear
from fairlead_engine.model.rope import RotaryEmbedding

_HEAD = "lm_head.weight"


def load_model(folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Decoder:
    """Reads, converts and fuses the weights. Raises ModelLoadError, naming the file or tensor that does not fit."""
    with torch.inference_mode(), Checkpoint(folder, dtype, device) as checkpoint:
        return _DecoderBuilder(checkpoint, config).build()


class _DecoderBuilder:
    """Assembles layers from tensors, and counts what it used."""

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._num_parameters = 0
        self._weight_bytes = 0

    def build(self) -> Decoder:
        config = self._config
        embedding = self._counted(
            self._checkpoint.tensor("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        )
        layers = tuple(self._layer(f"model.layers.{index}") for index in range(config.num_layers))
        final_norm = self._norm("model.norm", config.hidden_size)
        head = self._head(embedding)
        self._checkpoint.check_all_read(unless=_HEAD if config.tie_word_embeddings else None)
        return Decoder(
            config=config,
            embedding=embedding,
            rotary=RotaryEmbedding(config.rope, config.head_dim, self._checkpoint.device),
            layers=layers,
            final_norm=final_norm,
            head=head,
            num_parameters=self._num_parameters,
            weight_bytes=self._weight_bytes,
        )

    def _layer(self, prefix: str) -> DecoderLayer:
        hidden = self._config.hidden_size
        return DecoderLayer(
            attention_norm=self._norm(f"{prefix}.input_layernorm", hidden),
            attention=self._attention(f"{prefix}.self_attn"),
            feed_forward_norm=self._norm(f"{prefix}.post_attention_layernorm", hidden),
            feed_forward=self._feed_forward(f"{prefix}.mlp"),
        )

    def _attention(self, prefix: str) -> Attention:
        config = self._config
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        projections = {f"{prefix}.q_proj": query_size, f"{prefix}.k_proj": kv_size, f"{prefix}.v_proj": kv_size}
        return Attention(
            qkv=self._linear(projections, config.hidden_size, config.attention_bias),
            output=self._linear({f"{prefix}.o_proj": config.hidden_size}, query_size, config.attention_bias),
            head_norm=self._head_norm(prefix) if config.qk_norm else None,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
        )

    def _head_norm(self, prefix: str) -> HeadNorm:
        query, key = (self._norm(f"{prefix}.{name}", self._config.head_dim) for name in ("q_norm", "k_norm"))
        return HeadNorm(query.weight, key.weight, self._config.rms_norm_eps)

    def _feed_forward(self, prefix: str) -> GatedFeedForward:
        config = self._config
        gate_up = {f"{prefix}.gate_proj": config.intermediate_size, f"{prefix}.up_proj": config.intermediate_size}
        down = {f"{prefix}.down_proj": config.hidden_size}
        return GatedFeedForward(
            gate_up=self._linear(gate_up, config.hidden_size, config.mlp_bias),
            down=self._linear(down, config.intermediate_size, config.mlp_bias),
        )

    def _head(self, embedding: Tensor) -> Linear:
        config = self._config
        if not config.tie_word_embeddings:
            return make_linear(self._counted(self._checkpoint.tensor(_HEAD, config.vocab_size, config.hidden_size)))
        head = make_linear(embedding)
        if head.copies_weight:
            self._weight_bytes += embedding.nbytes
        return head

    def _linear(self, out_features: dict[str, int], in_features: int, bias: bool) -> Linear:
        """One product for several projections of the same input, given as name → output size."""
        names, rows = list(out_features), list(out_features.values())
        weight = self._checkpoint.stacked([f"{name}.weight" for name in names], rows, in_features)
        offset = self._checkpoint.stacked([f"{name}.bias" for name in names], rows) if bias else None
        return make_linear(self._counted(weight), None if offset is None else self._counted(offset))

    def _norm(self, prefix: str, size: int) -> RMSNorm:
        return RMSNorm(self._counted(self._checkpoint.tensor(f"{prefix}.weight", size)), self._config.rms_norm_eps)

    def _counted(self, tensor: Tensor) -> Tensor:
        self._num_parameters += tensor.numel()
        self._weight_bytes += tensor.nbytes
        return tensor
