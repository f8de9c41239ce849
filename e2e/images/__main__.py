"""`python -m images`: build the images, and show what is in one."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.commands import ClusterError, Progress

from images.archive import ImageArchive
from images.build import build
from images.layout import Layout
from images.recipes import DEFAULT_IMAGES, RECIPES
from images.sizes import sizes_table


def build_parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    parser = argparse.ArgumentParser(prog="python -m images", description="Fairlead's container images for tests.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    make = commands.add_parser("build", help="write DIR/NAME.tar for each image, reusing what is unchanged")
    make.add_argument("--out", type=Path, metavar="DIR", help="default: out/ in the cache")
    make.add_argument("names", nargs="*", choices=[*RECIPES, []], metavar="NAME", help=", ".join(RECIPES))
    show = commands.add_parser("sizes", help="what an image archive's bytes are spent on")
    show.add_argument("archive", type=Path, help="a docker-archive, such as `build` writes")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    options = build_parser().parse_args(arguments)
    try:
        if options.command == "sizes":
            print(sizes_table(ImageArchive(options.archive)))
            return 0
        written = build(options.names or DEFAULT_IMAGES, Layout.default(), options.out, Progress())
    except ClusterError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    for path in written.values():
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
