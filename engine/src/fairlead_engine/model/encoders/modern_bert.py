"""ModernBERT (arXiv 2412.13663): rotated positions, gated feed-forwards, and normalisations before each part.

Some layers see the whole prompt, the others a few tokens on each side, with positions of another base.
"""

from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import refuse
from fairlead_common.models.model_config import check_kinds
from fairlead_common.models.rope_config import RopeConfig, RopeKind, parse_rope
from fairlead_engine.kernels.attention.whole_prompts import PromptGroup, Reach, attend_whole
from fairlead_engine.kernels.norm_rope_store import rotate
from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.classifier import Classifier, read_outcome
from fairlead_engine.model.encoders.encoder import Encoder, EncoderConfig, EncoderStep, read_dtype
from fairlead_engine.model.encoders.parts import ACTIVATIONS, Activation, EncoderTensors, LayerNorm, read_activation
from fairlead_engine.model.layers import Rotation
from fairlead_engine.model.linear import Linear
from fairlead_engine.model.rope import RotaryEmbedding
from fairlead_engine.model.task import longest_prompt, read_task
from fairlead_engine.types import ModelTask, Pooling

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_GLOBAL_BASE, _LOCAL_BASE = 160_000.0, 10_000.0
_POOLINGS = {"cls": Pooling.CLS, "mean": Pooling.MEAN}
"""Of classifiers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernBertConfig(EncoderConfig):
    """Of ModernBERT."""

    intermediate_size: int
    num_heads: int
    layer_reaches: tuple[Reach, ...]
    """Of each layer."""
    rope: RopeConfig
    local_rope: RopeConfig
    """Of layers with a reach."""
    activation: str
    head_activation: str
    """Of the classifier."""
    norm_eps: float
    norm_bias: bool
    attention_bias: bool
    inner_bias: bool
    """Whether feed-forwards have biases."""
    head_bias: bool
    """Whether the classifier's dense layer has one."""


@dataclass(frozen=True, slots=True)
class ModernBertLayer:
    """Attention, then feed-forward, each of which adds to the stream."""

    attention_norm: LayerNorm | None
    """None = the stream is normalised already."""
    qkv: Linear
    output: Linear
    norm: LayerNorm
    gate_up: Linear
    activation: Activation
    down: Linear
    num_heads: int
    reach: Reach

    def __call__(self, stream: Tensor, rotation: Rotation, groups: list[PromptGroup]) -> Tensor:
        """stream [tokens, hidden] → the same shape; the rotation is in float32."""
        seen = stream if self.attention_norm is None else self.attention_norm(stream)
        heads = self.qkv(seen).view(len(seen), 3 * self.num_heads, -1)
        turned, value = torch.split(heads, [2 * self.num_heads, self.num_heads], dim=1)
        turned = rotate(turned.float(), rotation.cosines, rotation.sines).to(value.dtype)
        query, key = torch.split(turned, self.num_heads, dim=1)
        stream = stream + self.output(attend_whole(query, key, value, groups))
        gate, up = self.gate_up(self.norm(stream)).chunk(2, dim=-1)
        return stream + self.down(self.activation(gate) * up)


@dataclass(frozen=True, slots=True)
class ModernBertLayers:
    """The embedding and all layers."""

    words: Tensor
    norm: LayerNorm
    rotary: RotaryEmbedding
    local_rotary: RotaryEmbedding
    layers: tuple[ModernBertLayer, ...]
    final_norm: LayerNorm

    def __call__(self, step: EncoderStep) -> Tensor:
        """The last hidden states [tokens, hidden]."""
        everywhere, local = (
            Rotation(*rotary(step.positions, torch.float32)) for rotary in (self.rotary, self.local_rotary)
        )
        stream = self.norm(functional.embedding(step.token_ids, self.words))
        for layer in self.layers:
            stream = layer(stream, everywhere if layer.reach is None else local, step.groups[layer.reach])
        return self.final_norm(stream)


