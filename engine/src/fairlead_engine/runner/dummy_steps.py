"""Steps of no request: the largest steps, and a step for every way through the kernels.

All tokens lie in block 0, over and over: the results are nonsense, but the work is real.
"""

from collections.abc import Iterator
from itertools import product

import msgspec

from fairlead_engine.types import GENERATES, ModelTask, SamplingParams
from fairlead_engine.types.batch import Batch
from fairlead_engine.types.sequences import ScheduledSequence, Sequence

_EVERYTHING = SamplingParams(
    temperature=0.7, top_p=0.9, top_k=20, min_p=0.01, seed=0, logprobs=1, presence_penalty=0.5, logit_bias={0: 1.0},
    min_tokens=1, prompt_logprobs=1,
)  # fmt: skip
_NOTHING = SamplingParams(max_tokens=0)
_SAMPLINGS = (SamplingParams(temperature=0.0), SamplingParams())
_FEWEST_TOKENS = 256
"""Context of the second step of `every_kind_of_step`; each further one doubles it."""


class StepLimits(msgspec.Struct, frozen=True, array_like=True):
    """Bounds of every step."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


def blocks_of_largest(limits: StepLimits, block_size: int) -> int:
    """Blocks of a table in `largest_step`."""
    return -(-max(_shares(limits)) // block_size)


def largest_step(limits: StepLimits, block_size: int, task: ModelTask = GENERATES) -> Batch:
    """As many tokens and sequences as a step may have, each with its prompt scored and a token drawn, penalised and
    reported; without generation each becomes a vector."""
    shares = enumerate(_shares(limits))
    return Batch([_item(slot, share, share, _EVERYTHING, block_size, task) for slot, share in shares])


def largest_drafted_step(limits: StepLimits, block_size: int, most_drafts: int, draft: int, depth: int = 0) -> Batch:
    """As many sequences as a step may have, each with the most drafts (the token `draft`), for `depth` positions of a
    tree: a row of logits and a choice behind each token. Comes behind `largest_step`."""
    shares = enumerate(_shares(limits, 1 + most_drafts))
    sampling = msgspec.structs.replace(_EVERYTHING, prompt_logprobs=None)
    return Batch([_item(slot, share, share, sampling, block_size, draft=draft, depth=depth) for slot, share in shares])


def every_kind_of_step(limits: StepLimits, block_size: int, task: ModelTask = GENERATES) -> Iterator[Batch]:
    """A decode and a chunk, in one step if possible, at contexts of doubling lengths, by which attention divides its
    work. The largest chunk: experts' products divide theirs by rows. And every way of choosing a token, if the model
    generates."""
    max_model_len, num_filled = limits.max_model_len, min(block_size, limits.max_model_len)
    contexts = _contexts(max_model_len)
    for start in range(0, num_filled, limits.max_num_batched_tokens):  # or contexts would hold what memory held before
        end = min(start + limits.max_num_batched_tokens, num_filled)
        yield Batch([_item(0, end - start, end, _SAMPLINGS[0], block_size, task)])
    shapes = [num_tokens for num_tokens in ([1, 2], [2], [1]) if sum(num_tokens) <= limits.max_num_batched_tokens]
    for context_len, num_tokens in product(contexts, shapes):
        if len(num_tokens) <= limits.max_num_seqs and max(num_tokens) <= context_len:
            yield Batch(
                [_item(slot, num, context_len, _EVERYTHING, block_size, task) for slot, num in enumerate(num_tokens)]
            )
    largest = min(limits.max_num_batched_tokens, max_model_len)
    yield Batch([_item(0, largest, largest, _SAMPLINGS[0], block_size, task)])
    for sampling in _SAMPLINGS:
        yield Batch([_item(0, 1, 1, sampling, block_size, task)])


def every_drafted_step(
    limits: StepLimits, block_size: int, most_drafts: int, draft: int, depth: int
) -> Iterator[Batch]:
    """A sequence with the most drafts, at the contexts of `every_kind_of_step`, which comes first."""
    for context_len in _contexts(limits.max_model_len):
        num_tokens = min(1 + most_drafts, limits.max_num_batched_tokens, context_len)
        yield Batch([_item(0, num_tokens, context_len, _SAMPLINGS[0], block_size, draft=draft, depth=depth)])


def _contexts(max_model_len: int) -> list[int]:
    """Doubling lengths, from the shortest with a token before the last."""
    doubling = (_FEWEST_TOKENS * 2**power for power in range(max_model_len.bit_length()))
    return sorted({min(2, max_model_len), *(each for each in doubling if each < max_model_len), max_model_len})


def _shares(limits: StepLimits, most: int | None = None) -> list[int]:
    """Tokens of each sequence of the largest step, at most `most`; they differ by one at most."""
    num = limits.max_num_seqs
    longest = limits.max_model_len if most is None else min(most, limits.max_model_len)
    total = min(limits.max_num_batched_tokens, num * longest)
    return [total * (index + 1) // num - total * index // num for index in range(num)]


def _item(
    slot: int,
    num_tokens: int,
    context_len: int,
    sampling: SamplingParams,
    block_size: int,
    task: ModelTask = GENERATES,
    *,
    draft: int | None = None,
    depth: int = 0,
) -> ScheduledSequence:
    """The last tokens of a context, with the next token chosen or a vector made; `draft`: all but the first."""
    num_drafts = 0 if draft is None else num_tokens - 1
    sequence = Sequence(
        request_id=f"dummy-{slot}",
        token_ids=[0] * (context_len - num_drafts),
        num_prompt_tokens=context_len - num_drafts,
        sampling=sampling if task.generates else _NOTHING,
        pooling=None if task.generates else task.pooling,
        num_computed_tokens=context_len - num_tokens,
        slot=slot,
        block_table=[0] * -(-context_len // block_size),
    )
    return ScheduledSequence(sequence, num_tokens, drafts=[draft or 0] * num_drafts, depth=depth)
