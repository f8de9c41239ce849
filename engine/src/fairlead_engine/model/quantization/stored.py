"""Checkpoints that are quantised already: who spelled `quantization_config`, and what a setting may say to it."""

from collections.abc import Callable

from fairlead_engine.errors import ConfigError
from fairlead_engine.model.gguf import gguf_checkpoint
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.quantization import awq, compressed_tensors, finegrained_fp8, gptq, mxfp4
from fairlead_engine.model.quantization.formats import FORMATS
from fairlead_engine.model.quantization.source import Rounded, StoredWeights, WeightSource

METHODS: dict[str, Callable[[JsonFields], StoredWeights]] = {
    "awq": awq.parse,
    "compressed-tensors": compressed_tensors.parse,
    "fbgemm_fp8": finegrained_fp8.parse,
    "fp8": finegrained_fp8.parse,
    "gguf": gguf_checkpoint.parse,
    "gptq": gptq.parse,
    "mxfp4": mxfp4.parse,
}
"""As `quant_method` spells them."""


def parse_quantization(fields: JsonFields) -> StoredWeights | None:
    """What `config.json` says of quantised weights; None = they are floats.

    Raises ModelLoadError, naming the field, for a method that no layer here computes.
    """
    quantization = fields.section("quantization_config")
    if quantization is None:
        return None
    method = quantization.text("quant_method")
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise quantization.unsupported("quant_method", f"supported are {known}; or use the unquantised checkpoint")
    return METHODS[method](quantization)


def choose_source(setting: str | None, stored: StoredWeights | None) -> WeightSource:
    """Where weights come from. Raises ConfigError for a `setting` that the checkpoint contradicts."""
    if stored is None:
        return Rounded(FORMATS[setting] if setting else None)
    if setting is not None and stored.names != {setting}:
        found = ", ".join(sorted(stored.names))
        raise ConfigError(
            "quantization",
            f"{setting} contradicts the checkpoint, whose weights are {found} by the quantization_config of its "
            "config.json",
            "leave it out to serve them as they are stored, or use the unquantised checkpoint",
        )
    return stored
