"""`python -m release`: push images, or the chart, to a registry."""

import argparse
import sys
from collections.abc import Sequence

from cluster.commands import ClusterError, Progress
from images.build import build
from images.layout import Layout
from images.recipes import RECIPES

from release.publishing import base_image, check_tag, checked_registry, checked_revision, push_chart, push_image

RELEASED = ("engine", "operator")
"""What is pushed when nobody says: `engine-cuda` is large, and needs the CUDA build of torch."""


def build_parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    parser = argparse.ArgumentParser(prog="python -m release", description="Pushes a release to a registry.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    images = commands.add_parser("images", help="build images and push them, each with what is in it")
    chart = commands.add_parser("chart", help="package the chart and push it")
    check = commands.add_parser("check", help="tell whether a tag of git is that of this version")
    check.add_argument("tag", metavar="TAG", help="such as v1.2.3")
    for each in (images, chart):
        each.add_argument("registry", metavar="REGISTRY", help="HOST or HOST/FOLDER")
    known = [name for name, recipe in RECIPES.items() if recipe.packages]
    images.add_argument("names", nargs="*", choices=[*known, []], metavar="NAME", help=", ".join(known))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status. Names with digests are printed, one a line."""
    options, progress = build_parser().parse_args(arguments), Progress()
    try:
        if options.command == "check":
            check_tag(options.tag)
            return 0
        registry = checked_registry(options.registry)
        if options.command == "chart":
            print(push_chart(registry, progress))
            return 0
        checked_revision()
        written = build(options.names or RELEASED, Layout.default(), None, progress)
        base = base_image()
        for name, archive in written.items():
            print(push_image(registry, name, archive, base, progress), flush=True)
    except ClusterError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
