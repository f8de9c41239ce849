"""Why a request was not taken, or ended badly, how its client is told, and what bounds the queue."""

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass

from fairlead_engine.types import FinishReason, SequenceOutput
from fairlead_engine.types.sequences import Sequence


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a sequence was not taken, as its finish reason and a sentence for the client."""

    reason: FinishReason
    message: str
    field: str | None = None
    """The request's, whose fault it is."""


def ended(request_id: str, why: Refusal) -> SequenceOutput:
    """The last output of a request that did not end well."""
    return SequenceOutput(
        request_id=request_id, new_token_ids=[], finish_reason=why.reason, message=why.message, field=why.field
    )


def no_choice(sequence: Sequence) -> Refusal:
    """It asks for an answer that cannot go on."""
    names = sequence.sampling.ruling_out
    message = (
        f"{' and '.join(names)} leave no token to choose behind {sequence.num_output_tokens} tokens of the answer; "
        "rule out less, or let the answer end"
    )
    return Refusal(FinishReason.INVALID, message, names[0] if names else None)


class QueueBound:
    """A request is taken or refused by its first part: looking at all that wait for each of two thousand would take
    seconds. What is held back of other requests is not in its way."""

    def __init__(self, most_tokens: int, max_num_parts: int, predict_wait: Callable[[], float]) -> None:
        """`most_tokens` may wait to be computed, and of one request so many parts run at once; `predict_wait`: seconds
        that a request would wait."""
        self._most_tokens = most_tokens
        self._max_num_parts = max_num_parts
        self._predict_wait = predict_wait

    def refusal(self, sequence: Sequence, waiting: List[Sequence]) -> Refusal | None:
        """Why it cannot wait as well."""
        if not waiting or sequence.num_parts_before:
            return None
        longest = sequence.max_queue_seconds
        if longest is None:
            num_queued = sum(
                num_awaited_tokens(each) for each in waiting if each.num_parts_before < self._max_num_parts
            )
            problem = f"{num_queued} of {self._most_tokens} prompt tokens wait already"
            is_full = num_queued + num_awaited_tokens(sequence) > self._most_tokens
        else:  # who asks this engine itself: nobody else holds the request while others are served
            seconds = self._predict_wait()
            problem = f"a request would wait about {seconds:.1f} s, and at most {longest:g} s are allowed"
            is_full = seconds > longest
        return Refusal(FinishReason.REJECTED, f"the queue is full: {problem}") if is_full else None


def num_awaited_tokens(sequence: Sequence) -> int:
    """Of one that waits: those that the cache is not expected to spare it."""
    return sequence.num_tokens - sequence.num_expected_cached_tokens
