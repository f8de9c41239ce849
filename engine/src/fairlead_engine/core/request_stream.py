"""The outputs of one request on their way to the consumer."""

from collections import deque
from collections.abc import Callable

from fairlead_engine.types import SequenceOutput, TokenLogprobs


class RequestStream:
    """Outputs for one consumer, in one event loop. Outputs not yet taken are merged, and memory stays bounded by
    tokens; an injection stays between the tokens before and after."""

    def __init__(self, on_ready: Callable[[], object]) -> None:
        """`on_ready`: called when the stream becomes ready; must return at once."""
        self.is_ready = False
        """Whether an output or an error waits."""
        self._on_ready = on_ready
        self._pending: deque[SequenceOutput] = deque()
        self._error: Exception | None = None

    def put(self, output: SequenceOutput) -> None:
        if self._pending and self._pending[-1].injected is None and output.injected is None:
            output = merged(self._pending.pop(), output)
        self._pending.append(output)
        self._tell()

    def fail(self, error: Exception) -> None:
        """Ends the stream; outputs that came before are still delivered."""
        self._error = error
        self._tell()

    def take(self) -> SequenceOutput:
        """The next output of a ready stream; raises the error of `fail` once no output is left."""
        output = self._pending.popleft() if self._pending else None
        self.is_ready = bool(self._pending) or self._error is not None
        if output is not None:
            return output
        assert self._error is not None
        raise self._error

    def _tell(self) -> None:
        if not self.is_ready:
            self.is_ready = True
            self._on_ready()


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
        field=second.field,
    )


def _joined(first: list[TokenLogprobs] | None, second: list[TokenLogprobs] | None) -> list[TokenLogprobs] | None:
    return first if second is None else [*(first or ()), *second]
