"""The files of a source needed for serving: settings, tokenizer, templates, and weights in the best available format.

Pure. Left out are weights in a second format or precision, other programs' folders (`original/`, `onnx/`), pictures,
texts and code.
"""

import os
import re
from collections.abc import Collection, Iterable
from enum import StrEnum
from pathlib import PurePosixPath

from fairlead_common.models.gguf_file import GGUF_PART
from fairlead_common.tokens.stored_tokenizer import FILES as TOKENIZERS
from fairlead_engine.errors import onnx_problem
from fairlead_engine.sources.remote import RemoteFile, not_found, unsupported

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""As PEFT names them, by preference."""
SETTINGS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    *TOKENIZERS[1:],
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "hf_quant_config.json",
    "quantize_config.json",
    "quantization_config.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    ADAPTER_CONFIG,
)
"""Files beside the weights, by name; only `config.json` is required, and not for GGUF."""
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf")
"""Formats used in the absence of safetensors, by preference."""
_MODULE = re.compile(r"[0-9]+_[A-Za-z]+/(config\.json|model\.safetensors)")
"""Of sentence-transformers: processing of the hidden states."""
_PICKLED_MODULE = re.compile(r"([0-9]+_Dense/)pytorch_model\.bin")
"""Of a module without safetensors."""
_TEMPLATES = re.compile(r"additional_chat_templates/[^/]+\.jinja")
_CHECKPOINT = re.compile(r"(pytorch_model|model|consolidated|medusa_lm_head)([-.].*)?")
"""Names of weight files, in contrast to an optimiser's or a trainer's."""
_MODEL_SHARD = re.compile(r"model-[0-9]+-of-[0-9]+\.safetensors")
GGUF_FILE = "model.gguf"
"""Final name of a model in one GGUF file."""
_NO_MODEL = re.compile(r"(.*/)?(mmproj|imatrix)[^/]*|.*[-._](mmproj|imatrix)[^/]*", re.IGNORECASE)
"""GGUF files beside a model: a vision tower's, and statistics of a quantisation."""
_MOST_NAMED = 24
"""Quantisations in a message."""


class SourceKind(StrEnum):
    MODEL = "model"
    """A model to serve, or a draft model beside one."""
    ADAPTER = "adapter"
    """A folder as PEFT writes it: LoRA or a soft prompt."""


def needed(
    files: Iterable[RemoteFile],
    what: str,
    suffixes: Collection[str],
    kind: SourceKind = SourceKind.MODEL,
    variant: str | None = None,
) -> tuple[RemoteFile, ...]:
    """The files needed to serve `what` (a source, for messages). `suffixes`: of weights that can be read or converted.
    `variant`: which of several GGUF files, by the end of its name; None = there is one model. Raises DownloadError if
    nothing can be served."""
    by_path = {file.path: file for file in files}
    for path in by_path:
        check_path(path)
    check_kind(by_path, what, kind)
    if kind is SourceKind.ADAPTER:
        return by_path[ADAPTER_CONFIG], next(by_path[path] for path in ADAPTER_WEIGHTS if path in by_path)
    weights = _safetensors(by_path) if variant is None else _gguf(by_path, what, variant)
    for suffix in OTHER_WEIGHTS:
        weights = weights or _others(by_path, suffix, what)
    if not weights and (problem := onnx_problem(by_path)):
        raise unsupported(f"{what} {problem}")
    if not weights:
        raise not_found(f"{what} holds no weights: a model has *.safetensors, *.bin or *.gguf beside its config.json")
    if (suffix := PurePosixPath(weights[-1]).suffix) not in suffixes:
        raise unsupported(f"{what} has weights as {suffix} alone, which cannot be read: convert them to safetensors")
    if suffix == ".gguf":
        return tuple(by_path[path] for path in weights)  # beside another's config.json it would be no model
    if "config.json" not in by_path:
        raise not_found(f"{what} has weights but no config.json: name the folder that has both")
    settings = set(SETTINGS).difference(TOKENIZERS[1:] if "tokenizer.json" in by_path else ())
    beside = [path for path in by_path if path in settings or _MODULE.fullmatch(path) or _TEMPLATES.fullmatch(path)]
    pickled = [found for path in by_path if (found := _PICKLED_MODULE.fullmatch(path))]
    beside += [found[0] for found in pickled if f"{found[1]}{SINGLE_FILE}" not in by_path]
    return tuple(by_path[path] for path in sorted({*beside, *weights}))


