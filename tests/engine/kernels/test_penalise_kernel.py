"""The kernels of penalties against their definition and against plain torch, and as code for a GPU."""

import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_engine.runner import logit_changes
from fairlead_engine.types import SamplingParams
from fairlead_engine.types.sequences import ScheduledSequence, Sequence
from fairlead_engine_testing.devices import on_each_device
from fairlead_engine_testing.gpu_code import compiled

strengths = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1e-35, 0.5, 1.0, 1.7]),
    frequency_penalty=st.sampled_from([-1.5, 0.0, 0.3]),
    presence_penalty=st.sampled_from([-2.0, 0.0, 1.1]),
)


def written_out(logits: list[float], prompt: list[int], output: list[int], params: SamplingParams) -> list[float]:
    found, chosen = list(logits), Counter(output)
    for token in {*prompt, *output}:
        strength = max(params.repetition_penalty, 1e-30)
        found[token] = found[token] / strength if found[token] > 0 else found[token] * strength
        found[token] -= params.frequency_penalty * chosen[token] + params.presence_penalty * (token in chosen)
    return found


@on_each_device
@settings(deadline=None, max_examples=25)
@given(
    sequences=st.lists(st.tuples(st.integers(1, 1500), st.integers(0, 1100), strengths), min_size=1, max_size=4),
    vocab_size=st.sampled_from([1, 3, 50, 2000]),
    seed=st.integers(0, 99),
)
def test_each_token_that_occurs_is_changed_once(device, sequences, vocab_size, seed):
    """Rows lie apart, slots are in any order, and behind a sequence's end there is anything."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    longest = max(prompt + output for prompt, output, _ in sequences)
    slot_tokens = torch.randint(0, 2**31 - 1, (2 * len(sequences), longest + 3), generator=generator, dtype=torch.int32)
    logits = torch.randn(2 * len(sequences), vocab_size, generator=generator)
    expected, items = logits.clone(), []
    rows = draw.sample(range(len(logits)), len(sequences))
    slots = draw.sample(range(len(slot_tokens)), len(sequences))
    for row, slot, (num_prompt, num_output, params) in zip(rows, slots, sequences, strict=True):
        tokens = [draw.randrange(vocab_size) for _ in range(num_prompt + num_output)]
        slot_tokens[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        expected[row] = torch.tensor(
            written_out(logits[row].tolist(), tokens[:num_prompt], tokens[num_prompt:], params)
        )
        sequence = Sequence(str(slot), tokens, num_prompt, params, slot=slot, num_computed_tokens=len(tokens) - 1)
        items.append(ScheduledSequence(sequence, 1))
    found, slot_tokens = logits.to(device), slot_tokens.to(device)
    logit_changes._penalise_by_kernel(found, rows, items, slot_tokens)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)
    plain = logits.to(device)
    logit_changes._penalise_padded(plain, rows, items, slot_tokens)
    torch.testing.assert_close(found, plain, rtol=1e-6, atol=1e-6)


COMPILE = """
from fairlead_engine.kernels import penalise_kernel
from fairlead_engine_testing.gpu_code import compile_for_gpu, tell

types = dict(counts="*i32", slot_tokens="*i32", numbers="*i64", strengths="*fp32", logits="*fp32")
types |= dict.fromkeys(("tokens_stride", "row_stride", "VOCAB_SIZE"), "i32")
tell({
    kernel.__name__: compile_for_gpu(kernel, types, dict(TILE=penalise_kernel._TILE))
    for kernel in (penalise_kernel.count_kernel, penalise_kernel.change_kernel)
})
"""


@pytest.mark.compute
def test_for_a_gpu_they_spill_nothing(tmp_path):
    for name, code in compiled(COMPILE, tmp_path).items():
        assert code.spilled_bytes == 0, (name, code)
