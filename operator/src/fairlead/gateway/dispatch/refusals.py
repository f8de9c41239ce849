"""How a model's line turns requests away: why → the sentence, status and Retry-After that the client gets. Pure."""

from fairlead.fleet.pool import Pool
from fairlead.gateway.openai.errors import OpenAIError, adapter_not_found, bad_request, refused
from fairlead.routing.queue_outcomes import QueueOutcome
from fairlead_protocol.adapters import UnknownAdapter
from fairlead_protocol.prompts import PromptError

COLD_RETRY_AFTER_SECONDS = 10.0
"""What a client is told to wait when nothing is ready: a model takes a while to load."""
LONGEST_RETRY_AFTER_SECONDS = 30.0


def unfit(error: PromptError) -> OpenAIError:
    """400 for a prompt that no replica could serve, whenever it comes, 404 for an adapter that none holds: the same
    answer as an engine's."""
    if isinstance(error, UnknownAdapter):
        return adapter_not_found(error.message)
    return bad_request(error.message, param=error.field, code=error.code)


def refusal(outcome: QueueOutcome, pool: Pool, *, oldest_wait_seconds: float) -> OpenAIError:
    """`oldest_wait_seconds`: of the line, which is what a client that comes again may expect to wait."""
    model, outlook = pool.model, pool.outlook
    name = model.served_name
    retry_after = min(max(1.0, oldest_wait_seconds), LONGEST_RETRY_AFTER_SECONDS)
    if outcome is QueueOutcome.QUEUE_FULL:
        message = f"Too many requests wait for the model {name!r} already; try again later."
    elif outcome is QueueOutcome.QUEUE_TIMEOUT:
        seconds = model.routing.max_queue_time
        message = f"Every replica of the model {name!r} was full for {seconds:g} seconds; try again later."
    elif outcome is QueueOutcome.REPLICAS_FAILING:
        message = f"Every replica of the model {name!r} fails at the moment."
    elif outcome is QueueOutcome.COLD_START_TIMEOUT:
        retry_after = COLD_RETRY_AFTER_SECONDS
        limit = f"{model.routing.cold_start_timeout:g} seconds"
        message = f"No replica of the model {name!r} became ready within {limit}. {outlook.message}"
    elif outcome is QueueOutcome.NO_REPLICAS:
        retry_after = COLD_RETRY_AFTER_SECONDS
        message = f"Nothing serves the model {name!r}. {outlook.message}"
    else:
        return refused(outcome, f"The model {name!r} was removed.", retry_after=None)
    return refused(outcome, message.rstrip(), retry_after=retry_after)
