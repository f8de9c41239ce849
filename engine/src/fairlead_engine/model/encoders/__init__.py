"""Encoders: models in which each token of a prompt sees tokens on both sides. Whole prompts in, hidden states out.

The families by the architecture in `config.json`, and a file for each kind of layer.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from fairlead_common.models.families.registry import find_encoder
from fairlead_common.models.json_fields import JsonFields
from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.encoders.bert import BERT, DISTILBERT, ROBERTA
from fairlead_engine.model.encoders.dense_modules import load_dense, read_dense
from fairlead_engine.model.encoders.encoder import Encoder, EncoderConfig, EncoderFamily
from fairlead_engine.model.encoders.gemma import EMBEDDING_GEMMA
from fairlead_engine.model.encoders.modern_bert import MODERN_BERT

ENCODERS: Mapping[str, EncoderFamily] = {
    "BertModel": BERT,
    "BertForSequenceClassification": BERT,
    "DistilBertModel": DISTILBERT,
    "DistilBertForSequenceClassification": DISTILBERT,
    "Gemma3TextModel": EMBEDDING_GEMMA,
    "ModernBertModel": MODERN_BERT,
    "ModernBertForSequenceClassification": MODERN_BERT,
    "RobertaModel": ROBERTA,
    "RobertaForSequenceClassification": ROBERTA,
    "XLMRobertaModel": ROBERTA,
    "XLMRobertaForSequenceClassification": ROBERTA,
}
"""As `architectures` in `config.json` spells them."""


def read_encoder_config(folder: Path) -> EncoderConfig:
    """Raises ModelLoadError: ModelNotFound, ModelConfigInvalid or UnsupportedArchitecture."""
    fields = JsonFields.read(folder / "config.json")
    architecture = find_encoder(fields)
    if architecture is None:
        raise ModelLoadError(
            ModelLoadReason.UNSUPPORTED_ARCHITECTURE, f"config.json names none of {', '.join(ENCODERS)}"
        )
    config = ENCODERS[architecture].parse(fields, architecture)
    return config if config.task.labels else replace(config, dense=read_dense(folder, config.hidden_size))


def load_encoder(folder: Path, config: EncoderConfig, dtype: torch.dtype, device: torch.device) -> Encoder:
    """Reads the weights. Raises ModelLoadError, naming the file or tensor that does not fit."""
    with torch.inference_mode(), Checkpoint(folder, dtype, device) as checkpoint:
        encoder = ENCODERS[config.architecture].build(checkpoint, config)
        projection = load_dense(config.dense, dtype, device)
    if projection is None:
        return encoder
    return replace(
        encoder,
        projection=projection,
        num_parameters=encoder.num_parameters + projection.num_parameters,
        weight_bytes=encoder.weight_bytes + projection.weight_bytes,
    )
