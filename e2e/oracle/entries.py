"""The oracle as the cache has it: built where it is lacking or Debian has newer versions; older builds removed then.

Not in build.py, whose text is part of the cache's key: what is kept does not change what is built.
"""

from caches import pruned
from cluster.commands import Progress

from oracle import build
from oracle.build import Build, Say


def obtain() -> Build:
    """The latest build that the cache has, else a new one. Errors are those of `renew`."""
    return build.ready() or renew()


def renew(say: Say | None = None) -> Build:
    """The build of the versions that Debian has today. A new one leaves one older build beside it, and those in use.

    Raises BuildError or ClusterError.
    """
    say = say or Progress().say
    with pruned(build.cache_root(), say):
        return build.build(say=say)
