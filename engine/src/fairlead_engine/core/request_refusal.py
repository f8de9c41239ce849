"""Why a request was not taken, or ended badly, and how its client is told."""

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
