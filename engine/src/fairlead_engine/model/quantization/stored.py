"""Checkpoints that are quantised already: what reads each format, and what a setting may say to it."""

import logging
from collections.abc import Callable
from typing import Any

from fairlead_engine.errors import ConfigError
from fairlead_engine.model.gguf.gguf_checkpoint import GgufWeights
from fairlead_engine.model.quantization.awq import Awq
from fairlead_engine.model.quantization.compressed_tensors import CompressedTensors
from fairlead_engine.model.quantization.finegrained_fp8 import FinegrainedFp8
from fairlead_engine.model.quantization.formats import FORMATS
from fairlead_engine.model.quantization.gptq import Gptq
from fairlead_engine.model.quantization.mxfp4 import Mxfp4
from fairlead_engine.model.quantization.source import Rounded, WeightSource
from fairlead_protocol.models.quantized_checkpoints import (
    AwqFormat,
    CompressedFormat,
    Fp8Format,
    GgufFormat,
    GptqFormat,
    Mxfp4Format,
    StoredFormat,
)

logger = logging.getLogger(__name__)

READERS: dict[type, Callable[[Any], WeightSource]] = {
    AwqFormat: Awq,
    CompressedFormat: CompressedTensors,
    Fp8Format: FinegrainedFp8,
    GgufFormat: lambda _: GgufWeights(),
    GptqFormat: Gptq,
    Mxfp4Format: lambda _: Mxfp4(),
}


def choose_source(setting: str | None, stored: StoredFormat | None) -> WeightSource:
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
    if isinstance(stored, Mxfp4Format):
        logger.info("MXFP4 weights become 8-bit integers while they are loaded, without loss, in twice their memory")
    return READERS[type(stored)](stored)
