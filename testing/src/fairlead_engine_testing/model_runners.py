"""Loaded models without an engine."""

from pathlib import Path
from typing import Any

from fairlead_engine.config import EngineConfig
from fairlead_engine.runner import ModelRunner


def loaded_runner(folder: Path, **settings: Any) -> ModelRunner:
    """The model in a folder; settings as in `EngineConfig`."""
    return ModelRunner(EngineConfig(model=str(folder), **settings))
