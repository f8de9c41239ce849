"""Drafts of the layer for multi-token prediction that comes with the model's checkpoint."""

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from fairlead_engine.config import EngineConfig
from fairlead_engine.errors import ConfigError
from fairlead_engine.kernels.attention.backend import LayerCache
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.guessing_layer import GuessingLayer
from fairlead_engine.model.layers import ForwardInput
from fairlead_engine.runner.drafter import check_width
from fairlead_engine.runner.layer_drafts import LayerDrafts
from fairlead_engine.runner.model_part import ModelPart
from fairlead_engine.speculative.tree_shape import StaticTree


class MtpDrafts(LayerDrafts):
    """Drafts of `Decoder.guessing`, which sees the inputs of the model's output projection."""

    @classmethod
    def load(cls, config: EngineConfig, part: ModelPart) -> Self:
        """Raises ConfigError for a family whose layer is not read, and for a tree that is wider than the vocabulary."""
        model, tree = part.model, config.tree
        if not isinstance(model, Decoder) or model.guessing is None:
            problem = f"is mtp, and a layer of {part.config.architecture} that guesses is not read here"
            raise ConfigError("speculative_method", problem, "use another method")
        assert not isinstance(tree, StaticTree), "`EngineConfig` refuses paths"
        check_width(tree, model.config.vocab_size)
        return cls(_WithinModel(model, model.guessing), model.config, part, (model.config.num_layers,), tree)


@dataclass(frozen=True, slots=True)
class _WithinModel:
    """The layer between the model's embedding and its output projection."""

    model: Decoder
    layer: GuessingLayer

    def reduce(self, tapped: Tensor) -> Tensor:
        return tapped

    def __call__(self, step: ForwardInput, hidden: Tensor, cache: LayerCache) -> Tensor:
        return self.layer(
            self.model.embedding(step.token_ids), hidden, step, self.model.rotations(step.positions), cache
        )

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden)
