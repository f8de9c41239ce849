"""The bundled models, as `demo://NAME`; and the folder of a model's source."""

from pathlib import Path

from fairlead_common.models.gguf_file import GGUF_PART
from fairlead_common.models.quantized_checkpoints import GGUF_SUFFIX
from fairlead_engine.errors import ModelLoadError, ModelLoadReason, onnx_problem

SCHEME = "demo://"


def known_demos() -> list[str]:
    """Names of the bundled models."""
    return sorted(folder.parent.name for folder in Path(__file__).parent.glob("*/config.json"))


def files_below(folder: Path) -> list[str]:
    """Names in a folder and in its `onnx`, where exporters put graphs."""
    return [path.relative_to(folder).as_posix() for place in ("*", "onnx/*") for path in folder.glob(place)]


def resolve_model(source: str) -> Path:
    """The folder of a model given as a path or as `demo://NAME`. Raises `ModelLoadError` (ModelNotFound) for a missing
    folder or an unknown name."""
    if source.startswith(SCHEME):
        name, demos = source.removeprefix(SCHEME), known_demos()
        if name in demos:
            return Path(__file__).parent / name
        known = ", ".join(SCHEME + demo for demo in demos) or "none are installed"
        raise ModelLoadError(
            ModelLoadReason.MODEL_NOT_FOUND, f"there is no bundled model {name!r}; bundled models: {known}"
        )
    if "://" in source:
        raise ModelLoadError(
            ModelLoadReason.MODEL_NOT_FOUND,
            f"{source!r} is not a source this engine can open; give a folder that holds the model, or demo://NAME: "
            "`fairlead-engine download SOURCE --to FOLDER` fetches a model and prints its folder",
        )
    folder = Path(source)
    try:
        folder = folder.expanduser()
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.exists() and not (path.is_file() or path.is_dir()):  # reading it could wait for ever
                raise ModelLoadError(ModelLoadReason.CHECKPOINT_INVALID, f"{path} is no file; fetch the model again")
        if (folder / "config.json").is_file() or (folder.suffix == GGUF_SUFFIX and folder.is_file()):
            return folder
        files = sorted(folder.glob(f"*{GGUF_SUFFIX}")) if folder.is_dir() else []
        parts = [GGUF_PART.fullmatch(file.name) for file in files]
        if len(files) == 1 or (files and len({part and (part[1], part[3]) for part in parts}) == 1 and all(parts)):
            return files[0]
        problem = "has no config.json" if folder.is_dir() else "does not exist or is not a folder"
        if onnx := onnx_problem([folder.name] if folder.is_file() else files_below(folder)):
            raise ModelLoadError(ModelLoadReason.UNSUPPORTED_ARCHITECTURE, f"{folder} {onnx}")
        if files:
            problem = f"has {len(files)} {GGUF_SUFFIX} files, of which one is to be named"
    except (OSError, RuntimeError) as error:  # not for this user, too long a name, nobody's home
        problem = f"cannot be looked into ({error.strerror if isinstance(error, OSError) else error})"
    raise ModelLoadError(
        ModelLoadReason.MODEL_NOT_FOUND,
        f"{folder} {problem}; give a folder with config.json, safetensors weights and tokenizer.json, or a GGUF file: "
        "`fairlead-engine download` fetches one",
    )
