"""Drafts of an EAGLE-3 head, which sees what goes into three of the model's layers."""

from pathlib import Path
from typing import Self

from fairlead_engine.config import EngineConfig
from fairlead_engine.errors import ConfigError
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.eagle_head import load_eagle_head
from fairlead_engine.runner.drafter import check_width
from fairlead_engine.runner.layer_drafts import LayerDrafts
from fairlead_engine.runner.model_part import ModelPart
from fairlead_engine.speculative.tree_shape import StaticTree


class EagleDrafts(LayerDrafts):
    """Drafts of the head in the folder `EngineConfig.speculative_model`."""

    @classmethod
    def load(cls, config: EngineConfig, part: ModelPart) -> Self:
        """Raises ConfigError, also for a tree that is wider than the head's vocabulary, and ModelLoadError."""
        model, tree = part.model, config.tree
        if not isinstance(model, Decoder):
            raise ConfigError(
                "speculative_method",
                f"is eagle3, which sees what {part.config.architecture} holds in its layers; computed by transformers' "
                "code it does not tell",
                "use ngram, draft or medusa",
            )
        assert not isinstance(tree, StaticTree), "`EngineConfig` refuses paths"
        embedding, folder = model.embedding, Path(config.speculative_model or "")
        head = load_eagle_head(folder, part.config, embedding.weight, part.dtype, part.device, embedding.scale)
        check_width(tree, len(head.targets))
        return cls(head, head.config, part, head.tapped_layers, tree)
