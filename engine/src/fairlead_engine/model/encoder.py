"""Encoders: models in which each token of a prompt sees all others. Whole prompts in, hidden states of all tokens out.

A runner calls an `Encoder` once per step, with all prompts' tokens one after the other; nothing is kept. `ENCODERS` has
the families by the architecture named in `config.json`: names differ, and the first position. Source: BERT (Devlin et
al., 2018).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fairlead_common.models.families.registry import find_encoder
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import refuse
from fairlead_common.models.model_task import LabelOutcome
from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.kernels.attention.whole_prompts import PromptGroup, attend_whole
from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.classifier import Classifier, read_outcome
from fairlead_engine.model.linear import Linear, make_linear
from fairlead_engine.model.task import longest_prompt, read_task
from fairlead_engine.types import ModelTask


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """The shape of an encoder; `ModelConfig` is a decoder's."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_types: int
    """Types of tokens: of a first text, and of a second; 0 = without such a table."""
    num_positions: int
    """Rows of the table of positions."""
    first_position: int
    """The first token's row."""
    padding: int | None = None
    """Token at the position before the first, not counted; None = every token has a separate position."""
    activation: str
    norm_eps: float
    longest_prompt: int
    """Most tokens of a prompt."""
    outcome: LabelOutcome = LabelOutcome.PLAIN
    """Of its classifier's outputs."""
    dtype: str
    """Number format the checkpoint was saved in: float32, bfloat16 or float16."""
    task: ModelTask
    eos_token_ids: tuple[int, ...] = field(default=(), init=False)

    @property
    def max_position_embeddings(self) -> int:
        """Longest context: a prompt, and one place more."""
        return self.longest_prompt + 1


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Normalises mean and spread of each row."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True)
class PlacedEmbedding:
    """Vectors of tokens, plus the vectors of their positions and types."""

    words: Tensor
    positions: Tensor
    types: Tensor | None
    norm: LayerNorm

    def __call__(self, token_ids: Tensor, positions: Tensor, types: Tensor) -> Tensor:
        """int64 [tokens] each → [tokens, hidden]."""
        found = functional.embedding(token_ids, self.words) + functional.embedding(positions, self.positions)
        if self.types is not None:
            found = found + functional.embedding(types, self.types)
        return self.norm(found)


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """Attention, then feed-forward, with a normalisation after each sum."""

    qkv: Linear
    output: Linear
    attention_norm: LayerNorm
    up: Linear
    activation: Callable[[Tensor], Tensor]
    down: Linear
    norm: LayerNorm
    num_heads: int

    def __call__(self, x: Tensor, groups: list[PromptGroup]) -> Tensor:
        """x [tokens, hidden] → the same shape."""
        query, key, value = self.qkv(x).view(len(x), 3, self.num_heads, -1).unbind(1)
        x = self.attention_norm(x + self.output(attend_whole(query, key, value, groups)))
        return self.norm(x + self.down(self.activation(self.up(x))))


@dataclass(frozen=True, slots=True)
class Encoder:
    """A loaded model: immutable."""

    config: EncoderConfig
    embedding: PlacedEmbedding
    layers: tuple[EncoderLayer, ...]
    classifier: Classifier | None
    num_parameters: int
    weight_bytes: int

    def __call__(self, token_ids: Tensor, positions: Tensor, types: Tensor, groups: list[PromptGroup]) -> Tensor:
        """int64 [tokens] each, and the prompts' `groups` → [tokens, hidden]."""
        x = self.embedding(token_ids, positions, types)
        for layer in self.layers:
            x = layer(x, groups)
        return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
}


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
    activation: Callable[[Tensor], Tensor] = torch.tanh


