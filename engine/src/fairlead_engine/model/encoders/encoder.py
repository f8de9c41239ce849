"""A loaded encoder, and its shape, whatever its layers.

A runner calls an `Encoder` once per step, with all prompts' tokens one after the other; nothing is kept.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from torch import Tensor

from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import refuse
from fairlead_common.models.model_task import LabelOutcome
from fairlead_engine.kernels.attention.whole_prompts import Groups, Reach
from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.classifier import Classifier
from fairlead_engine.model.encoders.dense_modules import DenseConfig, VectorProjection
from fairlead_engine.types import ModelTask


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """The shape of an encoder; `ModelConfig` is a decoder's."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_types: int = 0
    """Types of tokens: of a first text, and of a second; 0 = without such a table."""
    first_position: int = 0
    """The first token's."""
    padding: int | None = None
    """Token at the position before the first, not counted; None = every token has a separate position."""
    reaches: tuple[Reach, ...] = (None,)
    """Those of its layers, each once."""
    longest_prompt: int
    """Most tokens of a prompt."""
    outcome: LabelOutcome = LabelOutcome.PLAIN
    """Of its classifier's outputs."""
    dtype: str
    """Number format the checkpoint was saved in: float32, bfloat16 or float16."""
    task: ModelTask
    dense: tuple[DenseConfig, ...] = ()
    """What pooled vectors go through."""
    eos_token_ids: tuple[int, ...] = field(default=(), init=False)

    @property
    def vector_size(self) -> int:
        """Elements of the vector of a text."""
        return self.dense[-1].out_features if self.dense else self.hidden_size

    @property
    def max_position_embeddings(self) -> int:
        """Longest context: a prompt, and one place more."""
        return self.longest_prompt + 1


class EncoderStep(NamedTuple):
    """The prompts of one step, one after the other."""

    token_ids: Tensor
    """int64 [tokens]."""
    positions: Tensor
    """int64 [tokens]: place of each token in its prompt, from `first_position` on."""
    types: Tensor
    """int64 [tokens]: type of each."""
    groups: Groups
    """For each of `EncoderConfig.reaches`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """A loaded model: immutable."""

    config: EncoderConfig
    layers: Callable[[EncoderStep], Tensor]
    """From tokens to hidden states [tokens, hidden]."""
    classifier: Classifier | None
    projection: VectorProjection | None = None
    """Of pooled vectors; None = they stay as they are."""
    num_parameters: int
    weight_bytes: int

    def __call__(self, step: EncoderStep) -> Tensor:
        """The last hidden states [tokens, hidden]."""
        return self.layers(step)


class EncoderFamily(Protocol):
    """Models with the same kind of layer."""

    def parse(self, fields: JsonFields, architecture: str) -> EncoderConfig:
        """Raises ModelLoadError: ModelConfigInvalid, or UnsupportedArchitecture for a kind without a layer here."""

    def build(self, checkpoint: Checkpoint, config: EncoderConfig) -> Encoder:
        """Reads the weights of a config of `parse`. Raises ModelLoadError, naming the tensor that does not fit."""


def read_dtype(fields: JsonFields) -> str:
    """Of the checkpoint. Raises ModelLoadError."""
    dtype = fields.text("dtype") or fields.text("torch_dtype") or "float32"
    if dtype not in ("float32", "bfloat16", "float16"):
        raise refuse(f"dtype {dtype}", "supported are float32, bfloat16 and float16")
    return dtype
