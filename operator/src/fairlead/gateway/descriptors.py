"""The process's file descriptors: as many as the connections it may have need."""

import logging
import resource

logger = logging.getLogger(__name__)

PER_CONNECTION = 2
"""One for the client's, one for the replica's."""
SPARE = 256
"""For listening, following engines and the API, and idle connections to replicas."""


def allow_descriptors(num_connections: int) -> None:
    """Raises the process's limit to what `num_connections` clients may need, as far as it is allowed to; says so where
    that is not far enough."""
    needed = num_connections * PER_CONNECTION + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (ValueError, OSError) as error:
            logger.info("the limit of open files stays at %d: %s", soft, error)
    if soft != resource.RLIM_INFINITY and soft < needed:
        enough_for = max(0, soft - SPARE) // PER_CONNECTION
        logger.warning("%d open files are enough for %d connections, not for --max-connections", soft, enough_for)
