"""`python -m monitoring`: fetches Debian's Prometheus into the cache, if it is not installed. Prints where it is."""

import sys

from cluster.commands import ClusterError

from monitoring.prometheus import fetch, find


def main() -> int:
    """The exit status: 0 if there is a promtool."""
    try:
        if find("promtool") is None:
            fetch()
    except ClusterError as error:
        print(f"monitoring: {error}", file=sys.stderr)
        return 1
    found = find("promtool")
    print(found or "Prometheus is neither installed nor to be had from apt here")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
