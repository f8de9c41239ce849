"""`config.json` of a model that only transformers knows, and whether the model is a decoder that can be served.

Known impossibilities are refused here, by name and before any weight is read. Properties outside of the configuration
are refused by `attention_survey`, from the calls of attention, and by a trial.
"""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fairlead_common.models.families.registry import ARCHITECTURES, named_architecture
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.quantized_checkpoints import QUANTIZATION_SECTIONS, StoredFormat, parse_quantization
from fairlead_engine.errors import EngineError, ModelLoadError, ModelLoadReason
from fairlead_engine.model.fallback.dequantized_weights import READABLE
from fairlead_engine.model.task import read_task
from fairlead_engine.types import ModelTask

EXTRA = "pip install 'fairlead-engine[transformers]'"

_BIASES_SCORES = ("bloom", "mpt")
"""Types of models whose positions are a bias of scores (ALiBi, arXiv 2108.12409)."""
_ATTENDING = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
"""Kinds of layers, as `layer_types` spells them, that keep only keys and values."""
_ALL_ATTEND = "models all of whose layers are attention can be served"
_OTHER_INPUTS = ("vision_config", "audio_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignConfig:
    """The facts of a foreign model before transformers has built it, except its heads."""

    architecture: str
    network: Any
    """transformers' class for it."""
    settings: Any
    """Its configuration as an object."""
    vocab_size: int
    max_position_embeddings: int
    """Longest context, in tokens, for which rotations do not depend on the rest of a step."""
    dtype: str
    """Number format the checkpoint was saved in: float32, bfloat16 or float16."""
    eos_token_ids: tuple[int, ...]
    task: ModelTask
    quantization: StoredFormat | None = None
    """Of the weights in the checkpoint, which become floats while they are loaded."""


def read_foreign_config(folder: Path, fields: JsonFields) -> ForeignConfig:
    """`fields`: of its `config.json`. Raises ModelLoadError: UnsupportedArchitecture, or ModelConfigInvalid."""
    transformers = _import_transformers(fields)
    named = ", ".join(fields.texts("architectures")) or str(fields.text("model_type"))
    with refused_where_it_fails(named, "its config.json is read as a decoder's"):
        return _read(transformers, folder, fields)


def _read(transformers: Any, folder: Path, fields: JsonFields) -> ForeignConfig:
    settings = _read_settings(transformers, folder, fields)
    _check_kind(settings, fields)
    network = _network(transformers, settings, fields)
    _check_layers(network, settings)
    dtype = fields.text("dtype") or fields.text("torch_dtype") or "float32"
    if dtype not in ("float32", "bfloat16", "float16"):
        raise _refused(f"asks for dtype {dtype}", "supported are float32, bfloat16 and float16")
    ends = getattr(settings, "eos_token_id", None)
    return ForeignConfig(
        architecture=network.__name__,
        network=network,
        settings=settings,
        vocab_size=settings.vocab_size,
        max_position_embeddings=_longest(settings, fields),
        dtype=dtype,
        eos_token_ids=() if ends is None else tuple(ends) if isinstance(ends, list | tuple) else (int(ends),),
        task=read_task(fields, network.__name__, sees_all=False),
        quantization=_quantization(settings, fields),
    )


def _import_transformers(fields: JsonFields) -> Any:
    """The library. Raises an error with installation instructions."""
    try:
        transformers = importlib.import_module("transformers")
        importlib.import_module("transformers.masking_utils")
        getattr(transformers, "AttentionInterface")  # noqa: B009  # an old one has none
    except (ImportError, AttributeError) as error:
        raise ModelLoadError(
            ModelLoadReason.UNSUPPORTED_ARCHITECTURE,
            f"{named_architecture(fields)}; this engine's own are {', '.join(ARCHITECTURES)}. Other decoders are run "
            f"by transformers, which is not installed here, or is too old ({error}): {EXTRA}",
        ) from error
    return transformers


def _read_settings(transformers: Any, folder: Path, fields: JsonFields) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = fields.text("model_type")
    if model_type is None or model_type not in CONFIG_MAPPING:
        if fields.has("auto_map"):
            raise _refused(
                f"needs code of its own (auto_map), as transformers {transformers.__version__} does not know the "
                f"model_type {model_type}",
                "code that comes with a checkpoint is never run here",
            )
        raise _refused(
            f"names the model_type {model_type}, which transformers {transformers.__version__} does not know",
            "choose another model, or a version of transformers that knows it",
        )
    try:
        return transformers.AutoConfig.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # its validation raises of many kinds
        raise ModelLoadError(
            ModelLoadReason.MODEL_CONFIG_INVALID,
            f"{fields.path}: transformers cannot read it ({cause(error)}); correct the file or fetch it again",
        ) from error


def _check_kind(settings: Any, fields: JsonFields) -> None:
    """Checks that it only decodes text."""
    kind = f"is of model_type {settings.model_type}"
    if settings.is_encoder_decoder:
        raise _refused(f"{kind}, an encoder with a decoder", "models that are a decoder alone can be served")
    if getattr(settings, "add_cross_attention", False):
        raise _refused("asks for add_cross_attention", "a decoder here attends to its own tokens alone")
    if found := [name for name in _OTHER_INPUTS if getattr(settings, name, None) is not None]:
        seeing = ", ".join(name for name in ARCHITECTURES if not name.endswith("ForCausalLM"))
        raise _refused(f"{kind} with {' and '.join(found)}", f"models that read text alone can be served, and {seeing}")
    if settings.model_type in _BIASES_SCORES or getattr(settings, "alibi", False):
        raise _refused(
            f"{kind}, whose positions are a bias of attention's scores (ALiBi)",
            "attention over a paged cache here has none",
        )


def _quantization(settings: Any, fields: JsonFields) -> StoredFormat | None:
    """The format of the weights; `settings` no longer name one, which transformers would read by itself."""
    stored = parse_quantization(fields)
    if stored is not None and not isinstance(stored, READABLE):
        told = " or ".join(sorted(stored.names))
        raise _refused(
            f"has a quantization_config of {told} whose layers are not stored one by one",
            "for models that transformers computes GPTQ, AWQ, compressed-tensors and 8-bit floats are read; use the "
            "unquantised checkpoint",
        )
    for name in QUANTIZATION_SECTIONS:
        if hasattr(settings, name):
            delattr(settings, name)
    return stored


def _network(transformers: Any, settings: Any, fields: JsonFields) -> Any:
    """transformers' class that generates."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    if type(settings) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise _refused(f"is of model_type {settings.model_type}", "transformers has no decoder of it that generates")
    found: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(settings)]
    networks = {network.__name__: network for network in (found if isinstance(found, tuple) else (found,))}
    names = fields.texts("architectures")
    named = [network for name, network in networks.items() if name in names or not names]
    if not named:
        raise _refused(
            f"names {', '.join(names)} of model_type {settings.model_type}",
            f"what generates, and can be served, is {' or '.join(networks)}",
        )
    return named[0]


def _check_layers(network: Any, settings: Any) -> None:
    """Checks that all layers have keys and values, and attention that can be replaced."""
    name = network.__name__
    if getattr(network, "_is_stateful", False):
        raise _refused(
            f"names {name}, which keeps a state of all tokens in place of their keys and values", _ALL_ATTEND
        )
    kinds = set(getattr(settings, "layer_types", None) or ())
    if others := sorted(kinds - _ATTENDING):
        raise _refused(
            f"has layers of {' and '.join(others)}", "models all of whose layers are attention can be served"
        )
    if not getattr(network, "_supports_attention_backend", True) and not network._can_set_attn_implementation():
        raise _refused(
            f"names {name}, whose attention is its own and cannot be replaced by one over a paged cache",
            "models whose attention goes through transformers' AttentionInterface can be served",
        )


def _longest(settings: Any, fields: JsonFields) -> int:
    """The longest context for rotations that do not stretch with the longest context of a step."""
    longest = getattr(settings, "max_position_embeddings", None)
    if not isinstance(longest, int) or longest < 1:
        raise fields.invalid("max_position_embeddings", "must be a positive integer")
    for rope in _ropes(settings):
        if (rope.get("rope_type") or rope.get("type")) == "longrope":
            original = rope.get("original_max_position_embeddings")
            longest = min(longest, original or getattr(settings, "original_max_position_embeddings", None) or longest)
    return longest


def _ropes(settings: Any) -> Iterator[Mapping[str, Any]]:
    """The rotation of all layers, or of each kind of layer."""
    found = getattr(settings, "rope_parameters", None) or getattr(settings, "rope_scaling", None) or {}
    yield found
    yield from (each for each in found.values() if isinstance(each, Mapping))


def _refused(what: str, remedy: str) -> ModelLoadError:
    return ModelLoadError(ModelLoadReason.UNSUPPORTED_ARCHITECTURE, f"config.json {what}; {remedy}")


@contextmanager
def refused_where_it_fails(architecture: str, doing: str) -> Iterator[None]:
    """Exceptions of transformers' code as a refusal of the model in one sentence; errors of this engine, and of short
    memory, pass. `doing`: the failing work, as in `its config.json is read`."""
    try:
        yield
    except (EngineError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ModelLoadError(
            ModelLoadReason.UNSUPPORTED_ARCHITECTURE,
            f"{architecture} cannot be served: transformers' code for it fails when {doing} ({cause(error)}). Check "
            "its config.json, or choose another model.",
        ) from error


def cause(error: Exception) -> str:
    """The kind of an exception, and the first line of what it says."""
    return ": ".join((type(error).__name__, *str(error).strip().splitlines()[:1]))
