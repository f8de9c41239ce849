"""The outputs of one request on their way to one consumer."""

import asyncio

from fairlead_engine.errors import EngineError
from fairlead_engine.types import SequenceOutput, TokenLogprobs


class RequestStream:
    """Holds at most one output: what a slow consumer has not taken yet is merged, so memory stays bounded by tokens.

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._pending: SequenceOutput | None = None
        self._error: EngineError | None = None
        self._ready = asyncio.Event()

    def put(self, output: SequenceOutput) -> None:
        """Adds a step's output."""
        self._pending = output if self._pending is None else merged(self._pending, output)
        self._ready.set()

    def fail(self, error: EngineError) -> None:
        """Ends the stream; outputs that came before are still delivered."""
        self._error = error
        self._ready.set()

    async def take(self) -> SequenceOutput:
        """The next output, waiting for it; raises what `fail` was given once there is none left."""
        await self._ready.wait()
        output, self._pending = self._pending, None
        if self._error is None:
            self._ready.clear()
        if output is not None:
            return output
        assert self._error is not None
        raise self._error


def merged(first: SequenceOutput, second: SequenceOutput) -> SequenceOutput:
    """Two consecutive outputs of one sequence as one."""
    return SequenceOutput(
        request_id=first.request_id,
        new_token_ids=first.new_token_ids + second.new_token_ids,
        finish_reason=second.finish_reason,
        num_cached_tokens=second.num_cached_tokens,
        logprobs=_joined(first.logprobs, second.logprobs),
        prompt_logprobs=_joined(first.prompt_logprobs, second.prompt_logprobs),
        embedding=second.embedding,
        stop_token_id=second.stop_token_id,
        first_scheduled_time=first.first_scheduled_time or second.first_scheduled_time,
        message=second.message,
    )


def _joined(first: list[TokenLogprobs] | None, second: list[TokenLogprobs] | None) -> list[TokenLogprobs] | None:
    return first if second is None else [*(first or ()), *second]
