"""Prints what packages of this repository need from elsewhere, one requirement a line, for `pip install -r`.

    python requirements/third_party.py [--extra NAME]… FOLDER…

The images install these before our own code is copied in: the layer with them changes only when they do. Standard
library only, because it runs before anything is installed.
"""

import argparse
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

OURS = "fairlead"
"""Names that begin so are packages of this repository."""


def third_party(folders: Iterable[Path], extras: Iterable[str] = ()) -> Iterator[str]:
    """The requirements of the packages in `folders` and of their `extras`, without our own packages."""
    chosen = tuple(extras)
    for folder in folders:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        optional = project.get("optional-dependencies", {})
        groups = [project["dependencies"], *(optional.get(extra, []) for extra in chosen)]
        yield from (requirement for group in groups for requirement in group if not requirement.startswith(OURS))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Prints what packages of this repository need from elsewhere.")
    parser.add_argument("--extra", action="append", default=[], help="an optional group to include")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="with a pyproject.toml in it")
    options = parser.parse_args()
    sys.stdout.writelines(f"{requirement}\n" for requirement in third_party(options.folders, options.extra))


if __name__ == "__main__":
    main()
