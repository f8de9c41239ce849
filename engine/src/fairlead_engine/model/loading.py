"""From a model's folder, or its one GGUF file, to its configuration and to a `Decoder`, by way of its family."""

from dataclasses import replace
from pathlib import Path

import msgspec
import torch

from fairlead_common.models.families.registry import (
    ARCHITECTURES,
    find_architecture,
    find_encoder,
    find_family,
    generating,
)
from fairlead_common.models.gguf_file import GgufFile
from fairlead_common.models.image_settings import ImageSettings, read_image_settings
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.model_config import ModelConfig
from fairlead_common.models.model_task import ModelTask
from fairlead_common.models.quantized_checkpoints import GGUF_SUFFIX, MODELOPT_FILE, with_modelopt
from fairlead_common.models.siglip_config import SiglipConfig, read_square_settings
from fairlead_common.models.text_part import decoder_fields
from fairlead_common.models.vision_config import VisionConfig
from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.model.checkpoint import Checkpoint, lacks_projection
from fairlead_engine.model.classifier import read_outcome
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.fallback.foreign_config import ForeignConfig, read_foreign_config
from fairlead_engine.model.families import build_decoder
from fairlead_engine.model.gguf_checkpoint import GgufCheckpoint
from fairlead_engine.model.gguf_fields import config_fields
from fairlead_engine.model.lora.adapter_slots import AdapterSlots
from fairlead_engine.model.quantization.stored import FORMATS, choose_source
from fairlead_engine.model.read_ahead import ReadAhead
from fairlead_engine.model.shard import ALONE, Shard
from fairlead_engine.model.task import read_task
from fairlead_engine.model.tokenizer_files import read_tokenizer
from fairlead_engine.model.weights import Watch, Weights


def is_foreign(folder: Path) -> bool:
    """Whether the model has no family here and transformers must compute it. Raises ModelLoadError."""
    if folder.suffix == GGUF_SUFFIX or not folder.is_dir():
        return False
    fields = read_fields(folder)
    return find_encoder(fields) is None and find_family(fields) is None


def read_any_config(folder: Path) -> ModelConfig | ForeignConfig:
    """As `read_config`, also for a model without a family here."""
    if not is_foreign(folder):
        return read_config(folder)
    fields = read_fields(folder)
    config = read_foreign_config(folder, fields)
    return replace(config, eos_token_ids=_ends(folder, fields, config))


def read_config(folder: Path) -> ModelConfig:
    """Reads `config.json`. End tokens come from `generation_config.json` if present there, since chat models often list
    more; then from `config.json`; else the tokenizer's `eos_token` is the only one. Raises ModelLoadError:
    ModelNotFound, ModelConfigInvalid or UnsupportedArchitecture."""
    if not folder.is_dir() and folder.suffix != GGUF_SUFFIX:
        raise ModelLoadError(
            ModelLoadReason.MODEL_NOT_FOUND,
            f"{folder} is not a folder; give the folder that holds the model's config.json and safetensors files",
        )
    whole = _stored_fields(folder)
    fields = decoder_fields(whole)
    architecture = find_architecture(fields)
    config = ARCHITECTURES[generating(architecture)].parse(fields)
    task = read_task(fields, architecture, sees_all=False)
    if config.vision is not None:
        task = msgspec.structs.replace(task, images=_image_settings(folder, config.vision))
    if _only_embeds(folder, config, task):  # the embedding stands in for the projection that nothing asks
        task, config = msgspec.structs.replace(task, generates=False), replace(config, tie_word_embeddings=True)
    outcome = read_outcome(fields, len(task.labels)) if task.labels else config.outcome
    config = replace(config, architecture=architecture, task=task, outcome=outcome, is_text_part=fields is not whole)
    return replace(config, eos_token_ids=_ends(folder, fields, config))


def _only_embeds(folder: Path, config: ModelConfig, task: ModelTask) -> bool:
    """Whether a checkpoint of sentence-transformers has no output projection, whatever `tie_word_embeddings` says."""
    is_whole = not (task.generates and folder.is_dir() and (folder / "modules.json").exists())
    return not is_whole and not config.tie_word_embeddings and lacks_projection(folder)


