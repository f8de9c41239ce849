"""`python -m oracle {build,up,down}`: the oracle from a shell. Progress goes to stderr, results to stdout.

`up` prints a curl command that may ask it. kubectl does not work with a server that has no core API.
"""

import argparse
import subprocess
import sys

from cluster.commands import ClusterError, Progress

from oracle.build import BuildError
from oracle.entries import renew
from oracle.processes import OracleError
from oracle.server import start_in_background, state_folder, stop


def main() -> int:
    parser = argparse.ArgumentParser(prog="oracle", description=sys.modules["oracle"].__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("build", help="build from the versions that Debian has today, unless the cache has that build")
    verbs.add_parser("up", help="run it in the background, building it first where the cache has none")
    verbs.add_parser("down", help="end it and remove everything that it wrote")
    try:
        return _act(parser.parse_args().verb)
    except (BuildError, ClusterError, OracleError, FileNotFoundError, subprocess.CalledProcessError) as error:
        print(f"oracle: {error}", file=sys.stderr)
        return 1


def _act(verb: str) -> int:
    say = Progress().say
    folder = state_folder()
    match verb:
        case "build":
            print(renew(say).binary)
        case "up":
            oracle = start_in_background(folder)
            say(f"the apiextensions-apiserver of Kubernetes {oracle.kubernetes} answers at {oracle.url}")
            print(oracle.curl())
        case "down":
            say(f"ended, and {folder} removed" if stop(folder) else f"nothing runs in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
