"""Encoders built like BERT (Devlin et al., 2018): positions are added to embeddings, and each sum is normalised.

Families differ in names, and in the first position.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import refuse
from fairlead_engine.kernels.attention.whole_prompts import PromptGroup, attend_whole
from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.classifier import Classifier, read_outcome
from fairlead_engine.model.encoders.encoder import Encoder, EncoderConfig, EncoderStep, read_dtype
from fairlead_engine.model.encoders.parts import ACTIVATIONS, Activation, EncoderTensors, LayerNorm, read_activation
from fairlead_engine.model.linear import Linear
from fairlead_engine.model.task import longest_prompt, read_task


@dataclass(frozen=True, slots=True, kw_only=True)
class BertConfig(EncoderConfig):
    """Of BERT and what is built like it."""

    intermediate_size: int
    num_heads: int
    num_positions: int
    """Rows of the table of positions."""
    activation: str
    norm_eps: float


@dataclass(frozen=True, slots=True)
class PlacedEmbedding:
    """Vectors of tokens, plus the vectors of their positions and types."""

    words: Tensor
    positions: Tensor
    types: Tensor | None
    norm: LayerNorm

    def __call__(self, step: EncoderStep) -> Tensor:
        """The normalised sums [tokens, hidden]."""
        found = functional.embedding(step.token_ids, self.words) + functional.embedding(step.positions, self.positions)
        if self.types is not None:
            found = found + functional.embedding(step.types, self.types)
        return self.norm(found)


@dataclass(frozen=True, slots=True)
class BertLayer:
    """Attention, then feed-forward, with a normalisation after each sum."""

    qkv: Linear
    output: Linear
    attention_norm: LayerNorm
    up: Linear
    activation: Activation
    down: Linear
    norm: LayerNorm
    num_heads: int

    def __call__(self, x: Tensor, groups: list[PromptGroup]) -> Tensor:
        """x [tokens, hidden] → the same shape."""
        query, key, value = self.qkv(x).view(len(x), 3, self.num_heads, -1).unbind(1)
        x = self.attention_norm(x + self.output(attend_whole(query, key, value, groups)))
        return self.norm(x + self.down(self.activation(self.up(x))))


@dataclass(frozen=True, slots=True)
class BertLayers:
    """The embedding and all layers."""

    embedding: PlacedEmbedding
    layers: tuple[BertLayer, ...]

    def __call__(self, step: EncoderStep) -> Tensor:
        """The last hidden states [tokens, hidden]."""
        x = self.embedding(step)
        for layer in self.layers:
            x = layer(x, step.groups[None])
        return x


class FieldNames(NamedTuple):
    """Names of the sizes in `config.json`."""

    hidden_size: str = "hidden_size"
    intermediate_size: str = "intermediate_size"
    num_layers: str = "num_hidden_layers"
    num_heads: str = "num_attention_heads"
    activation: str = "hidden_act"


class TensorNames(NamedTuple):
    """Names of a layer's parts in the checkpoint."""

    layers: str = "encoder.layer"
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    norm: str = "output.LayerNorm"


class HeadNames(NamedTuple):
    """Names of the classifier's parts."""

    dense: str
    projection: str
    activation: Activation = torch.tanh


_BERT_FIELDS = FieldNames()
_BERT_TENSORS = TensorNames()


