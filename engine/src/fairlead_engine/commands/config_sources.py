"""Where the engine's settings come from: command-line flags over a YAML or JSON file over the defaults."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from fairlead_engine.config import CharacteriseConfig, EngineConfig, ServerConfig
from fairlead_engine.errors import ConfigError
from fairlead_protocol.settings import SettingError, add_flags, given, read_file, values_of

Own = TypeVar("Own", ServerConfig, CharacteriseConfig)
"""What a command has settings for beside the engine's."""


def add_arguments(parser: argparse.ArgumentParser, own: type[Own] = ServerConfig) -> None:  # type: ignore[assignment]
    """One flag per setting, and `--config`. A flag that is not given leaves no trace: the file's value stands."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="YAML or JSON file with the same settings, without the dashes in front; flags override it",
    )
    for cls in (EngineConfig, own):
        add_flags(parser.add_argument_group(f"{cls.__name__.removesuffix('Config').lower()} settings"), cls)


def from_arguments(
    arguments: argparse.Namespace,
    own: type[Own] = ServerConfig,  # type: ignore[assignment]
) -> tuple[EngineConfig, Own]:
    """The settings of parsed flags and of the file they name. Raises `ConfigError`."""
    try:
        written = read_file(arguments.config, (EngineConfig, own)) if arguments.config else {}
    except SettingError as error:
        raise ConfigError(error.field, error.message, error.hint) from error
    return from_settings({**written, **given(arguments, (EngineConfig, own))}, own)


def from_settings(
    written: Mapping[str, Any],
    own: type[Own] = ServerConfig,  # type: ignore[assignment]
) -> tuple[EngineConfig, Own]:
    """The settings of a mapping by field name; text is read as the field's type. Raises `ConfigError`."""
    if "model" not in written:
        raise ConfigError("model", "is not given", "pass --model FOLDER, --model demo://dinghy or a --config with it")
    try:
        return EngineConfig(**values_of(EngineConfig, written)), own(**values_of(own, written))
    except SettingError as error:
        raise ConfigError(error.field, error.message, error.hint) from error
