"""The whole engine chooses transformers' tokens, through prefix hits and preemptions too."""

import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from fairlead_engine.kernels.attention.choice import BACKENDS
from fairlead_engine.types import FinishReason, TokenLogprobs
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checked_steps import answered, run_checked
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.greedy_answers import engine_of_blocks, greedy_answers, small_config, small_engine
from fairlead_engine_testing.tiny_families import FAMILIES

pytestmark = pytest.mark.matrix

IN_KERNELS = ("gemma2", "gpt_oss", "llama", "qwen3")
"""Families between which attention differs: soft caps and windows, sinks, none of it, heads that are normed. Kernels do
not know families, and their interpreter takes minutes for each; `runner/test_parity.py` has all of them."""


NUM_TURNS = 6
"""Tests among which the other families take turns, one test each; all else of them is for before a release."""


def each_served(
    turn: int, names: str = "", variants: Sequence[tuple[Any, ...]] = ((),), in_kernels: Sequence[str] = IN_KERNELS
) -> pytest.MarkDecorator:
    """Every family, and what computes its attention, with every variant. The kernels get each family and each variant
    at least once: what variants change, steps and blocks, they do not know either. `turn`: the test's, from 0 on."""
    cases = [
        (family, backend, variant)
        for family in FAMILIES
        for backend in BACKENDS
        if backend != "triton"
        for variant in variants
    ]
    for index in range(max(len(variants), len(in_kernels))):
        cases.append((in_kernels[index % len(in_kernels)], "triton", variants[index % len(variants)]))
    params = [
        pytest.param(
            (family, backend), *variant, id="-".join(map(str, (family, backend, *variant))),
            marks=_tier(family, backend, turn),
        )
        for family, backend, variant in cases
    ]  # fmt: skip
    return pytest.mark.parametrize(f"served,{names}".rstrip(","), params, indirect=["served"], scope="module")


def _tier(family: str, backend: str, turn: int) -> Any:
    if backend == "triton":
        return pytest.mark.compute
    if family in IN_KERNELS:
        return ()
    return pytest.mark.compute if [*FAMILIES].index(family) % NUM_TURNS == turn else pytest.mark.long


@pytest.fixture(scope="module")
def served(request) -> tuple[str, str]:
    """A family and what computes its attention."""
    return request.param


@pytest.fixture(scope="module")
def folder(served, tmp_path_factory) -> Path:
    family, _ = served
    fields = FAMILIES[family](max_position_embeddings=256)
    return write_random_checkpoint(tmp_path_factory.mktemp("models") / family, fields)


@pytest.fixture
def backend(served) -> str:
    return served[1]


def make_prompts(num: int, longest: int, prefix: list[int]) -> list[list[int]]:
    draw = random.Random(longest)
    return [prefix + [draw.randrange(2, 256) for _ in range(draw.randint(1, longest))] for _ in range(num)]


def check(reference, folder: Path, prompts: list[list[int]], outputs: list[list[int]], num_new: int) -> None:
    assert [len(output) for output in outputs] == [num_new] * len(prompts)
    for prompt, output in zip(prompts, outputs, strict=True):
        reference.check_greedy(folder, prompt, output)


@each_served(0, "budget", [(8,), (33,), (256,)])
def test_mixed_batches_give_the_references_tokens(budget, folder, backend, reference):
    prompts = make_prompts(9, 60, prefix=[])
    engine = small_engine(folder, attention_backend=backend, max_num_batched_tokens=budget, max_num_seqs=6)
    outputs = greedy_answers(engine, prompts, 10, per_step=2)
    check(reference, folder, prompts, outputs, 10)


@each_served(1)
def test_prefix_hits_give_the_references_tokens(folder, backend, reference):
    prompts = make_prompts(8, 30, prefix=list(range(10, 60)))
    engine = small_engine(folder, attention_backend=backend, max_num_batched_tokens=64)
    outputs = greedy_answers(engine, prompts, 8, per_step=1)
    assert engine.load.prefix_hit_tokens >= 5 * 48
    check(reference, folder, prompts, outputs, 8)


