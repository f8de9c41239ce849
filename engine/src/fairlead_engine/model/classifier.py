"""The classifier on top of a model: from the vector of a prompt to a number for each label."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.model_task import LabelOutcome
from fairlead_engine.model.linear import Linear

_ACTIVATIONS = {"Sigmoid": LabelOutcome.SIGMOID, "Identity": LabelOutcome.PLAIN}
"""By their names in sentence-transformers' cross-encoders."""


@dataclass(frozen=True, slots=True)
class Classifier:
    """A projection, perhaps behind a dense layer."""

    dense: Linear | None
    activation: Callable[[Tensor], Tensor]
    """Behind `dense`."""
    projection: Linear
    outcome: LabelOutcome
    dtype: torch.dtype
    """Of the weights."""

    def __call__(self, vectors: Tensor) -> Tensor:
        """vectors [rows, hidden] → float32 [rows, labels]."""
        vectors = vectors.to(self.dtype)
        if self.dense is not None:
            vectors = self.activation(self.dense(vectors))
        logits = self.projection(vectors).float()
        if self.outcome is LabelOutcome.SIGMOID:
            return logits.sigmoid()
        return logits.softmax(-1) if self.outcome is LabelOutcome.SOFTMAX else logits


def read_outcome(fields: JsonFields, num_labels: int) -> LabelOutcome:
    """From `config.json`: the activation of a cross-encoder's training, or the kind of problem; without both, a single
    label is a probability by itself, and several share one. Raises ModelLoadError for another activation."""
    newer = fields.section("sentence_transformers")
    if newer is not None and newer.has("activation_fn"):
        return _named(newer, "activation_fn")
    if fields.has("sbert_ce_default_activation_function"):
        return _named(fields, "sbert_ce_default_activation_function")
    problem = fields.text("problem_type")
    if problem == "regression":
        return LabelOutcome.PLAIN
    return LabelOutcome.SIGMOID if num_labels == 1 or problem == "multi_label_classification" else LabelOutcome.SOFTMAX


def _named(fields: JsonFields, name: str) -> LabelOutcome:
    outcome = _ACTIVATIONS.get((fields.text(name) or "").rpartition(".")[2])
    if outcome is None:
        raise fields.unsupported(name, f"supported are {' and '.join(_ACTIVATIONS)}")
    return outcome