_BERT_FIELDS = FieldNames()
_BERT_TENSORS = TensorNames()


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """A family's `model_type`, prefix of tensors' names, and other differences."""

    model_type: str
    prefix: str
    head: HeadNames
    fields: FieldNames = _BERT_FIELDS
    tensors: TensorNames = _BERT_TENSORS
    positions_after_padding: bool = False
    """Whether positions begin behind the number of the padding token, which has none."""

    def parse(self, fields: JsonFields, architecture: str) -> EncoderConfig:
        """Raises ModelLoadError: ModelConfigInvalid, or UnsupportedArchitecture for a kind without a layer here."""
        names = self.fields
        hidden_size, num_heads = fields.positive_int(names.hidden_size), fields.positive_int(names.num_heads)
        if hidden_size % num_heads:
            raise fields.invalid(names.num_heads, f"must divide {names.hidden_size} ({hidden_size})")
        activation = fields.text(names.activation) or "gelu"
        if activation not in ACTIVATIONS:
            raise refuse(f"{names.activation} {activation}", f"supported are {', '.join(ACTIVATIONS)}")
        kind = fields.text("position_embedding_type") or "absolute"
        if kind != "absolute":
            raise refuse(f"position_embedding_type {kind}", "absolute positions are supported")
        if fields.boolean("is_decoder", False):
            raise refuse("is_decoder true", "encoders are supported")
        dtype = fields.text("dtype") or fields.text("torch_dtype") or "float32"
        if dtype not in ("float32", "bfloat16", "float16"):
            raise refuse(f"dtype {dtype}", "supported are float32, bfloat16 and float16")
        padding = None
        if self.positions_after_padding:
            padding = next(iter(fields.token_ids("pad_token_id")), 1)
        first = 0 if padding is None else padding + 1
        num_positions = fields.positive_int("max_position_embeddings", 512)
        if num_positions <= first:
            raise fields.invalid("max_position_embeddings", f"must be above {first}, the first token's position")
        task = read_task(fields, architecture, sees_all=True)
        return EncoderConfig(
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


class _Builder:
    """Reads and counts the tensors of one model."""

    def __init__(self, family: EncoderFamily, checkpoint: Checkpoint, config: EncoderConfig) -> None:
        self._family = family
        self._checkpoint = checkpoint
        self._config = config
        self._num_parameters = 0
        self._weight_bytes = 0
        prefix = f"{family.prefix}."
        self._prefix = prefix if checkpoint.has(f"{prefix}embeddings.word_embeddings.weight") else ""

    def encoder(self) -> Encoder:
        config, table = self._config, f"{self._prefix}embeddings"
        for name in ("embeddings.position_ids", "embeddings.token_type_ids"):
            self._checkpoint.skip(f"{self._prefix}{name}")
        embedding = PlacedEmbedding(
            words=self._tensor(f"{table}.word_embeddings.weight", config.vocab_size, config.hidden_size),
            positions=self._tensor(f"{table}.position_embeddings.weight", config.num_positions, config.hidden_size),
            types=self._tensor(f"{table}.token_type_embeddings.weight", config.num_types, config.hidden_size)
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
        return Encoder(config, embedding, layers, classifier, self._num_parameters, self._weight_bytes)

    def _layer(self, prefix: str) -> EncoderLayer:
        names, hidden, inner = self._family.tensors, self._config.hidden_size, self._config.intermediate_size
        projections = {f"{prefix}.{name}": hidden for name in (names.query, names.key, names.value)}
        return EncoderLayer(
            qkv=self._linear(projections, hidden),
            output=self._linear({f"{prefix}.{names.output}": hidden}, hidden),
            attention_norm=self._norm(f"{prefix}.{names.attention_norm}"),
            up=self._linear({f"{prefix}.{names.up}": inner}, hidden),
            activation=ACTIVATIONS[self._config.activation],
            down=self._linear({f"{prefix}.{names.down}": hidden}, inner),
            norm=self._norm(f"{prefix}.{names.norm}"),
            num_heads=self._config.num_heads,
        )

    def _classifier(self) -> Classifier:
        head, hidden = self._family.head, self._config.hidden_size
        return Classifier(
            dense=self._linear({head.dense: hidden}, hidden),
            activation=head.activation,
            projection=self._linear({head.projection: len(self._config.task.labels)}, hidden),
            outcome=self._config.outcome,
            dtype=self._checkpoint.dtype,
        )

    def _linear(self, out_features: dict[str, int], in_features: int) -> Linear:
        names, rows = list(out_features), list(out_features.values())
        weight = self._checkpoint.stacked([f"{name}.weight" for name in names], rows, in_features)
        bias = self._checkpoint.stacked([f"{name}.bias" for name in names], rows)
        self._count(weight)
        self._count(bias)
        return make_linear(weight, bias)

    def _norm(self, name: str) -> LayerNorm:
        size = self._config.hidden_size
        return LayerNorm(
            self._tensor(f"{name}.weight", size), self._tensor(f"{name}.bias", size), self._config.norm_eps
        )

    def _tensor(self, name: str, *shape: int) -> Tensor:
        found = self._checkpoint.tensor(name, *shape)
        self._count(found)
        return found

    def _count(self, tensor: Tensor) -> None:
        self._num_parameters += tensor.numel()
        self._weight_bytes += tensor.nbytes


BERT = EncoderFamily("bert", "bert", HeadNames("bert.pooler.dense", "classifier"))
"""arXiv 1810.04805."""
ROBERTA = EncoderFamily(
    "roberta", "roberta", HeadNames("classifier.dense", "classifier.out_proj"), positions_after_padding=True
)
"""arXiv 1907.11692; XLM-RoBERTa (arXiv 1911.02116) is the same with another vocabulary."""
DISTILBERT = EncoderFamily(
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

ENCODERS: dict[str, EncoderFamily] = {
    "BertModel": BERT,
    "BertForSequenceClassification": BERT,
    "DistilBertModel": DISTILBERT,
    "DistilBertForSequenceClassification": DISTILBERT,
    "RobertaModel": ROBERTA,
    "RobertaForSequenceClassification": ROBERTA,
    "XLMRobertaModel": ROBERTA,
    "XLMRobertaForSequenceClassification": ROBERTA,
}
"""As `architectures` in `config.json` spells them."""


def read_encoder_config(folder: Path) -> EncoderConfig:
    """Raises ModelLoadError: ModelNotFound, ModelConfigInvalid or UnsupportedArchitecture."""
    fields = JsonFields.read(folder / "config.json")
    architecture = find_encoder(fields)
    if architecture is None:
        raise ModelLoadError(
            ModelLoadReason.UNSUPPORTED_ARCHITECTURE, f"config.json names none of {', '.join(ENCODERS)}"
        )
    return ENCODERS[architecture].parse(fields, architecture)


def load_encoder(folder: Path, config: EncoderConfig, dtype: torch.dtype, device: torch.device) -> Encoder:
    """Reads the weights. Raises ModelLoadError, naming the file or tensor that does not fit."""
    with torch.inference_mode(), Checkpoint(folder, dtype, device) as checkpoint:
        return _Builder(ENCODERS[config.architecture], checkpoint, config).encoder()
