"""`python -m soak --minutes 60`: soaks a local fleet of three and prints the books. Exit status 1: something was wrong.

Ctrl-C ends the traffic early; the books are closed and the fleet is taken down all the same.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from cluster import kubectl
from homes.local import local_fleet

from soak.run import Soak, SoakOptions

FREE_BYTES = 2**17
"""What the heap of a process may keep that is free; glibc would raise it to 64 MiB as tensors come and go, which looks
like growth."""


def main() -> int:
    """0 when every book was right at the end."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of traffic and pauses (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of everything drawn (default: the time)")
    parser.add_argument("--clients", type=int, default=SoakOptions.num_clients, help="(default: %(default)s)")
    parser.add_argument("--attackers", type=int, default=SoakOptions.num_attackers, help="(default: %(default)s)")
    parser.add_argument("--burst-seconds", type=float, default=SoakOptions.burst_seconds, help="(default: %(default)s)")
    args = parser.parse_args()
    options = SoakOptions(
        seconds=args.minutes * 60,
        seed=args.seed,
        num_clients=args.clients,
        num_attackers=args.attackers,
        burst_seconds=args.burst_seconds,
    )
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(FREE_BYTES))
    with (
        tempfile.TemporaryDirectory(prefix="fairlead-soak-") as folder,
        local_fleet(Path(folder) / "fleet", kubectl.require()) as fleet,
    ):
        report = Soak(fleet, options, say=lambda line: print(line, flush=True)).play()
    print(report)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
