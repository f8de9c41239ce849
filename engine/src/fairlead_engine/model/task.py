"""A checkpoint's purpose, from its files: to generate, to embed texts in some way, or to classify.

sentence-transformers' files, `modules.json` and the files it names, describe the way from hidden states to a vector.
"""

import json
from pathlib import Path

from fairlead_common.models.families.registry import CLASSIFIER
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.tokens.embedding_prompts import EmbeddingPrompts
from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.types import ModelTask, Pooling, Reading

_POOLINGS = {
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_max_tokens": Pooling.MAX,
    "pooling_mode_lasttoken": Pooling.LAST,
    "pooling_mode_mean_sqrt_len_tokens": None,
    "pooling_mode_weightedmean_tokens": None,
}
"""By their names in `1_Pooling/config.json`; None = not supported."""
_DEFAULT_LABELS = 2
DENSE = "Dense"
"""Kind of the modules of `encoders.dense_modules`."""


def read_task(fields: JsonFields, architecture: str, *, sees_all: bool) -> ModelTask:
    """`fields`: those of `config.json`; `sees_all`: see `ModelTask`. Raises ModelLoadError: ModelConfigInvalid, or
    UnsupportedArchitecture for an unknown way to make vectors."""
    pooling = Pooling.CLS if sees_all else Pooling.LAST
    if architecture.endswith(CLASSIFIER):
        return ModelTask(generates=False, sees_all=sees_all, pooling=pooling, labels=_labels(fields))
    modules = sentence_modules(fields.path.parent)
    if modules is None:
        return ModelTask(generates=not sees_all, sees_all=sees_all, pooling=pooling)
    reading, is_pooled = Reading.RAW, False
    for module in modules:
        kind = module_kind(module)
        if kind == "Pooling":
            pooling, is_pooled = _pooling(fields.path.parent, module), True
        elif kind == "Normalize":
            reading = Reading.UNIT
        elif kind == DENSE and sees_all and is_pooled and reading is Reading.RAW:
            continue
        elif kind != "Transformer":
            known = "Transformer, Pooling, Dense (of encoders) and Normalize, in this order"
            raise module.unsupported("type", f"vectors are those of {known}")
    return ModelTask(generates=not sees_all, sees_all=sees_all, pooling=pooling, reading=reading)


def longest_prompt(folder: Path, num_positions: int) -> int:
    """Most tokens of a prompt: the number of positions, or the limit of the vectors' makers."""
    path = folder / "sentence_bert_config.json"
    if not path.exists():
        return num_positions
    return min(num_positions, JsonFields.read(path).positive_int("max_seq_length", num_positions))


def _labels(fields: JsonFields) -> tuple[str, ...]:
    if (named := fields.section("id2label")) is not None:
        ids = [str(index) for index in range(named.num_fields)]
        if any(not named.has(each) for each in ids):
            raise fields.invalid("id2label", "must have a text for each of the numbers from 0 on")
        return tuple(named.text(each) or "" for each in ids)
    return tuple(f"LABEL_{index}" for index in range(fields.positive_int("num_labels", _DEFAULT_LABELS)))


def _pooling(folder: Path, module: JsonFields) -> Pooling:
    fields = JsonFields.read(module_folder(folder, module) / "config.json")
    pooling = _pooling_mode(fields)
    leaves_out = pooling in (Pooling.MEAN, Pooling.MAX) and not fields.boolean("include_prompt", True)
    if leaves_out and any(_prompts(folder).texts.values()):
        raise fields.unsupported("include_prompt", "a prompt's tokens are pooled with those of the text behind it")
    return pooling


def _prompts(folder: Path) -> EmbeddingPrompts:
    try:
        return EmbeddingPrompts.read(folder)
    except ValueError as error:
        raise ModelLoadError(ModelLoadReason.MODEL_CONFIG_INVALID, f"{error}; fetch it again") from error


def _pooling_mode(fields: JsonFields) -> Pooling:
    if (word := fields.text("pooling_mode")) is not None:
        words = {"lasttoken": Pooling.LAST, **{each.value: each for each in Pooling}}
        if word not in words:
            raise fields.unsupported("pooling_mode", f"supported are {', '.join(words)}")
        return words[word]
    wanted = [mode for mode in _POOLINGS if fields.boolean(mode, False)]
    pooling = _POOLINGS[wanted[0]] if len(wanted) == 1 else None
    if pooling is None:
        known = [mode for mode, each in _POOLINGS.items() if each is not None]
        raise ModelLoadError(
            ModelLoadReason.UNSUPPORTED_ARCHITECTURE,
            f"{fields.path} asks for {' and '.join(wanted) or 'no way of pooling'}; exactly one of {', '.join(known)} "
            "is supported",
        )
    return pooling


def module_kind(module: JsonFields) -> str:
    """The class of a module of `sentence_modules`, without its package."""
    return (module.text("type") or "").rpartition(".")[2]


def module_folder(folder: Path, module: JsonFields) -> Path:
    """Where a module's files are. Raises ModelLoadError for a path that leads out of the model's folder."""
    name = module.text("path") or ""
    if Path(name).name != name:
        raise module.invalid("path", "must be a folder beside modules.json")
    return folder / name


def sentence_modules(folder: Path) -> list[JsonFields] | None:
    """Those that `modules.json` lists, in order; None = there is no such file. Raises ModelLoadError."""
    path = folder / "modules.json"
    if not path.exists():
        return None
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(
            ModelLoadReason.MODEL_CONFIG_INVALID, f"{path} cannot be read as JSON ({error}); fetch it again"
        ) from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelLoadError(ModelLoadReason.MODEL_CONFIG_INVALID, f"{path} must be a list of objects; fetch it again")
    return [JsonFields(path, module) for module in modules]
