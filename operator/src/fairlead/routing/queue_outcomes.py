"""How a request's wait for a replica ends: a closed set, each tied once to a metric label and an HTTP status.

429 means "try later", 503 means "nothing can serve this".
"""

from enum import Enum


class QueueOutcome(Enum):
    """(metric label, HTTP status the client gets); status 0 = the queue answers nothing itself."""

    DISPATCHED = ("dispatched", 0)
    """A replica had room."""
    QUEUE_FULL = ("queue_full", 429)
    """As many requests wait already as may."""
    QUEUE_TIMEOUT = ("queue_timeout", 429)
    """Replicas are ready but none had room within maxQueueTime."""
    NO_REPLICAS = ("no_replicas", 503)
    """No replica is ready and none is going to be."""
    COLD_START_TIMEOUT = ("cold_start_timeout", 503)
    """No replica became ready within coldStartTimeout."""
    REPLICAS_FAILING = ("replicas_failing", 503)
    """Replicas are listed as ready, but requests to them fail."""
    MODEL_REMOVED = ("model_removed", 404)
    """The LLMDeployment was deleted while the request waited."""
    CANCELLED = ("cancelled", 0)
    """The client went away."""

    def __init__(self, label: str, http_status: int) -> None:
        self.label = label
        self.http_status = http_status
