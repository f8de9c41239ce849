"""Sequences that cannot go on with what a step has computed."""

from fairlead_engine.batch import Batch
from fairlead_engine.sequences import NO_TOKEN, SampledToken, Sequence
from fairlead_engine.types import FinishReason


def failed_sequences(
    batch: Batch, sampled: list[SampledToken | None], token_ids: list[int]
) -> dict[Sequence, FinishReason]:
    """Those of which something that was computed is no number, and those that leave nothing to choose.
    `token_ids`: of decodes, where one look finds that all are tokens."""
    found = {item.sequence: FinishReason.ERROR for item in batch.chunks if item.reads_prompt and item.is_spoilt}
    of_chunks = sampled[len(token_ids) :]
    if min(token_ids, default=0) < 0 or any(token is not None and not token.is_there for token in of_chunks):
        sequences = [*batch.decodes.sequences, *(item.sequence for item in batch.chunks)]
        for sequence, token in zip(sequences, sampled, strict=True):
            if token is not None and not token.is_there:
                reason = FinishReason.ERROR if token == NO_TOKEN else FinishReason.INVALID
                found.setdefault(sequence, reason)
    return found