def load_model(
    folder: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    quantization: str | None = None,
    shard: Shard = ALONE,
    *,
    watch: Watch | None = None,
    slots: AdapterSlots | None = None,
    head_quantization: str | None = None,
    guesses: bool = False,
) -> Decoder:
    """Reads, converts and fuses one rank's part of the weights. Rounds linear layers to the format `quantization`, and
    the output projection to `head_quantization`; None = as stored. `slots`: empty slots for adapters. `guesses`:
    whether the checkpoint's layer that guesses is read, too, if there is one.

    `watch` gets every linear layer, and returns its replacement. Raises ModelLoadError, naming the file or tensor that
    does not fit, and ConfigError for a checkpoint with another quantisation.
    """
    source = choose_source(quantization, config.quantization)
    head_format = FORMATS[head_quantization] if head_quantization else None
    with (
        torch.inference_mode(),
        checkpoint_class(folder)(folder, dtype, device, is_text_part=config.is_text_part) as checkpoint,
        ReadAhead(checkpoint.files if shard.rank == 0 else ()),  # other ranks find what the first has read
    ):
        if config.is_text_part or config.vision:  # whether it is tied is said of the whole, by some files wrongly
            config = replace(config, tie_word_embeddings=not checkpoint.has("lm_head.weight"))
        return build_decoder(
            Weights(checkpoint, config, source, shard, watch, slots, head_format, guesses=guesses), config
        )


def _image_settings(folder: Path, vision: VisionConfig) -> ImageSettings:
    """Raises ModelLoadError where the cutting of images does not fit the tower."""
    if isinstance(vision, SiglipConfig):
        return read_square_settings(folder, vision)
    settings = read_image_settings(folder, vision.image_token_id)
    for name in ("patch_size", "temporal_patch_size", "merge_size"):
        if getattr(settings, name) != getattr(vision, name):
            raise ModelLoadError(
                ModelLoadReason.MODEL_CONFIG_INVALID,
                f"{folder}: the processor's {name} is {getattr(settings, name)}, and that of vision_config in "
                f"config.json {getattr(vision, name)}; fetch both again",
            )
    return settings


def _ends(folder: Path, fields: JsonFields, config: ModelConfig | ForeignConfig) -> tuple[int, ...]:
    """The tokens that end an output, from the file that has them."""
    path = folder / "generation_config.json"
    ends = (JsonFields.read(path).token_ids("eos_token_id") if path.exists() else ()) or config.eos_token_ids
    if any(token_id >= config.vocab_size for token_id in ends):
        raise fields.invalid("eos_token_id", f"must be below vocab_size ({config.vocab_size})")
    return ends or _tokenizer_end(folder, config.vocab_size)


def _tokenizer_end(folder: Path, vocab_size: int) -> tuple[int, ...]:
    """Without an end every answer would run to its token limit. The server refuses a broken tokenizer."""
    try:
        tokenizer = read_tokenizer(folder)
    except ModelLoadError:
        return ()
    token_id = tokenizer.token_id(tokenizer.special_tokens.get("eos_token", ""))
    return () if token_id is None or token_id >= vocab_size else (token_id,)


def read_fields(model: Path) -> JsonFields:
    """`config.json`, of the decoder alone where the checkpoint reads more than text, or the corresponding metadata of a
    GGUF file. Raises ModelLoadError."""
    return decoder_fields(_stored_fields(model))


def _stored_fields(model: Path) -> JsonFields:
    if model.suffix == GGUF_SUFFIX:
        return JsonFields(model, config_fields(GgufFile(model)))
    fields, beside = JsonFields.read(model / "config.json"), model / MODELOPT_FILE
    return fields.merged(JsonFields.read(beside), with_modelopt) if beside.exists() else fields


def checkpoint_class(model: Path) -> type[Checkpoint]:
    """Reads the model's tensors."""
    return GgufCheckpoint if model.suffix == GGUF_SUFFIX else Checkpoint
