"""What ends a sequence that nobody aborts: a token, its length, or what a step has computed."""

from collections.abc import Collection

from fairlead_engine.types import FinishReason, SamplingParams
from fairlead_engine.types.batch import Batch
from fairlead_engine.types.sequences import NO_TOKEN, SampledToken, Sequence


class SequenceEnds:
    """Settled when a sequence comes, as what every step can compare with."""

    def __init__(self, eos_token_ids: Collection[int], max_len: int) -> None:
        """`max_len`: tokens that fit the context, and the cache."""
        self._eos_token_ids = frozenset(eos_token_ids)
        self._max_len = max_len

    def token_ids_of(self, sampling: SamplingParams) -> frozenset[int]:
        """What ends an answer, once it is long enough; one set for all that name no tokens of their own."""
        own = frozenset(sampling.stop_token_ids)
        if sampling.ignore_eos:
            return own
        return own | self._eos_token_ids if own else self._eos_token_ids

    def max_num_tokens_of(self, sequence: Sequence) -> int:
        """How many it may have in the end."""
        most = sequence.sampling.max_tokens
        return self._max_len if most is None else min(self._max_len, sequence.num_prompt_tokens + most)


def reason_to_end(sequence: Sequence) -> FinishReason | None:
    """Whether it ends with its last token, and why. An end that comes early is one that its grammar leaves no choice
    but."""
    sampling = sequence.sampling
    is_long_enough = sequence.num_output_tokens >= sampling.min_tokens or sampling.grammar is not None
    if is_long_enough and sequence.token_ids[-1] in sequence.end_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if sequence.num_tokens >= sequence.max_num_tokens else None


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
