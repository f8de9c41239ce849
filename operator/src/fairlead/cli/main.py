"""The `fairlead` command: picks a program, parses its arguments, runs it."""

import argparse
import os
import signal
import sys
from collections.abc import Collection, Sequence
from importlib import import_module

from fairlead import __version__

COMMANDS = {
    "operator": ("fairlead.controller.command", "reconcile LLMDeployments on a Kubernetes cluster"),
    "gateway": ("fairlead.gateway.command", "serve every LLMDeployment behind one OpenAI-compatible address"),
    "local": ("fairlead.local.command", "a whole fleet on this machine, without a cluster"),
    "chat": ("fairlead.cli.chat", "talk to a model through a gateway"),
    "bench": ("fairlead.cli.bench", "put a load on a gateway and measure what comes of it"),
    "status": ("fairlead.cli.status", "what is served and how it is, who looks after it, and what nobody looks after"),
    "top": ("fairlead.cli.top", "watch fleets live: replicas, queues, first tokens, and what the autoscaler says"),
    "completion": ("fairlead.cli.completion", "print what makes a shell complete these commands: bash, zsh or fish"),
    "demo": ("fairlead.cli.demo", "show a local fleet from `kubectl apply` to an answer, and take it down again"),
}
"""Command → (module with `add_arguments` and `run`, one line for the help). Modules are imported only when chosen."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status (2 = wrong usage)."""
    if os.getpid() == 1:
        # The kernel keeps signals from a container's first process until it asks for them. Until the command does, a
        # pod that is deleted while it starts would wait for its whole grace period.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    args = build_parser({chosen} if chosen else ()).parse_args(arguments)
    try:
        status = int(args.run(args))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output (`| head`) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def build_parser(chosen: Collection[str]) -> argparse.ArgumentParser:
    """Of every command; only those chosen are imported and know their arguments."""
    parser = argparse.ArgumentParser(prog="fairlead", description="Fleets of language models on Kubernetes.")
    parser.add_argument("--version", action="version", version=f"fairlead {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary, description=summary)
        if name in chosen:
            program = import_module(module)
            program.add_arguments(subparser)
            subparser.set_defaults(run=program.run)
    return parser
