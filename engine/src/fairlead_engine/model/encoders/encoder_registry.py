"""The families of encoders by the architecture that `config.json` names, and from a folder to a model."""

from pathlib import Path

import torch
from torch.nn import functional

from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.encoders.encoder import Encoder, EncoderConfig
from fairlead_engine.model.encoders.encoder_family import EncoderFamily, FieldNames, HeadNames, TensorNames
from fairlead_protocol.models.families.registry import find_encoder
from fairlead_protocol.models.json_fields import JsonFields

BERT = EncoderFamily("bert", "bert", HeadNames("bert.pooler.dense", "classifier"))
"""arXiv 1810.04805."""
ROBERTA = EncoderFamily(
    "roberta", "roberta", HeadNames("classifier.dense", "classifier.out_proj"), positions_after_padding=True
)
"""arXiv 1907.11692; XLM-RoBERTa (arXiv 1911.02116) is the same with another vocabulary."""
DISTILBERT = EncoderFamily(
    "distilbert",
    "distilbert",
    HeadNames("pre_classifier", "classifier", functional.relu),
    FieldNames("dim", "hidden_dim", "n_layers", "n_heads", "activation"),
    TensorNames(
        "transformer.layer", "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin",
        "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm",
    ),
)  # fmt: skip
"""arXiv 1910.01108."""

ENCODERS: dict[str, EncoderFamily] = {
    "BertModel": BERT,
    "BertForSequenceClassification": BERT,
    "DistilBertModel": DISTILBERT,
    "DistilBertForSequenceClassification": DISTILBERT,
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
    return ENCODERS[architecture].parse(fields, architecture)


def load_encoder(folder: Path, config: EncoderConfig, dtype: torch.dtype, device: torch.device) -> Encoder:
    """Reads the weights. Raises ModelLoadError, naming the file or tensor that does not fit."""
    with torch.inference_mode(), Checkpoint(folder, dtype, device) as checkpoint:
        return ENCODERS[config.architecture].build(checkpoint, config)
