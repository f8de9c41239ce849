"""How a model's line turns requests away: why → the sentence, status and Retry-After that the client gets. Pure."""

from enum import Enum

from fairlead.fleet.directory import Pool, ServedAdapter
from fairlead.gateway.openai.errors import OpenAIError, bad_request
from fairlead_protocol.adapters import UnknownAdapter
from fairlead_protocol.prompts import PromptError

COLD_RETRY_AFTER_SECONDS = 10.0
"""What a client is told to wait when nothing is ready: a model, or an adapter, takes a while to load."""
LONGEST_RETRY_AFTER_SECONDS = 30.0

_NOT_AGAIN = ((b"x-should-retry", b"false"),)
"""Tells OpenAI's clients, which retry a 503 by themselves, to show the sentence at once."""


class QueueOutcome(Enum):
    """How a request's wait for a replica ends in vain: (metric label, HTTP status, what the client is told). 429 means
    "try later", 503 "nothing can serve this"."""

    QUEUE_FULL = ("queue_full", 429, "Too many requests wait for the model {name!r} already; try again later.")
    """As many requests wait already as may."""
    QUEUE_TIMEOUT = (
        "queue_timeout",
        429,
        "Every replica of the model {name!r} was full for {limits.max_queue_time:g} seconds; try again later.",
    )
    """Replicas are ready but none had room within maxQueueTime."""
    NO_REPLICAS = ("no_replicas", 503, "Nothing serves the model {name!r}. {outlook}")
    """No replica is ready and none is going to be."""
    COLD_START_TIMEOUT = (
        "cold_start_timeout",
        503,
        "No replica of the model {name!r} became ready within {limits.cold_start_timeout:g} seconds. {outlook}",
    )
    """No replica became ready within coldStartTimeout."""
    REPLICAS_FAILING = ("replicas_failing", 503, "Every replica of the model {name!r} fails at the moment.")
    """Replicas are listed as ready, but requests to them fail."""
    ADAPTER_NOT_LOADED = (
        "adapter_not_loaded",
        503,
        "No replica of the model {name!r} has loaded its adapter {adapter!r}. {trouble}",
    )
    """The LLMDeployment lists the adapter, and no replica could load it, or none has within maxQueueTime."""
    MODEL_REMOVED = ("model_removed", 404, "The model {name!r} was removed.")
    """The LLMDeployment was deleted while the request waited."""

    def __init__(self, label: str, http_status: int, sentence: str) -> None:
        self.label = label
        self.http_status = http_status
        self.sentence = sentence


def unfit(error: PromptError) -> OpenAIError:
    """400 for a prompt that no replica could serve, whenever it comes, 404 for an adapter that none holds: the same
    answer as an engine's."""
    if isinstance(error, UnknownAdapter):
        return OpenAIError(404, error.message, param="model", code="model_not_found")
    return bad_request(error.message, param=error.field, code=error.code)


def without_adapter(pool: Pool, adapter: str, *, is_late: bool = False) -> OpenAIError | None:
    """For an adapter that no replica serves: 404 where nobody lists it, 503 where it cannot be loaded or, if `is_late`,
    was not; None = it may be waited for."""
    listed = pool.model.adapter(adapter)
    if listed is None:
        return unfit(UnknownAdapter(adapter, pool.adapters))
    if not listed.trouble and not is_late:
        return None
    return refusal(QueueOutcome.ADAPTER_NOT_LOADED, pool, adapter=listed)


def refusal(
    outcome: QueueOutcome, pool: Pool, *, oldest_wait_seconds: float = 0.0, adapter: ServedAdapter | None = None
) -> OpenAIError:
    """`oldest_wait_seconds`: of the line, which is what a client that comes again may expect to wait. `adapter`: the
    one that this is about."""
    model, about = pool.model, adapter or ServedAdapter("")
    message = outcome.sentence.format(
        name=model.served_name,
        limits=model.routing,
        outlook=pool.outlook.message,
        adapter=about.name,
        trouble=about.trouble,
    )
    retry_after: float | None = min(max(1.0, oldest_wait_seconds), LONGEST_RETRY_AFTER_SECONDS)
    if outcome in (QueueOutcome.COLD_START_TIMEOUT, QueueOutcome.ADAPTER_NOT_LOADED):
        retry_after = COLD_RETRY_AFTER_SECONDS
    elif outcome in (QueueOutcome.NO_REPLICAS, QueueOutcome.MODEL_REMOVED):
        retry_after = None
    status, label = outcome.http_status, outcome.label
    headers = _NOT_AGAIN if outcome is QueueOutcome.NO_REPLICAS else ()
    return OpenAIError(status, message.rstrip(), code=label, outcome=label, retry_after=retry_after, headers=headers)
