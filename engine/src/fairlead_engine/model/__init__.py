"""Decoder-only language models: configuration, weights, layers. The runner calls it; it knows no requests, no sampling.

Start at `decoder.Decoder.__call__`, the story of one forward pass. transformers is not needed to read a checkpoint,
unless its model has no family here (`fallback/`).
"""

from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.loading import load_model, read_config
from fairlead_protocol.models.model_config import ModelConfig

__all__ = ["Decoder", "ModelConfig", "load_model", "read_config"]
