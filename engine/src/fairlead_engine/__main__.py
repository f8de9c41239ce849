"""`fairlead-engine`: the command line of the engine."""

import argparse
import difflib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from fairlead_common.garbage import end_unsearched, unsearched
from fairlead_engine.commands import models_command, quantization_commands
from fairlead_engine.commands.config_sources import (
    add_arguments,
    add_front_arguments,
    from_arguments,
    front_from_arguments,
)
from fairlead_engine.config import CharacteriseConfig, ServerConfig
from fairlead_engine.errors import ConfigError
from fairlead_engine.host import termination
from fairlead_engine.version import __version__

_USAGE_ERROR = 2
_ALIKE = 0.75


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line to the termination log as well, where the operator finds it."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuses what is not known at once: the parser of the command knows best what was meant."""
        parsed, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}{self._meant(rest[0])}")
        return parsed, rest

    def _meant(self, unknown: str) -> str:
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        flags = [flag for action in shown for flag in action.option_strings]
        if not unknown.startswith("-"):
            return f" (did you mean --model {unknown}?)" if "--model" in flags else ""
        close = difflib.get_close_matches(unknown.partition("=")[0], flags, n=1, cutoff=_ALIKE)
        return f" (did you mean {close[0]}?)" if close else ""

    def error(self, message: str) -> NoReturn:
        termination.report(ConfigError("command-line", message, f"see {self.prog} --help"))
        raise SystemExit(_USAGE_ERROR)


def _characterise(parsed: argparse.Namespace) -> int:
    model, command = from_arguments(parsed, CharacteriseConfig)
    from fairlead_engine.characterise.command import run  # it imports numpy

    return run(model, command)


def _front(parsed: argparse.Namespace) -> int:
    config = front_from_arguments(parsed)
    with unsearched():
        from fairlead_engine.external.front_process import run  # it imports the HTTP stack

    return run(config)


def _serve(parsed: argparse.Namespace) -> int:
    engine, server = from_arguments(parsed, ServerConfig)
    from fairlead_engine.server.serve import run  # after the settings are known to be good: it imports the HTTP stack

    return run(engine, server)


_Command = tuple[str, str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]
"""What a command does in a line and in a paragraph, its arguments, and what runs it."""
_COMMANDS: dict[str, _Command] = {
    "serve": ("serve a model over the OpenAI API", "Serves one model over the OpenAI API.", add_arguments, _serve),
    "characterise": (
        "measure a model on this machine, and write what was measured for `serve --profile`",
        "Measures what a model's steps take on this machine; writes a profile and a picture of it.",
        lambda parser: add_arguments(parser, CharacteriseConfig),
        _characterise,
    ),
    "compare": (
        "tell what quantising a model costs in precision",
        "Compares a model with quantised weights with the one that it was made of, on prompts of random "
        "tokens. Both are in memory at once.",
        quantization_commands.add_compare_arguments,
        quantization_commands.run_compare,
    ),
    "quantize": (
        "write a model with quantised weights",
        "Rounds the weights of a model's linear layers, and writes a checkpoint in compressed-tensors' "
        "layout. Embeddings, the output projection, normalisations and routers of experts stay as they are.",
        quantization_commands.add_quantize_arguments,
        quantization_commands.run_quantize,
    ),
    "download": (
        "fetch a model from its source into a models folder",
        "Fetches what serving needs of a model, goes on where an earlier run ended, checks it and puts it "
        "into FOLDER, whole or not at all. Credentials come from the environment alone: HF_TOKEN, HTTPS_AUTHORIZATION.",
        models_command.add_download_arguments,
        models_command.run_download,
    ),
    "download-adapters": (
        "keep the adapters that a file lists in a models folder, for as long as it runs",
        "Fetches each adapter that FILE lists, as `download` does, tries again what fails, and holds what "
        "is there until it is listed no more. GET /sources tells how it is with each.",
        models_command.add_adapters_arguments,
        models_command.run_adapters,
    ),
    "list-models": (
        "tell which models were downloaded",
        "Tells which models a models folder has, how large they are and whether an engine serves them.",
        models_command.add_list_arguments,
        models_command.run_list,
    ),
    "prune-models": (
        "remove models that were downloaded",
        "Removes what is left of downloads that were given up, and the models that are named. One that an "
        "engine serves is never removed.",
        models_command.add_prune_arguments,
        models_command.run_prune,
    ),
    "front": (
        "stand in front of a server that is not ours, such as vLLM",
        "Stands in front of a server that is not ours, in the same pod: to gateways and operators it is an "
        "engine. It tells them the server's blocks, load and step cost, drains it, and passes requests on.",
        add_front_arguments,
        _front,
    ),
}


def build_parser() -> argparse.ArgumentParser:
    """The command line's grammar: one flag per setting."""
    parser = _Parser(prog="fairlead-engine", description="Continuous-batching inference engine.")
    parser.add_argument("--version", action="version", version=f"fairlead-engine {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (told, description, add, _) in _COMMANDS.items():
        add(commands.add_parser(name, help=told, description=description, allow_abbrev=False))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status: 0 done, 1 could not start or go on, 2 wrong usage."""
    if os.getpid() == 1:
        # The kernel keeps signals from a container's first process until it asks for them. Until the server does, a pod
        # that is deleted while it starts would wait for its whole grace period.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # images block it until here
    end_unsearched()
    parsed = build_parser().parse_args(arguments)
    try:
        return _COMMANDS[parsed.command][3](parsed)
    except ConfigError as error:
        termination.report(error)
        return _USAGE_ERROR


def program() -> NoReturn:
    """`main` as a process of its own, which ends with its exit status."""
    status = main()
    if "obstore" in sys.modules:
        # Its threads may still let go of something when asyncio is done with it, and abort a process whose interpreter
        # ends meanwhile (PyO3/pyo3-async-runtimes, issue 40).
        logging.shutdown()
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    program()
