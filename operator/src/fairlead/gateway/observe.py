"""What is seen of one request: the figures that metrics and the log line are made of. One Observation per request."""

import asyncio
import logging
from dataclasses import dataclass, field

from fairlead.gateway.outcomes import RequestOutcome
from fairlead.gateway.parse import InferenceRequest
from fairlead.gateway.sse import Usage
from fairlead.routing.replica import Decision

logger = logging.getLogger("fairlead.gateway.requests")


def _now() -> float:
    return asyncio.get_running_loop().time()


@dataclass(slots=True)
class Observation:
    """Filled on the way; times are seconds since the request's arrival, None where the point was not reached."""

    request_id: str
    path: str
    arrived: float = field(default_factory=_now)
    """Loop time."""
    asked_model: str = ""
    """As the client wrote it."""
    model: str = ""
    """`namespace/name` of the LLMDeployment; empty where none was found."""
    stream: bool = False
    status: int = 0
    """What the client got; 0 = nothing."""
    outcome: str = RequestOutcome.INTERNAL_ERROR
    """A RequestOutcome, or the label of a QueueOutcome."""
    replica: str = ""
    """The last one tried."""
    reason: str = ""
    """Why it was chosen."""
    num_attempts: int = 0
    queue_seconds: float = 0.0
    """Time spent waiting for a replica, over all attempts."""
    ttft_seconds: float | None = None
    """Time to the first token; to the whole answer where it is not streamed."""
    duration_seconds: float = 0.0
    usage: Usage | None = None

    def parsed(self, request: InferenceRequest) -> None:
        """The request could be read."""
        self.asked_model = request.model
        self.stream = request.stream

    def routed(self, decision: Decision, queue_seconds: float) -> None:
        """An attempt begins at this replica."""
        self.num_attempts += 1
        self.replica = decision.replica.name
        self.reason = decision.reason
        self.queue_seconds = queue_seconds

    def first_token(self) -> None:
        """The first token has come; later ones do not count."""
        if self.ttft_seconds is None:
            self.ttft_seconds = _now() - self.arrived

    def ended(self, status: int) -> None:
        """The request is over; `status` is what the client got."""
        self.status = status
        self.duration_seconds = _now() - self.arrived


def log_request(seen: Observation) -> None:
    """One line per request, with what the decision rested on."""
    if not logger.isEnabledFor(logging.INFO):
        return
    usage = seen.usage
    fields = {
        "request_id": seen.request_id,
        "path": seen.path,
        "model": seen.model,
        "asked_model": seen.asked_model,
        "stream": seen.stream,
        "status": seen.status,
        "outcome": seen.outcome,
        "replica": seen.replica or None,
        "reason": seen.reason or None,
        "num_attempts": seen.num_attempts,
        "queue_seconds": _rounded(seen.queue_seconds),
        "ttft_seconds": _rounded(seen.ttft_seconds),
        "duration_seconds": _rounded(seen.duration_seconds),
        "num_prompt_tokens": usage.prompt_tokens if usage else None,
        "num_cached_tokens": usage.cached_tokens if usage else None,
        "num_completion_tokens": usage.completion_tokens if usage else None,
    }
    logger.info("request", extra=fields)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
