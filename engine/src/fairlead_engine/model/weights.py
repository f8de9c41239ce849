"""From a checkpoint's tensors to the shared layers, under the names that most families give them.

A family's `build` says which it takes and with what; names, shapes and what was left over are checked here.
"""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.kernels.norm_rope import HeadNorm
from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.layers import Attention, DecoderLayer, FeedForward, GatedFeedForward, RMSNorm
from fairlead_engine.model.linear import Linear, make_linear
from fairlead_engine.model.model_config import ModelConfig
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight
from fairlead_engine.model.quantization.source import WeightSource
from fairlead_engine.model.quantization.weight_format import WeightFormat
from fairlead_engine.model.rope import RotaryEmbedding

_HEAD = "lm_head"


class Weights:
    """Makes layers, and counts what it read. Raises ModelLoadError, naming the file or tensor that does not fit."""

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig, source: WeightSource) -> None:
        """`source`: which of the linear layers are quantised, and how."""
        self._checkpoint = checkpoint
        self._source = source
        self._config = config
        self._num_parameters = 0
        self._weight_bytes = 0

    def decoder(self, attention: Callable[[str], Attention], feed_forward: Callable[[str], FeedForward]) -> Decoder:
        """The whole model; both make a layer's part, given the layer's name. No tensor may be left over."""
        config = self._config
        embedding = self._counted(
            self._checkpoint.tensor("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        )
        layers = tuple(
            DecoderLayer(
                attention_norm=self.norm(f"{prefix}.input_layernorm", config.hidden_size),
                attention=attention(prefix),
                feed_forward_norm=self.norm(f"{prefix}.post_attention_layernorm", config.hidden_size),
                feed_forward=feed_forward(prefix),
            )
            for prefix in (f"model.layers.{index}" for index in range(config.num_layers))
        )
        final_norm = self.norm("model.norm", config.hidden_size)
        if config.tie_word_embeddings:
            head = make_linear(embedding)
            self._weight_bytes += embedding.nbytes * head.copies_weight
        else:
            head = self.linear({_HEAD: config.vocab_size}, config.hidden_size, is_sensitive=True)
        self._checkpoint.check_all_read(unless=f"{_HEAD}.weight" if config.tie_word_embeddings else None)
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

    def attention(
        self, prefix: str, *, qkv_bias: bool = False, output_bias: bool = False, norms_heads: bool = False
    ) -> Attention:
        """A layer's `self_attn`."""
        config, prefix = self._config, f"{prefix}.self_attn"
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        projections = {f"{prefix}.q_proj": query_size, f"{prefix}.k_proj": kv_size, f"{prefix}.v_proj": kv_size}
        head_norm = None
        if norms_heads:
            query, key = (self.norm(f"{prefix}.{name}", config.head_dim) for name in ("q_norm", "k_norm"))
            head_norm = HeadNorm(query.weight, key.weight, config.rms_norm_eps)
        return Attention(
            qkv=self.linear(projections, config.hidden_size, bias=qkv_bias),
            output=self.linear({f"{prefix}.o_proj": config.hidden_size}, query_size, bias=output_bias),
            head_norm=head_norm,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
        )

    def feed_forward(
        self, prefix: str, *, bias: bool = False, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj"
    ) -> GatedFeedForward:
        """The gated feed-forward of that name; its three projections may be called otherwise."""
        hidden, inner = self._config.hidden_size, self._config.intermediate_size
        return GatedFeedForward(
            gate_up=self.linear({f"{prefix}.{gate}": inner, f"{prefix}.{up}": inner}, hidden, bias=bias),
            down=self.linear({f"{prefix}.{down}": hidden}, inner, bias=bias),
        )

    def linear(
        self, out_features: Mapping[str, int], in_features: int, *, bias: bool = False, is_sensitive: bool = False
    ) -> Linear:
        """One product for several projections of the same input, given as name → output size.

        `is_sensitive`: whether it keeps its precision where others lose some, as a router does and the output.
        """
        names, rows = list(out_features), list(out_features.values())
        offset = self._checkpoint.stacked([f"{name}.bias" for name in names], rows) if bias else None
        if offset is not None:
            self._counted(offset)
        weight_format = self._format_of(names, is_sensitive)
        if weight_format is None:
            weight = self._checkpoint.stacked([f"{name}.weight" for name in names], rows, in_features)
            return make_linear(self._counted(weight), offset)
        parts = [self._source.read(self._checkpoint, name, size, in_features) for name, size in out_features.items()]
        linear = weight_format.linear(QuantizedWeight.stacked(parts), offset, self._checkpoint.dtype)
        self._num_parameters += sum(rows) * in_features
        self._weight_bytes += linear.weight_bytes
        return linear

    def _format_of(self, names: Sequence[str], is_sensitive: bool) -> WeightFormat | None:
        """The one that all of them have: they become one product."""
        formats = {name: self._source.format_of(self._checkpoint, name, is_sensitive) for name in names}
        if len(set(formats.values())) > 1:
            told = ", ".join(f"{name}: {each.name if each else 'none'}" for name, each in formats.items())
            raise ModelLoadError(
                ModelLoadReason.UNSUPPORTED_ARCHITECTURE,
                f"config.json: quantization_config gives projections of one input different formats ({told}), and this "
                "engine computes them as one product; use a checkpoint that quantises all of them alike",
            )
        return formats[names[0]]

    def norm(self, name: str, size: int) -> RMSNorm:
        return RMSNorm(self._counted(self._checkpoint.tensor(f"{name}.weight", size)), self._config.rms_norm_eps)

    def _counted(self, tensor: Tensor) -> Tensor:
        self._num_parameters += tensor.numel()
        self._weight_bytes += tensor.nbytes
        return tensor