class ModernBertFamily:
    """An `EncoderFamily`."""

    def parse(self, fields: JsonFields, architecture: str) -> ModernBertConfig:
        """As `EncoderFamily` says."""
        hidden_size, num_heads = fields.positive_int("hidden_size"), fields.positive_int("num_attention_heads")
        if hidden_size % (2 * num_heads):
            problem = f"must divide hidden_size ({hidden_size}) into even numbers: positions turn pairs of elements"
            raise fields.invalid("num_attention_heads", problem)
        task = read_task(fields, architecture, sees_all=True)
        reaches = _reaches(fields)
        rope, local_rope = _ropes(fields)
        return ModernBertConfig(
            architecture=architecture,
            vocab_size=fields.positive_int("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=fields.positive_int("intermediate_size"),
            num_layers=len(reaches),
            num_heads=num_heads,
            reaches=tuple(dict.fromkeys(reaches)),
            layer_reaches=reaches,
            rope=rope,
            local_rope=local_rope,
            activation=read_activation(fields, "hidden_activation"),
            head_activation=read_activation(fields, "classifier_activation"),
            norm_eps=fields.positive_number("norm_eps", 1e-5),
            norm_bias=fields.boolean("norm_bias", False),
            attention_bias=fields.boolean("attention_bias", False),
            inner_bias=fields.boolean("mlp_bias", False),
            head_bias=fields.boolean("classifier_bias", False),
            longest_prompt=longest_prompt(fields.path.parent, fields.positive_int("max_position_embeddings", 8192)),
            outcome=read_outcome(fields, len(task.labels)),
            dtype=read_dtype(fields),
            task=_pooled(fields, task),
        )

    def build(self, checkpoint: Checkpoint, config: EncoderConfig) -> Encoder:
        """As `EncoderFamily` says."""
        assert isinstance(config, ModernBertConfig)
        tensors, table = EncoderTensors(checkpoint), "embeddings.tok_embeddings.weight"
        prefix = "model." if checkpoint.has(f"model.{table}") else ""
        head_dim = config.hidden_size // config.num_heads
        layers = ModernBertLayers(
            words=tensors.tensor(f"{prefix}{table}", config.vocab_size, config.hidden_size),
            norm=_norm(tensors, config, f"{prefix}embeddings.norm"),
            rotary=RotaryEmbedding(config.rope, head_dim, tensors.device),
            local_rotary=RotaryEmbedding(config.local_rope, head_dim, tensors.device),
            layers=tuple(_layer(tensors, config, prefix, index) for index in range(config.num_layers)),
            final_norm=_norm(tensors, config, f"{prefix}final_norm"),
        )
        classifier = _classifier(tensors, config) if config.task.labels else None
        checkpoint.check_all_read()
        return Encoder(
            config=config,
            layers=layers,
            classifier=classifier,
            num_parameters=tensors.num_parameters,
            weight_bytes=tensors.weight_bytes,
        )


def _reaches(fields: JsonFields) -> tuple[Reach, ...]:
    """Of each layer. `local_attention` counts the tokens of both sides."""
    num_layers, kinds = fields.positive_int("num_hidden_layers"), fields.texts("layer_types")
    every = fields.positive_int("global_attn_every_n_layers", 3)
    if kinds:
        check_kinds(fields, kinds, num_layers)
    kinds = kinds or [_LOCAL if index % every else _GLOBAL for index in range(num_layers)]
    reach = fields.positive_int("local_attention", 128) // 2
    return tuple(reach if kind == _LOCAL else None for kind in kinds)


def _ropes(fields: JsonFields) -> tuple[RopeConfig, RopeConfig]:
    """Of global and of local layers; a base of local layers that is null is the global base."""
    base = fields.positive_number("global_rope_theta", _GLOBAL_BASE)
    has_none = fields.names("local_rope_theta") and not fields.has("local_rope_theta")
    local_base = base if has_none else fields.positive_number("local_rope_theta", _LOCAL_BASE)
    ropes = parse_rope(fields, base, _GLOBAL), parse_rope(fields, local_base, _LOCAL)
    if RopeKind.LONGROPE in [rope.kind for rope in ropes]:
        raise refuse("rotary scaling longrope", "its factors depend on the length of a text; use another model")
    return ropes


def _pooled(fields: JsonFields, task: ModelTask) -> ModelTask:
    """With the classifier's pooling. Raises ModelLoadError for an unknown one."""
    name = fields.text("classifier_pooling") or "cls"
    if name not in _POOLINGS:
        raise fields.unsupported("classifier_pooling", f"supported are {' and '.join(_POOLINGS)}")
    return msgspec.structs.replace(task, pooling=_POOLINGS[name]) if task.labels else task


def _layer(tensors: EncoderTensors, config: ModernBertConfig, prefix: str, index: int) -> ModernBertLayer:
    hidden, inner, prefix = config.hidden_size, config.intermediate_size, f"{prefix}layers.{index}"
    return ModernBertLayer(
        attention_norm=_norm(tensors, config, f"{prefix}.attn_norm") if index else None,
        qkv=tensors.linear({f"{prefix}.attn.Wqkv": 3 * hidden}, hidden, bias=config.attention_bias),
        output=tensors.linear({f"{prefix}.attn.Wo": hidden}, hidden, bias=config.attention_bias),
        norm=_norm(tensors, config, f"{prefix}.mlp_norm"),
        gate_up=tensors.linear({f"{prefix}.mlp.Wi": 2 * inner}, hidden, bias=config.inner_bias),
        activation=ACTIVATIONS[config.activation],
        down=tensors.linear({f"{prefix}.mlp.Wo": hidden}, inner, bias=config.inner_bias),
        num_heads=config.num_heads,
        reach=config.layer_reaches[index],
    )


def _classifier(tensors: EncoderTensors, config: ModernBertConfig) -> Classifier:
    hidden, activation = config.hidden_size, ACTIVATIONS[config.head_activation]
    norm = _norm(tensors, config, "head.norm")
    return Classifier(
        dense=tensors.linear({"head.dense": hidden}, hidden, bias=config.head_bias),
        activation=lambda x: norm(activation(x)),
        projection=tensors.linear({"classifier": len(config.task.labels)}, hidden),
        outcome=config.outcome,
        dtype=tensors.dtype,
    )


def _norm(tensors: EncoderTensors, config: ModernBertConfig, name: str) -> LayerNorm:
    return tensors.norm(name, config.hidden_size, config.norm_eps, bias=config.norm_bias)


MODERN_BERT = ModernBertFamily()
