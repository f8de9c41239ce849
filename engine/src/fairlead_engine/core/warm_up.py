"""A few real steps before the first request: they run every code path once and measure what steps cost."""

from collections.abc import Iterator
from typing import Any

from fairlead_engine.core.clock import Clock
from fairlead_engine.core.runner import Runner, RunnerModel
from fairlead_engine.core.scheduler import Limits
from fairlead_engine.core.step_cost import StepWork
from fairlead_engine.types import SamplingParams
from fairlead_engine.types.batch import Batch
from fairlead_engine.types.sequences import ScheduledSequence, Sequence

_NUM_SHORT = 3
_SHORT_TOKENS = 16
"""Tokens of the short ones, and of the second chunk of the long one."""


def warm_up(
    runner: Runner[Any], limits: Limits, block_size: int, num_blocks: int, clock: Clock
) -> list[tuple[StepWork, float]]:
    """Prefills and decodes sequences that no client sees; returns the work and the seconds of each measured step.

    Writes to blocks from 0 on, which nobody owns yet. Raises whatever the runner raises.
    """
    sequences = list(_sequences(limits, block_size, num_blocks, runner.model_config))
    long, short = sequences[:1], sequences[1:]
    _run(runner, short or long, clock)  # the first pass pays for lazy initialisation: not measured
    measured = []
    if limits.whole_prompts:
        measured += [_run(runner, group, clock) for group in (long, short, long) if group]
        runner.forget([sequence.request_id for sequence in sequences])
        return measured
    for group in (long, short) if short else (long,):
        measured.append(_run(runner, group, clock))
        for sequence in group:
            sequence.num_computed_tokens = max(0, sequence.num_tokens - _SHORT_TOKENS)
    measured.append(_run(runner, long, clock))  # tells what context costs from what tokens cost
    for sequence in sequences:
        sequence.num_computed_tokens = sequence.num_tokens
        sequence.token_ids.append(0)
    measured += [_run(runner, group, clock) for group in ((long, sequences) if short else (long,))]
    runner.forget([sequence.request_id for sequence in sequences])
    return measured


def _sequences(limits: Limits, block_size: int, num_blocks: int, model: RunnerModel) -> Iterator[Sequence]:
    """One as long as a step may compute, and a few short ones, as far as the cache has room for them."""
    longest = min(limits.max_num_batched_tokens, limits.max_model_len - 1)
    lengths = [longest] + [min(_SHORT_TOKENS, longest)] * min(_NUM_SHORT, limits.max_num_seqs - 1)
    end, generates = 0, model.task.generates
    for index, length in enumerate(lengths):
        start, end = end, end + -(-(length + 1) // block_size)  # the decode writes one more token
        if end > num_blocks:
            return
        yield Sequence(
            request_id=f"warm-up-{index}",
            token_ids=[token % model.vocab_size for token in range(length)],
            num_prompt_tokens=length,
            sampling=SamplingParams(temperature=float(index % 2), ignore_eos=True, max_tokens=None if generates else 0),
            pooling=None if generates else model.task.pooling,
            slot=index,
            block_table=list(range(start, end)),
        )


def _run(runner: Runner[Any], sequences: list[Sequence], clock: Clock) -> tuple[StepWork, float]:
    batch = Batch([ScheduledSequence(sequence, sequence.num_uncomputed_tokens) for sequence in sequences])
    clock.start()
    runner.collect(runner.launch(batch))
    return StepWork.of(batch), clock.elapsed()
