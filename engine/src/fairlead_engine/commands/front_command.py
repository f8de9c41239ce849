"""`fairlead-engine front`: the command line of what stands in front of a server that is not ours."""

import argparse
from pathlib import Path

from fairlead_engine.errors import ConfigError
from fairlead_engine.front.front_config import FrontConfig
from fairlead_engine.server import termination
from fairlead_protocol.settings import SettingError, add_flags, given, read_file, values_of

_USAGE_ERROR = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag per setting, and `--config`."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="YAML or JSON file with the same settings, without the dashes in front; flags override it",
    )
    add_flags(parser, FrontConfig)


def run(arguments: argparse.Namespace) -> int:
    """Serves until drained; 1 where it cannot start, 2 for settings that do not fit."""
    try:
        config = _config(arguments)
    except ConfigError as error:
        termination.report(error)
        return _USAGE_ERROR
    from fairlead_engine.front.front_process import run as serve  # it imports the HTTP stack

    return serve(config)


def _config(arguments: argparse.Namespace) -> FrontConfig:
    """Raises ConfigError."""
    try:
        written = read_file(arguments.config, (FrontConfig,)) if arguments.config else {}
        written |= given(arguments, (FrontConfig,))
        if "model" not in written:
            raise ConfigError("model", "is not given", "pass --model FOLDER, where its tokenizer is")
        return FrontConfig(**values_of(FrontConfig, written))
    except SettingError as error:
        raise ConfigError(error.field, error.message, error.hint) from error
