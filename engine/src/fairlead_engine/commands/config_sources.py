"""Sources of the engine's settings: command-line flags over a YAML or JSON file over the defaults."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from fairlead_common.settings import SettingError, add_flags, given, read_file, values_of
from fairlead_engine.config import CharacteriseConfig, EngineConfig, ServerConfig
from fairlead_engine.errors import ConfigError
from fairlead_engine.external.front_config import FrontConfig

Own = TypeVar("Own", ServerConfig, CharacteriseConfig)
"""A command's settings beside the engine's."""


def add_arguments(parser: argparse.ArgumentParser, own: type[Own] = ServerConfig) -> None:  # type: ignore[assignment]
    """One flag per setting, and `--config`. Missing flags leave the file's values unchanged."""
    _add_file(parser)
    for cls in (EngineConfig, own):
        add_flags(parser.add_argument_group(f"{cls.__name__.removesuffix('Config').lower()} settings"), cls)


def add_front_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the front."""
    _add_file(parser)
    add_flags(parser, FrontConfig)


def from_arguments(
    arguments: argparse.Namespace,
    own: type[Own] = ServerConfig,  # type: ignore[assignment]
) -> tuple[EngineConfig, Own]:
    """The settings of parsed flags and of the file they name. Raises `ConfigError`."""
    return from_settings(_written(arguments, (EngineConfig, own)), own)


def front_from_arguments(arguments: argparse.Namespace) -> FrontConfig:
    """The front's settings. Raises `ConfigError`."""
    hint = "pass --model FOLDER, where its tokenizer is"
    [config] = _made(_written(arguments, (FrontConfig,)), (FrontConfig,), hint)
    return config  # type: ignore[no-any-return]


def from_settings(
    written: Mapping[str, Any],
    own: type[Own] = ServerConfig,  # type: ignore[assignment]
) -> tuple[EngineConfig, Own]:
    """The settings of a mapping by field name; text is read as the field's type. Raises `ConfigError`."""
    engine, of_command = _made(
        written, (EngineConfig, own), "pass --model FOLDER, --model demo://dinghy or a --config with it"
    )
    return engine, of_command


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="YAML or JSON file with the same settings, without the dashes in front; flags override it",
    )


def _written(arguments: argparse.Namespace, classes: tuple[type, ...]) -> dict[str, Any]:
    try:
        written = read_file(arguments.config, classes) if arguments.config else {}
    except SettingError as error:
        raise ConfigError(error.field, error.message, error.hint) from error
    return {**written, **given(arguments, classes)}


def _made(written: Mapping[str, Any], classes: tuple[type, ...], hint: str) -> list[Any]:
    if "model" not in written:
        raise ConfigError("model", "is not given", hint)
    try:
        return [cls(**values_of(cls, written)) for cls in classes]
    except SettingError as error:
        raise ConfigError(error.field, error.message, error.hint) from error