def check_kind(paths: Collection[str], what: str, kind: SourceKind) -> None:
    """Raises DownloadError for files of the other kind, before gigabytes are fetched for nothing."""
    is_adapter = ADAPTER_CONFIG in paths and any(path in paths for path in ADAPTER_WEIGHTS)
    if kind is SourceKind.ADAPTER and not is_adapter:
        hint = "; it is a model: name a folder that PEFT has saved" if "config.json" in paths else ""
        raise not_found(f"{what} holds no adapter, which has {ADAPTER_CONFIG} and {' or '.join(ADAPTER_WEIGHTS)}{hint}")
    others = any(path.endswith((".safetensors", *OTHER_WEIGHTS)) and path not in ADAPTER_WEIGHTS for path in paths)
    if kind is SourceKind.MODEL and is_adapter and not others:
        raise not_found(
            f"{what} is an adapter and no model: name the model that it is for, and list it among the adapters"
        )


def check_path(path: str) -> None:
    """Raises DownloadError for a name that could lead out of the folder."""
    parts = path.split("/")
    if "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise unsupported(f"the source lists {path[:200]!r}, which is no path below a folder: nothing was fetched")


def model_folder(paths: Iterable[str]) -> str:
    """The model's folder with a trailing '/': the highest with a `config.json`, else with a GGUF file, else of an
    adapter; empty = the top, or nowhere."""
    every = [PurePosixPath(path) for path in paths]
    for pattern in ("config.json", "*.gguf", ADAPTER_CONFIG):
        fitting = (path for path in every if path.match(pattern))
        if first := min(fitting, key=lambda path: (len(path.parts), str(path)), default=None):
            return "" if first.parent == PurePosixPath() else f"{first.parent}/"
    return ""


def _safetensors(paths: Collection[str]) -> list[str]:
    """Safetensors with the index. Of several sets, transformers' names count."""
    top = [path for path in paths if path.endswith(".safetensors") and "/" not in path and path not in ADAPTER_WEIGHTS]
    if INDEX_FILE in paths:
        shards = [path for path in top if _MODEL_SHARD.fullmatch(path)]
        named_otherwise = [path for path in top if not path.startswith("consolidated")]
        return [INDEX_FILE, *(shards or named_otherwise)] if named_otherwise else []
    if SINGLE_FILE in paths:
        return [SINGLE_FILE]
    return [path for path in top if not path.startswith("consolidated")] or top


def _others(paths: Collection[str], suffix: str, what: str) -> list[str]:
    top = [path for path in paths if path.endswith(suffix) and "/" not in path]
    if suffix == ".gguf":
        return _gguf(paths, what, None)
    found = [path for path in top if _CHECKPOINT.fullmatch(path.removesuffix(suffix))]
    index = [path for path in paths if path == f"pytorch_model{suffix}.index.json"]
    return [*index, *found] if found else []


def _gguf(paths: Collection[str], what: str, variant: str | None) -> list[str]:
    """The file of a GGUF model, or the parts in order; empty = no GGUF file."""
    models: dict[str, list[str]] = {}
    files = [path for path in paths if path.endswith(".gguf") and not _NO_MODEL.fullmatch(path)]
    for path in sorted(files):
        part = GGUF_PART.fullmatch(path)
        models.setdefault(part[1] if part else path.removesuffix(".gguf"), []).append(path)
    if variant is None and len(models) <= 1:
        return sorted(files)
    named = _of_variant(models, variant.removesuffix(".gguf")) if variant is not None else list(models)
    if len(named) == 1:
        return models[named[0]]
    names, place = ", ".join(_variants(models)[:_MOST_NAMED]), what.partition("@")[0]
    if variant is None and what.startswith("hf://"):
        raise unsupported(f"{what} has {len(models)} GGUF files, each a model: write one as {place}:NAME, of {names}")
    if variant is None:
        raise unsupported(f"{what} has {len(models)} GGUF files, each a model ({names}): name a source that has one")
    has = f"has {len(named)} GGUF files" if named else "has no GGUF file"
    raise not_found(f"{what} {has} whose name ends with {variant}; it has {names or 'none at all'}")


def _of_variant(models: Collection[str], variant: str) -> list[str]:
    """Of names with this end the shortest: Q4_K_M is not UD-Q4_K_M where a source has both."""
    asked = variant.lower()
    fitting = [
        name
        for name in models
        if any(f"/{name.lower()}".endswith(f"{mark}{asked}") for mark in "-._/")
        or asked in name.lower().split("/")[:-1]
    ]
    return [name for name in fitting if len(name) == min(map(len, fitting))]


def _variants(models: Collection[str]) -> list[str]:
    """The ends of names behind the beginning of all."""
    names = sorted({PurePosixPath(name).name for name in models})
    size = len(os.path.commonprefix(names))  # noqa: RUF071 - of letters, not of folders
    if any(name[size : size + 1] not in tuple("-._") for name in names):  # within a word
        size = max(names[0].rfind(mark, 0, size) for mark in "-._") + 1
    return [name[size:].lstrip("-._") for name in names]
