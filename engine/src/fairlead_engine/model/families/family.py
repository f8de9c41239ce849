"""What a family of models brings."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.model_config import ModelConfig
from fairlead_engine.model.weights import Weights

Config = TypeVar("Config", bound=ModelConfig)


@dataclass(frozen=True, slots=True)
class ModelFamily(Generic[Config]):
    """Two functions, both of which raise ModelLoadError with what does not fit."""

    model_type: str
    """As `model_type` in `config.json` spells it."""
    parse: Callable[[JsonFields], Config]
    """From `config.json`; what no layer computes is refused there, by name."""
    build: Callable[[Weights, Config], Decoder]
    """From a checkpoint's tensors, under the names that Hugging Face gives them."""
