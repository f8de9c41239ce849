"""The `fairlead` command: picks a program, parses its arguments, runs it. Other installed distributions add
programs."""

import argparse
import difflib
import errno
import io
import os
import signal
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import NamedTuple

from fairlead import __version__
from fairlead_common.garbage import end_unsearched, unsearched

GROUP = "fairlead.commands"
"""Entry points of this group are `Command`s, named as typed."""


class Command(NamedTuple):
    """A module with `add_arguments(parser)` and `run(args) -> exit status`, and one line for the help."""

    module: str
    summary: str


OWN = {
    "operator": Command("fairlead.controller.operator", "reconcile LLMDeployments on a Kubernetes cluster"),
    "gateway": Command(
        "fairlead.gateway.gateway_command", "serve every LLMDeployment behind one OpenAI-compatible address"
    ),
    "chat": Command("fairlead.cli.chat", "talk to a model through a gateway"),
    "bench": Command("fairlead.cli.bench", "put a load on a gateway and measure what comes of it"),
    "status": Command(
        "fairlead.cli.status_command", "what is served and how it is, who looks after it, and what nobody looks after"
    ),
    "top": Command(
        "fairlead.cli.top", "watch fleets live: replicas, queues, first tokens, and what the autoscaler says"
    ),
    "dashboard": Command("fairlead.cli.dashboard", "open the page of a gateway: models, a chat, the last hour"),
    "check": Command(
        "fairlead.cli.check_command", "say whether models fit what their replicas get, before anything is scheduled"
    ),
    "simulate": Command(
        "fairlead.cli.simulate_command", "play a load in virtual time, to see what the autoscaler would have done"
    ),
    "models": Command(
        "fairlead.cli.models_command", "download models to this machine, list them, remove them; a catalogue of presets"
    ),
    "completion": Command(
        "fairlead.cli.completion", "print what makes a shell complete these commands: bash, zsh or fish"
    ),
}
"""A command's module is imported only when it is chosen."""

KUBECTL = {
    "apply",
    "create",
    "delete",
    "describe",
    "edit",
    "events",
    "exec",
    "get",
    "logs",
    "patch",
    "rollout",
    "scale",
}
"""What people try here, and kubectl has."""
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""The system's errors for files and terminals that take no more."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status (2 = wrong usage)."""
    if os.getpid() == 1:
        # The kernel keeps signals from a container's first process until it asks for them. Until the command does, a
        # pod that is deleted while it starts would wait for its whole grace period.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # images block it until here
    end_unsearched()
    _settle_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    try:
        with unsearched():
            parser = build_parser({chosen} if chosen else ())
        args = parser.parse_args(arguments)
        status = int(args.run(args))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output (`| head`) has seen enough
        _drop_output()
        return 0
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        _drop_output()
        print(f"error: cannot write{f' {error.filename}' if error.filename else ''}: {error.strerror}", file=sys.stderr)
        return 1
    return status


def _settle_streams() -> None:
    """Opens closed standard streams, and lets output take any text. Python has None for closed streams (`<&-`), and
    fails at characters missing in the encoding."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:  # else the next file that is opened would be the stream
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Unwritable output would be tried again at exit, and fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser(chosen: Collection[str]) -> argparse.ArgumentParser:
    """Has every command; only chosen commands are imported and know their arguments."""
    parser = argparse.ArgumentParser(prog="fairlead", description="Fleets of language models on Kubernetes.")
    parser.add_argument("--version", action="version", version=f"fairlead {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    # Looking for other distributions' takes tens of milliseconds, which the programs' start need not wait for.
    commands = OWN if chosen and OWN.keys() >= set(chosen) else find_commands()
    for name in set(chosen) - commands.keys():
        parser.error(f"no command {name!r}{_instead(name, commands)}")
    for name, command in commands.items():
        subparser = subparsers.add_parser(name, help=command.summary, description=command.summary)
        if name in chosen:
            program = import_module(command.module)
            program.add_arguments(subparser)
            subparser.set_defaults(run=program.run)
    return parser


def _instead(name: str, commands: Collection[str]) -> str:
    if name in KUBECTL:
        return "; kubectl has it, where LLMDeployments are `llm` (`kubectl get llm`)"
    close = difflib.get_close_matches(name, commands)
    return f": did you mean {' or '.join(close)}?" if close else "; `fairlead --help` tells all"


def find_commands() -> dict[str, Command]:
    """Every command by its name. Ours cannot be replaced."""
    others = {point.name: point for point in entry_points(group=GROUP) if point.name not in OWN}
    return OWN | {name: point.load() for name, point in others.items()}
