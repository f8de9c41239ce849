"""Kubernetes as the cache has it: built where it is lacking, and older builds removed then.

Not in build.py, whose text is part of the cache's key: what is kept does not change what is built.
"""

from caches import pruned

from cluster import build
from cluster.build import Binaries
from cluster.commands import Progress


def obtain(progress: Progress) -> Binaries:
    """The build for the present recipe. A new one leaves one older build beside it, and those that are in use."""
    with pruned(build.cache_root(), progress.say):
        return build.build(progress)
