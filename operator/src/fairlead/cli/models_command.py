"""`fairlead models`: models downloaded to this machine, and the catalogue of presets. Downloads are left to the
engine's program, which must be installed here; it is started, never imported."""

import argparse
import difflib
import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import yaml

from fairlead.cli.options import UsageError, completed, console_for_words, tell
from fairlead.fit.fit_check import read_shape, size
from fairlead.fit.presets import PURPOSES, Preset, presets

_PROGRAM = "fairlead-engine"
_PACKAGE = "fairlead_engine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    pull = actions.add_parser("pull", help="download a model, or what is left of it")
    pull.add_argument(
        "source", metavar="SOURCE", help="as spec.model.source: hf://ORGANISATION/NAME[:QUANTISATION][@REVISION], …"
    )
    _add_folder(pull, "--to")
    pull.add_argument("--revision", metavar="TEXT", help="branch, tag or commit of an hf:// source that names none")
    pull.add_argument("--size-limit", metavar="N", help="remove what is not in use for room, as in 100Gi")
    pull.add_argument("--refresh", action="store_true", help="ask the source although the model is there")
    listing = actions.add_parser("list", help="tell what was downloaded")
    _add_folder(listing, "--in")
    listing.add_argument("--json", action="store_true", help="for programs")
    prune = actions.add_parser("prune", help="remove what no engine serves: leftovers, and the models named")
    prune.add_argument("source", nargs="*", metavar="SOURCE", help="models to remove")
    _add_folder(prune, "--in")
    prune.add_argument("--all", action="store_true", help="remove every model that no engine serves")
    prune.add_argument("--size-limit", metavar="N", help="remove what was least recently used above this, as in 100Gi")
    _add_catalogue(actions.add_parser("catalog", help="list presets, or print one to be applied"))


def run(args: argparse.Namespace) -> int:
    """The exit status of the engine's program, or of the catalogue; 1 where that program is not installed. Without an
    action, the catalogue is listed."""
    if args.action in (None, "catalog"):
        return _run_catalogue(args)
    try:
        command = [*_program(), *_arguments(args)]
    except UsageError as error:
        tell(error)
        return 1
    return subprocess.run(command, check=False).returncode


def _add_folder(parser: argparse.ArgumentParser, flag: str) -> None:
    parser.add_argument(
        flag, dest="models", metavar="FOLDER",
        help="the models folder. Default: $FAIRLEAD_MODELS_FOLDER, or ~/.cache/fairlead/models",
    )  # fmt: skip


def _program() -> list[str]:
    """How the engine's program is started. Raises UsageError."""
    if find_spec(_PACKAGE) is not None:
        return [sys.executable, "-m", _PACKAGE]
    if (found := shutil.which(_PROGRAM)) is not None:
        return [found]
    raise UsageError(f"{_PROGRAM} downloads models, and is not installed here", "pip install fairlead-engine")


def _arguments(args: argparse.Namespace) -> list[str]:
    command = {"pull": "download", "list": "list-models", "prune": "prune-models"}[args.action]
    arguments = [command, *(["--attended"] if args.action == "pull" else [])]
    if args.models is not None:
        arguments += ["--to" if args.action == "pull" else "--in", args.models]
    for name in ("revision", "size_limit"):
        if (value := getattr(args, name, None)) is not None:
            arguments += [f"--{name.replace('_', '-')}={value}"]
    for name in ("refresh", "json", "all"):
        if getattr(args, name, False):
            arguments.append(f"--{name}")
    sources = getattr(args, "source", [])
    sources = [sources] if isinstance(sources, str) else sources
    if args.action == "pull" and (preset := presets().get(sources[0])) is not None:
        raise UsageError(
            f"{preset.name} is a preset, whose model is {preset.source}",
            f"pull that, or have a fleet do it: fairlead models catalog show {preset.name} | kubectl apply -f -",
        )
    return [*arguments, "--", *sources] if sources else arguments


def _add_catalogue(parser: argparse.ArgumentParser) -> None:
    shown = parser.add_subparsers(dest="shown", metavar="list|show")
    listing = shown.add_parser("list", help="all presets")
    listing.add_argument("--purpose", choices=PURPOSES, help="only those that were made for it")
    listing.add_argument(
        "--profile", choices=sorted({each.profile for each in presets().values()}), help="only those for it"
    )
    listing.add_argument("-o", "--output", choices=["json"], help="for other programs (default: a table)")
    show = shown.add_parser("show", help="one, as an LLMDeployment to be applied")
    completed(show.add_argument("name", metavar="NAME"), lambda args: presets())
    show.add_argument("-o", "--output", choices=["yaml", "json"], default="yaml", help="default: %(default)s")


def _run_catalogue(args: argparse.Namespace) -> int:
    """0, or 2 for a preset that there is not."""
    if getattr(args, "shown", None) != "show":
        purpose, profile = getattr(args, "purpose", None), getattr(args, "profile", None)
        listed = [preset for preset in presets().values() if purpose in (None, preset.purpose)]
        listed = [preset for preset in listed if profile in (None, preset.profile)]
        if getattr(args, "output", None) == "json":
            print(json.dumps([_facts(preset) for preset in listed], indent=2))
        else:
            _print_table(listed)
        return 0
    preset = presets().get(args.name)
    if preset is None:
        close = difflib.get_close_matches(args.name, presets(), n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}?" if close else "`fairlead models catalog` lists them"
        tell(UsageError(f"there is no preset {args.name!r}", hint))
        return 2
    manifest = preset.deployment()
    if args.output == "json":
        print(json.dumps(manifest, indent=2))
        return 0
    print(f"# {preset.about}. Licence: {preset.licence}.")
    if preset.gated:
        print("# A token of who accepted the terms: kubectl create secret generic hub --from-literal HF_TOKEN=hf_…")
    print(yaml.safe_dump(manifest, sort_keys=False), end="")
    return 0


def _print_table(listed: list[Preset]) -> None:
    """One line per preset. A narrow terminal gets fewer columns, each as a whole; pipes get all."""
    rows = [("name", "made for", "profile", "memory", "download", "licence", "what it is")]
    for each in listed:
        stored = size(read_shape(each.config).stored_bytes)
        rows.append((each.name, each.purpose, each.profile, each.memory, stored, each.licence, each.about))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    most = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    fitting, taken = [0], widths[0]
    for number, width in enumerate(widths[1:], 1):
        if taken + 2 + width <= most:
            fitting.append(number)
            taken += 2 + width
    for row in rows:
        print("  ".join(row[number].ljust(widths[number]) for number in fitting).rstrip())
    if left_out := [head for number, head in enumerate(rows[0]) if number not in fitting]:
        console_for_words().print(f"\nA wider terminal, or a pipe, shows more: {', '.join(left_out)}.", markup=False)


def _facts(preset: Preset) -> dict[str, Any]:
    """Bytes are of the checkpoint's files."""
    return {
        "name": preset.name,
        "about": preset.about,
        "source": preset.source,
        "purpose": preset.purpose,
        "licence": preset.licence,
        "gated": preset.gated,
        "parameters": preset.parameters,
        "weightsBytes": read_shape(preset.config).stored_bytes,
        "profile": preset.profile,
        "memory": preset.memory,
        "engine": dict(preset.engine),
    }
