"""A request before it waits: reasons of refusal, and prompts that several requests begin with.

The engine chooses the order of the checks; the server makes most of them earlier, in the words of its API.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import msgspec

from fairlead_common.wire.blocks import BlockHash
from fairlead_engine.core.runner import RunnerModel
from fairlead_engine.types import (
    EngineRequest,
    FinishReason,
    HeldPrompt,
    Pooling,
    Reading,
    SamplingParams,
    SequenceOutput,
    fit_prompt,
)
from fairlead_engine.types.sequences import Sequence


@dataclass(frozen=True, slots=True)
class RequestRefusal:
    """Why a sequence was not taken: a finish reason and a sentence for the client."""

    reason: FinishReason
    message: str
    field: str | None = None
    """The request's field at fault."""


def ended(request_id: str, why: RequestRefusal) -> SequenceOutput:
    """The last output of a refused or failed request."""
    return SequenceOutput(
        request_id=request_id, new_token_ids=[], finish_reason=why.reason, message=why.message, field=why.field
    )


def no_choice(sequence: Sequence) -> RequestRefusal:
    """The request itself leaves no token to choose."""
    names = sequence.sampling.ruling_out
    message = (
        f"{' and '.join(names)} leave no token to choose behind {sequence.num_output_tokens} tokens of the answer; "
        "rule out less, or let the answer end"
    )
    return RequestRefusal(FinishReason.INVALID, message, names[0] if names else None)


class RequestChecks:
    """Checks of a sequence; each returns a refusal or None."""

    def __init__(self, model: RunnerModel, end_token_ids_of: Callable[[SamplingParams], frozenset[int]]) -> None:
        self._model = model
        self._end_token_ids_of = end_token_ids_of

    def cannot_do(self, sequence: Sequence) -> RequestRefusal | None:
        """What the model was not made for; the server says so earlier, with advice."""
        task = self._model.task
        if sequence.pooling is None and not task.generates:
            return RequestRefusal(FinishReason.ERROR, "this model generates no text")
        if sequence.pooling is Pooling.CLS and not task.sees_all:
            return RequestRefusal(FinishReason.ERROR, "this model's first token sees none of the others")
        if sequence.reading is Reading.LABELS and not task.labels:
            return RequestRefusal(FinishReason.ERROR, "this model has no classifier")
        if sequence.pooling is not None and sequence.num_virtual_tokens:
            return RequestRefusal(FinishReason.ERROR, "no vectors are made with soft prompts; leave the adapter out")
        if sequence.images and sequence.num_virtual_tokens:
            return RequestRefusal(FinishReason.ERROR, "no images are seen behind soft prompts; leave the adapter out")
        if sequence.images and not fit_prompt(sequence.images, task.images, sequence.num_prompt_tokens):
            return RequestRefusal(FinishReason.ERROR, "the prompt's images are not as this model takes them")
        return None

    def unknown_token(self, sequence: Sequence) -> RequestRefusal | None:
        """An id outside the vocabulary would end the whole engine inside the model."""
        wrong = self.outside_vocabulary([*sequence.token_ids, *chain(*sequence.sampling.named_token_ids.values())])
        return None if wrong is None else RequestRefusal(FinishReason.ERROR, wrong)

    def outside_vocabulary(self, token_ids: list[int]) -> str | None:
        """A sentence about the first id that is no token; None = all are tokens."""
        vocab_size = self._model.vocab_size
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
            wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
            return f"token id {wrong} is not in the vocabulary of {vocab_size} tokens"
        return None

    def nothing_left(self, sequence: Sequence) -> RequestRefusal | None:
        """The request rules out every token from the beginning. A grammar's effect shows as the answer goes on."""
        sampling, vocab_size = sequence.sampling, self._model.vocab_size
        if sampling.max_tokens == 0:
            return None
        ruled_out = {word[0] for word in sampling.bad_words if len(word) == 1}
        if sampling.min_tokens and sampling.grammar is None:
            ruled_out |= self._end_token_ids_of(sampling)
        is_left = any(token_id not in ruled_out for token_id in sampling.allowed_token_ids or range(vocab_size))
        return None if is_left else no_choice(sequence)


class Holds:
    """Prompts, images and adapters that several requests begin with, by the client's hold id, and their block hashes. A
    beam search asks for the next token of every beam in every round: each request brings only its own tokens."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._held: dict[str, HeldPrompt] = {}
        self._hashes: dict[tuple[str, bytes], list[BlockHash]] = {}
        """Hashes of whole blocks, by hold and `Sequence.extra`."""

    def add(self, hold: str, held: HeldPrompt) -> None:
        self._held[hold] = held

    def release(self, hold: str) -> None:
        """Drops a hold; an unknown one is ignored."""
        if self._held.pop(hold, None) is not None:
            for key in [key for key in self._hashes if key[0] == hold]:
                del self._hashes[key]

    def whole(self, request: EngineRequest) -> EngineRequest | None:
        """The request with the held prompt before its own; None = unknown hold."""
        held = self._held.get(request.hold or "")
        if held is None:
            return None
        prompt = held.prompt_token_ids + request.prompt_token_ids
        return msgspec.structs.replace(request, prompt_token_ids=prompt, images=held.images)

    def begin(self, hold: str, sequence: Sequence) -> None:
        """Gives a new sequence the known block hashes."""
        sequence.block_hashes = self._hashes.get((hold, sequence.extra), [])[:]

    def note(self, hold: str, sequence: Sequence) -> None:
        """Keeps the sequence's hashes of the held prompt's blocks."""
        key = hold, sequence.extra
        if key not in self._hashes and (held := self._held.get(hold)) is not None:
            num_blocks = (sequence.num_virtual_tokens + len(held.prompt_token_ids)) // self._block_size
            self._hashes[key] = sequence.block_hashes[:num_blocks]
