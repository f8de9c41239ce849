"""The registry of architectures: what distinguishes one decoder from the other.

The supported architectures are the same decoder (pre-norm, rotary positions, grouped-query attention, gated
feed-forward) with a few options, so each is a row here and not a class. One that differs by more gets its own decoder.
"""

from dataclasses import dataclass

from fairlead_engine.errors import ModelLoadError, ModelLoadReason


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row: the name in `config.json` and the options that the name implies."""

    name: str
    """As `architectures` in `config.json` spells it."""
    model_type: str
    """As `model_type` in `config.json` spells it."""
    qk_norm: bool = False
    """Whether each query and key head is normalised before the rotation."""
    has_mlp_bias: bool = False
    """Whether `mlp_bias` in `config.json` means something."""
    default_head_dim: int | None = None
    """Head size when `config.json` names none; None = hidden size over heads."""


ARCHITECTURES = (
    Architecture("LlamaForCausalLM", "llama", has_mlp_bias=True),
    Architecture("Qwen3ForCausalLM", "qwen3", qk_norm=True, default_head_dim=128),
)


def find_architecture(names: list[str], model_type: str | None) -> Architecture:
    """The first architecture that `config.json` names and we know; its `model_type` decides when it names none.

    Raises ModelLoadError with reason UnsupportedArchitecture, which lists what is supported.
    """
    for architecture in ARCHITECTURES:
        if architecture.name in names or (not names and architecture.model_type == model_type):
            return architecture
    found = ", ".join(names) or model_type or "none"
    supported = ", ".join(architecture.name for architecture in ARCHITECTURES)
    raise ModelLoadError(
        ModelLoadReason.UNSUPPORTED_ARCHITECTURE,
        f"config.json names the architecture {found}; supported are {supported}. Choose a model of one of these.",
    )
