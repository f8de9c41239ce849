"""Which settings a model that transformers computes cannot have: each is refused by name."""

from fairlead_engine.errors import ConfigError

_WHY = "this model is computed by transformers' code, as this engine has none of its own for it"


def check_settings(
    *, quantization: str | None, head_quantization: str | None, max_loras: int, tensor_parallel_size: int
) -> None:
    """As `EngineConfig` has them. Raises ConfigError."""
    for name, value in (("quantization", quantization), ("head_quantization", head_quantization)):
        if value is not None:
            raise ConfigError(name, f"is {value}, and {_WHY}: its weights stay as they are stored", "leave it out")
    if max_loras:
        raise ConfigError("max_loras", f"or adapters are set, and {_WHY}: it takes none", "leave them out")
    if tensor_parallel_size > 1:
        raise ConfigError(
            "tensor_parallel_size", f"is {tensor_parallel_size}, and {_WHY}: it is not divided", "leave it out"
        )