@each_served(2, "prefix_caching", [(False,), (True,)])
def test_preemptions_give_the_references_tokens(prefix_caching, folder, backend, reference):
    prompts = make_prompts(6, 40, prefix=[])
    settings = {"attention_backend": backend, "max_model_len": 80, "max_num_batched_tokens": 48}
    engine = engine_of_blocks(small_config(folder, **settings, enable_prefix_caching=prefix_caching), 14)
    outputs = greedy_answers(engine, prompts, 30)
    assert engine.load.num_preemptions > 0
    check(reference, folder, prompts, outputs, 30)


def log_softmax(reference, folder: Path, prompt: list[int]) -> torch.Tensor:
    return reference.logits(folder, prompt).log_softmax(-1)


@pytest.mark.compute
@each_served(3, "budget,prefix_caching", list(product((7, 33, 256), (False, True))))
def test_prompt_logprobs_are_the_references_whatever_is_cached_or_preempted(
    budget, prefix_caching, folder, backend, reference
):
    """Prompts with a long common prefix, in a cache too small for all, half of them scored."""
    prompts = make_prompts(8, 40, prefix=list(range(10, 40)))
    settings = {"attention_backend": backend, "max_model_len": 100, "max_num_batched_tokens": budget}
    engine = engine_of_blocks(small_config(folder, **settings, enable_prefix_caching=prefix_caching), 16)
    scored: dict[str, list[TokenLogprobs]] = {}
    for index, prompt in enumerate(prompts):
        request = make_request(
            f"{index}", prompt, arrival_time=float(index), priority=-index, max_tokens=(index % 3) * 20,
            ignore_eos=True, prompt_logprobs=(index % 2) * 4 or None,
        )  # fmt: skip
        assert engine.add(request) is None
        for output in engine.step() if index < len(prompts) - 1 else run_checked(engine):
            scored.setdefault(output.request_id, []).extend(output.prompt_logprobs or [])
    for index, prompt in enumerate(prompts):
        if index % 2 == 0:
            assert not scored[f"{index}"]
            continue
        wanted = log_softmax(reference, folder, prompt)[:-1]
        assert [each.token_id for each in scored[f"{index}"]] == prompt[1:]
        for row, each in zip(wanted, scored[f"{index}"], strict=True):
            assert abs(each.logprob - float(row[each.token_id])) < 1e-3
            assert [logprob for _, logprob in each.top] == pytest.approx(row.topk(4).values.tolist(), abs=1e-3)
    assert engine.load.num_preemptions > 0 or budget == 7


@each_served(4)
def test_a_scored_prompt_leaves_its_blocks_to_others_and_takes_none(folder):
    engine = small_engine(folder, max_num_batched_tokens=64)
    prompt = list(range(10, 60))
    for name, num_top in (("first", 1), ("second", 1), ("third", None)):
        output = answered(engine, [make_request(name, prompt, max_tokens=0, prompt_logprobs=num_top)])[name]
        assert (output.finish_reason, output.new_token_ids) == (FinishReason.LENGTH, [])
        assert len(output.prompt_logprobs or []) == (len(prompt) - 1 if num_top else 0)
        assert output.num_cached_tokens == (0 if num_top else 48)


@each_served(5)
def test_a_bias_decides_and_changes_no_log_probability(folder):
    engine = small_engine(folder)
    prompt = list(range(10, 30))

    def run(bias: dict[int, float]) -> tuple[list[int], list[float]]:
        request = make_request("r", prompt, max_tokens=4, ignore_eos=True, logprobs=0, logit_bias=bias)
        output = answered(engine, [request])["r"]
        return output.new_token_ids, [each.logprob for each in output.logprobs]

    plain, _ = run({})
    forced, logprobs = run({7: 100.0})
    assert forced == [7] * 4
    assert max(logprobs) < -0.01
    assert plain[0] not in run({plain[0]: -100.0})[0]
    assert run({plain[0]: 0.0})[0] == plain
