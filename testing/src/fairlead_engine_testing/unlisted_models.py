"""Decoders that transformers has and does not list for `AutoModelForCausalLM`, as parts of models that also see."""

from transformers import AutoModelForCausalLM
from transformers.models.mistral4 import Mistral4Config, Mistral4ForCausalLM

_UNLISTED = {Mistral4Config: Mistral4ForCausalLM}


def list_models() -> None:
    """Makes `AutoModelForCausalLM` load them by themselves in this process."""
    for config, model in _UNLISTED.items():
        AutoModelForCausalLM.register(config, model, exist_ok=True)
