"""The models that ship with the engine, as `demo://NAME`; and how a model's source becomes a folder."""

from pathlib import Path

from fairlead_engine.errors import ModelLoadError, ModelLoadReason

SCHEME = "demo://"


def known_demos() -> list[str]:
    """Names of the bundled models."""
    return sorted(folder.parent.name for folder in Path(__file__).parent.glob("*/config.json"))


def resolve_model(source: str) -> Path:
    """The folder of a model given as a path or as `demo://NAME`.

    Raises `ModelLoadError` (ModelNotFound) when there is no such folder or no such bundled model.
    """
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
            f"{source!r} is not a source this engine can open; give a folder that holds the model, or demo://NAME",
        )
    folder = Path(source).expanduser()
    if not (folder / "config.json").is_file():
        problem = "has no config.json" if folder.is_dir() else "does not exist or is not a folder"
        raise ModelLoadError(
            ModelLoadReason.MODEL_NOT_FOUND,
            f"{folder} {problem}; give a folder with config.json, safetensors weights and tokenizer.json",
        )
    return folder
