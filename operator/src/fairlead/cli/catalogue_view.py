"""`fairlead models catalog`: the presets, and one of them as an LLMDeployment."""

import argparse
import difflib
import json
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from fairlead.cli.options import UsageError, tell
from fairlead.fit.fit_check import read_shape, size
from fairlead.fit.presets import Preset, presets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shown = parser.add_subparsers(dest="shown", metavar="list|show")
    listing = shown.add_parser("list", help="all presets")
    listing.add_argument("-o", "--output", choices=["json"], help="for other programs (default: a table)")
    show = shown.add_parser("show", help="one, as an LLMDeployment to be applied")
    show.add_argument("name", metavar="NAME")
    show.add_argument("-o", "--output", choices=["yaml", "json"], default="yaml", help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """0, or 2 for a preset that there is not."""
    if args.shown != "show":
        if getattr(args, "output", None) == "json":
            print(json.dumps([_facts(preset) for preset in presets().values()], indent=2))
        else:
            _print_all()
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
    print(f"# {preset.about}.")
    if preset.gated:
        print("# A token of who accepted the terms: kubectl create secret generic hub --from-literal HF_TOKEN=hf_…")
    print(yaml.safe_dump(manifest, sort_keys=False), end="")
    return 0


def _print_all() -> None:
    table = Table("name", "profile", "memory", "download", "what it is", box=None, pad_edge=False)
    for preset in presets().values():
        stored = size(read_shape(preset.config).stored_bytes)
        table.add_row(preset.name, preset.profile, preset.memory, stored, preset.about)
    Console(highlight=False, soft_wrap=True).print(table)


def _facts(preset: Preset) -> dict[str, Any]:
    """Bytes are of the checkpoint's files."""
    return {
        "name": preset.name,
        "about": preset.about,
        "source": preset.source,
        "gated": preset.gated,
        "parameters": preset.parameters,
        "weightsBytes": read_shape(preset.config).stored_bytes,
        "profile": preset.profile,
        "memory": preset.memory,
        "engine": dict(preset.engine),
    }
