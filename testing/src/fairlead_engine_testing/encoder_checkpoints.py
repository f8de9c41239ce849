"""Tiny encoders with random weights as transformers writes them, and a WordPiece tokenizer that tells pairs apart.

Needs transformers, which the packages do not: it is the reference for what an encoder's files look like.
"""

import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import tokenizers
import torch
import transformers
from tokenizers import models, normalizers, pre_tokenizers, processors

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB_SIZE = 128
_SIZES = {"vocab_size": VOCAB_SIZE, "initializer_range": 0.4, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_BERT = {
    **_SIZES, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 96,
}  # fmt: skip
_DISTILBERT = {**_SIZES, "dim": 48, "hidden_dim": 80, "n_layers": 3, "n_heads": 4, "max_position_embeddings": 96}
_MODERN_BERT = {**_BERT, "num_hidden_layers": 5, "local_attention": 15, "norm_bias": True, "mlp_bias": True}
_EMBEDDING_GEMMA = {
    **_BERT, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 20, "query_pre_attn_scalar": 24,
    "sliding_window": 15, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "use_bidirectional_attention": True,
}  # fmt: skip
_SIZES_OF: dict[str, dict[str, Any]] = {
    "distilbert": _DISTILBERT,
    "modernbert": _MODERN_BERT,
    "embedding-gemma": _EMBEDDING_GEMMA,
}
_MODEL_TYPES = {"embedding-gemma": "gemma3_text"}
"""Where a family is called otherwise, because a decoder has that type, too."""
CLASSIFYING = ("bert", "roberta", "xlm-roberta", "distilbert", "modernbert")
ENCODER_FAMILIES = (*CLASSIFYING, "embedding-gemma")


def model_type(family: str) -> str:
    """In transformers."""
    return _MODEL_TYPES.get(family, family)


def write_encoder(folder: Path, family: str, *, classifies: bool = False, **fields: Any) -> Path:
    """Weights and `config.json`; `classifies`: with a classifier on top. `fields`: more of the configuration."""
    torch.manual_seed(3)
    sizes = _SIZES_OF.get(family, _BERT)
    kinds = {"type_vocab_size": 1} if "roberta" in family else {}
    config = transformers.AutoConfig.for_model(model_type(family), **{**sizes, **kinds, **fields})
    make = transformers.AutoModelForSequenceClassification if classifies else transformers.AutoModel
    model = make.from_config(config)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("bias") or "norm" in name.lower():
                tensor.add_(torch.randn_like(tensor), alpha=0.2)
    model.eval().save_pretrained(folder)
    return folder


def write_sentence_modules(folder: Path, *, dense: Sequence[int] = (), **dense_fields: Any) -> list[torch.nn.Linear]:
    """`modules.json` and what it names: the mean, dense modules that make vectors of 48 elements those of these sizes,
    one after the other, and a length of 1. Returns the modules; `dense_fields`: more of their configurations."""
    kinds, layers, size = ["Transformer", "Pooling", *["Dense"] * len(dense), "Normalize"], [], 48
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": f"{place}_{kind}" if place else ""}
               for place, kind in enumerate(kinds)]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    for place, wanted in enumerate(dense, 2):
        layers.append(torch.nn.Linear(size, wanted, bias=dense_fields.get("bias", True)).requires_grad_(False))
        path = folder / f"{place}_Dense"
        path.mkdir()
        tensors = {f"linear.{name}": tensor.detach() for name, tensor in layers[-1].named_parameters()}
        safetensors.torch.save_file(tensors, path / "model.safetensors")
        config = {"in_features": size, "out_features": wanted, "bias": True, **dense_fields}
        (path / "config.json").write_text(json.dumps(config))
        size = wanted
    return layers


def write_embedding_prompts(folder: Path, default: str | None = None, **prompts: str) -> None:
    """`config_sentence_transformers.json` with prompts by name; `default`: the name of one."""
    config = {"prompts": prompts, "default_prompt_name": default, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))


def write_word_pieces(folder: Path) -> None:
    """`tokenizer.json` as BERT has it: letters, pieces of words, and `[CLS] A [SEP] B [SEP]` for pairs."""
    entries = [*SPECIAL, *string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]
    entries += [*string.digits, *".,!?", "the", "fair", "##lead", "line", "ship"]
    backend = tokenizers.Tokenizer(models.WordPiece({entry: at for at, entry in enumerate(entries)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", entries.index("[CLS]")), ("[SEP]", entries.index("[SEP]"))],
    )
    backend.add_special_tokens(SPECIAL)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "cls_token": "[CLS]", "sep_token": "[SEP]"})
    )