@dataclass(frozen=True, slots=True)
class BertFamily:
    """A family's `model_type`, prefix of tensors' names, and other differences."""

    model_type: str
    prefix: str
    head: HeadNames
    fields: FieldNames = _BERT_FIELDS
    tensors: TensorNames = _BERT_TENSORS
    positions_after_padding: bool = False
    """Whether positions begin behind the number of the padding token, which has none."""

    def parse(self, fields: JsonFields, architecture: str) -> BertConfig:
        """As `EncoderFamily` says."""
        names = self.fields
        hidden_size, num_heads = fields.positive_int(names.hidden_size), fields.positive_int(names.num_heads)
        if hidden_size % num_heads:
            raise fields.invalid(names.num_heads, f"must divide {names.hidden_size} ({hidden_size})")
        activation = read_activation(fields, names.activation)
        kind = fields.text("position_embedding_type") or "absolute"
        if kind != "absolute":
            raise refuse(f"position_embedding_type {kind}", "absolute positions are supported")
        if fields.boolean("is_decoder", False):
            raise refuse("is_decoder true", "encoders are supported")
        dtype = read_dtype(fields)
        padding = None
        if self.positions_after_padding:
            padding = next(iter(fields.token_ids("pad_token_id")), 1)
        first = 0 if padding is None else padding + 1
        num_positions = fields.positive_int("max_position_embeddings", 512)
        if num_positions <= first:
            raise fields.invalid("max_position_embeddings", f"must be above {first}, the first token's position")
        task = read_task(fields, architecture, sees_all=True)
        return BertConfig(
            architecture=architecture,
            vocab_size=fields.positive_int("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=fields.positive_int(names.intermediate_size),
            num_layers=fields.positive_int(names.num_layers),
            num_heads=num_heads,
            num_types=0 if self.model_type == "distilbert" else fields.positive_int("type_vocab_size", 2),
            num_positions=num_positions,
            first_position=first,
            padding=padding,
            activation=activation,
            norm_eps=fields.positive_number("layer_norm_eps", 1e-12),
            longest_prompt=longest_prompt(fields.path.parent, num_positions - first),
            outcome=read_outcome(fields, len(task.labels)),
            dtype=dtype,
            task=task,
        )

    def build(self, checkpoint: Checkpoint, config: EncoderConfig) -> Encoder:
        """As `EncoderFamily` says."""
        assert isinstance(config, BertConfig)
        return _Builder(self, checkpoint, config).encoder()


class _Builder:
    """Makes the layers of one model."""

    def __init__(self, family: BertFamily, checkpoint: Checkpoint, config: BertConfig) -> None:
        self._family = family
        self._checkpoint = checkpoint
        self._config = config
        self._tensors = EncoderTensors(checkpoint)
        prefix = f"{family.prefix}."
        self._prefix = prefix if checkpoint.has(f"{prefix}embeddings.word_embeddings.weight") else ""

    def encoder(self) -> Encoder:
        config, table, tensors = self._config, f"{self._prefix}embeddings", self._tensors
        for name in ("embeddings.position_ids", "embeddings.token_type_ids"):
            self._checkpoint.skip(f"{self._prefix}{name}")
        embedding = PlacedEmbedding(
            words=tensors.tensor(f"{table}.word_embeddings.weight", config.vocab_size, config.hidden_size),
            positions=tensors.tensor(f"{table}.position_embeddings.weight", config.num_positions, config.hidden_size),
            types=tensors.tensor(f"{table}.token_type_embeddings.weight", config.num_types, config.hidden_size)
            if config.num_types
            else None,
            norm=self._norm(f"{table}.LayerNorm"),
        )
        layers = tuple(
            self._layer(f"{self._prefix}{self._family.tensors.layers}.{index}") for index in range(config.num_layers)
        )
        classifier = self._classifier() if config.task.labels else None
        for part in ("weight", "bias"):  # of a head that the vectors are not made with
            self._checkpoint.skip(f"{self._prefix}pooler.dense.{part}")
        self._checkpoint.check_all_read()
        return Encoder(
            config=config,
            layers=BertLayers(embedding, layers),
            classifier=classifier,
            num_parameters=tensors.num_parameters,
            weight_bytes=tensors.weight_bytes,
        )

    def _layer(self, prefix: str) -> BertLayer:
        names, hidden, inner = self._family.tensors, self._config.hidden_size, self._config.intermediate_size
        projections = {f"{prefix}.{name}": hidden for name in (names.query, names.key, names.value)}
        return BertLayer(
            qkv=self._tensors.linear(projections, hidden),
            output=self._tensors.linear({f"{prefix}.{names.output}": hidden}, hidden),
            attention_norm=self._norm(f"{prefix}.{names.attention_norm}"),
            up=self._tensors.linear({f"{prefix}.{names.up}": inner}, hidden),
            activation=ACTIVATIONS[self._config.activation],
            down=self._tensors.linear({f"{prefix}.{names.down}": hidden}, inner),
            norm=self._norm(f"{prefix}.{names.norm}"),
            num_heads=self._config.num_heads,
        )

    def _classifier(self) -> Classifier:
        head, hidden = self._family.head, self._config.hidden_size
        return Classifier(
            dense=self._tensors.linear({head.dense: hidden}, hidden),
            activation=head.activation,
            projection=self._tensors.linear({head.projection: len(self._config.task.labels)}, hidden),
            outcome=self._config.outcome,
            dtype=self._tensors.dtype,
        )

    def _norm(self, name: str) -> LayerNorm:
        return self._tensors.norm(name, self._config.hidden_size, self._config.norm_eps)


BERT = BertFamily("bert", "bert", HeadNames("bert.pooler.dense", "classifier"))
"""arXiv 1810.04805."""
ROBERTA = BertFamily(
    "roberta", "roberta", HeadNames("classifier.dense", "classifier.out_proj"), positions_after_padding=True
)
"""arXiv 1907.11692; XLM-RoBERTa (arXiv 1911.02116) is the same with another vocabulary."""
DISTILBERT = BertFamily(
    "distilbert",
    "distilbert",
    HeadNames("pre_classifier", "classifier", functional.relu),
    FieldNames("dim", "hidden_dim", "n_layers", "n_heads", "activation"),
    TensorNames(
        "transformer.layer", "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin",
        "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm",
    ),
)  # fmt: skip
"""arXiv 1910.01108."""
