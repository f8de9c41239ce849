"""What can be told of a request before it waits: that the model cannot do it, or that no token is left to choose.

The engine asks in the order that suits it; who serves the model says most of this earlier, in words of its API.
"""

from collections.abc import Callable
from itertools import chain

from fairlead_engine.core.request_refusal import Refusal, no_choice
from fairlead_engine.core.runner import RunnerModel
from fairlead_engine.types import FinishReason, Pooling, Reading, SamplingParams, fit_prompt
from fairlead_engine.types.sequences import Sequence


class RequestChecks:
    """Each says why a sequence cannot be taken, or None."""

    def __init__(self, model: RunnerModel, end_token_ids_of: Callable[[SamplingParams], frozenset[int]]) -> None:
        self._model = model
        self._end_token_ids_of = end_token_ids_of

    def cannot_do(self, sequence: Sequence) -> Refusal | None:
        """What the model was not made for; who serves it says so earlier, and how to ask instead."""
        task = self._model.task
        if sequence.pooling is None and not task.generates:
            return Refusal(FinishReason.ERROR, "this model generates no text")
        if sequence.pooling is Pooling.CLS and not task.sees_all:
            return Refusal(FinishReason.ERROR, "this model's first token sees none of the others")
        if sequence.reading is Reading.LABELS and not task.labels:
            return Refusal(FinishReason.ERROR, "this model has no classifier")
        if sequence.pooling is not None and sequence.num_virtual_tokens:
            return Refusal(FinishReason.ERROR, "no vectors are made with soft prompts; leave the adapter out")
        if sequence.images and sequence.num_virtual_tokens:
            return Refusal(FinishReason.ERROR, "no images are seen behind soft prompts; leave the adapter out")
        if sequence.images and not fit_prompt(sequence.images, task.images, sequence.num_prompt_tokens):
            return Refusal(FinishReason.ERROR, "the prompt's images are not as this model takes them")
        return None

    def unknown_token(self, sequence: Sequence) -> Refusal | None:
        """An id outside the vocabulary would otherwise end the whole engine inside the model."""
        wrong = self.outside_vocabulary([*sequence.token_ids, *chain(*sequence.sampling.named_token_ids.values())])
        return None if wrong is None else Refusal(FinishReason.ERROR, wrong)

    def outside_vocabulary(self, token_ids: list[int]) -> str | None:
        """What is wrong with them, if any of them is no token."""
        vocab_size = self._model.vocab_size
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
            wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
            return f"token id {wrong} is not in the vocabulary of {vocab_size} tokens"
        return None

    def nothing_left(self, sequence: Sequence) -> Refusal | None:
        """Where it is plain from the beginning that no token can be chosen. What a grammar leaves shows as it goes."""
        sampling, vocab_size = sequence.sampling, self._model.vocab_size
        if sampling.max_tokens == 0:
            return None
        ruled_out = {word[0] for word in sampling.bad_words if len(word) == 1}
        if sampling.min_tokens and sampling.grammar is None:
            ruled_out |= self._end_token_ids_of(sampling)
        is_left = any(token_id not in ruled_out for token_id in sampling.allowed_token_ids or range(vocab_size))
        return None if is_left else no_choice(sequence)
