"""A real model under random requests, aborts and names used again, in random caches: each answer is what it is alone.

With steps that overlap, without, and by drafts, so whatever a preemption, a slot's next owner or a block's takes along
shows here.
"""

import random
from array import array
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.kernels import routes
from fairlead_engine.kernels.attention import chosen_keys
from fairlead_engine.runner import model_runner
from fairlead_engine.types import EngineRequest, Grammar, Pooling, ThinkingBudget
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.letters import write_letters
from fairlead_engine_testing.model_runners import loaded_runner
from fairlead_engine_testing.tiny_families import FAMILIES

pytestmark = pytest.mark.matrix

VOCAB_SIZE = 61
GRAMMARS = [
    Grammar(text)
    for text in (
        "start: /[a-e]{2,30}X?/", 'start: "ab" | "abc" | "Zabc"', "start: /([a-m][N-Z])*/",
        'start: "x" start "y" | "z"',
        "start: " + "a? " * 2500 + '\na: "a" | "b"', "start: nowhere",
    )
]  # fmt: skip
"""Some end soon, some go on, one explodes after a token, and one is none."""
LONGEST = (24, 48, 100)
TOLERANCES = {"auto": 2e-3, "int8": 0.01, "fp8": 0.1}
"""Of log-probabilities. A number halfway between two of 8 bits may go either way, as its last bit happens to be."""


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Of the prompt's tokens and of those that were chosen."""
    vector: "array[float]" = field(default_factory=lambda: array("f"))
    end: str = ""

    def check(self, whole: "Answer", tolerance: float) -> None:
        """It is that one, or its beginning where it was aborted."""
        is_cut = not self.end
        assert self.end == (whole.end if not is_cut else "")
        assert self.tokens == whole.tokens[: len(self.tokens) if is_cut else None]
        if self.end not in ("error", "invalid"):  # which may have told of a part of the prompt before
            expected = whole.logprobs[: len(self.logprobs) if is_cut else None]
            assert self.logprobs == pytest.approx(expected, abs=tolerance)
        assert list(self.vector) == pytest.approx([] if is_cut else list(whole.vector), abs=tolerance / 20)


class ClosestCall:
    """The least distance in a choice of keys or experts since `forget`: between what was just chosen and what was just
    not, as a share of the largest score. Choices closer than rounding go either way, and answers with them."""

    DECIDED = 1e-4

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.gap = inf
        choose_keys, choose_experts = chosen_keys._best, routes.choose_top_k

        def best(scores: Tensor, visible: Tensor, most: int) -> Tensor:
            self._note(scores, most)
            return choose_keys(scores, visible, most)

        def choose_top_k(logits: Tensor, routing: routes.ExpertRouting) -> tuple[Tensor, Tensor]:
            scores = logits.float().softmax(-1) if routing.bias is None else logits.float().sigmoid() + routing.bias
            self._note(scores, routing.num_chosen)
            return choose_experts(logits, routing)

        patch.setattr(chosen_keys, "_best", best)
        patch.setattr(routes, "choose_top_k", choose_top_k)

    def forget(self) -> None:
        self.gap = inf

    def _note(self, scores: Tensor, most: int) -> None:
        if scores.shape[-1] > most:
            ranked = scores.flatten(0, -2).topk(most + 1).values
            gaps = (ranked[:, -2] - ranked[:, -1]) / ranked.nan_to_num(neginf=0.0).abs().amax(-1).clamp_min(1e-9)
            self.gap = min(self.gap, *gaps[gaps > 0].tolist(), inf)  # of equal ones the first is chosen


def serve(engine: Engine, events: dict[int, list[EngineRequest]], aborts: dict[int, list[str]]) -> list[Answer]:
    """Both by the number of the step; a request of a name that is still there replaces the one that has it."""
    answers: list[Answer] = []
    by_name: dict[str, Answer] = {}
    step = 0
    while engine.has_work() or any(number >= step for number in (*events, *aborts)):
        for name in [*aborts.get(step, []), *(request.request_id for request in events.get(step, []))]:
            engine.abort(name)
            by_name.pop(name, None)
        for request in events.get(step, []):
            assert engine.add(request) is None
            answers.append(by_name.setdefault(request.request_id, Answer()))
        for output in engine.step():
            answer = by_name[output.request_id]
            answer.tokens += output.new_token_ids
            answer.logprobs += [each.logprob for each in (*(output.prompt_logprobs or ()), *(output.logprobs or ()))]
            answer.vector.frombytes(output.embedding or b"")
            if output.finish_reason is not None:
                answer.end = output.finish_reason
                del by_name[output.request_id]
        engine.check()
        step += 1
    while engine.blocks.host.loads:
        engine.blocks.settle()
    assert engine.blocks.num_free == engine.blocks.num_blocks
    return answers


def random_request(draw: random.Random, name: str, longest: int, prefixes: list[list[int]]) -> EngineRequest:
    prompt = [draw.randrange(2, VOCAB_SIZE) for _ in range(draw.randint(1, longest * 2 // 3))]
    if draw.random() < 0.5:
        shared = draw.choice(prefixes)[: draw.choice([draw.randint(0, len(prompt)), longest // 2])]
        prompt[: len(shared)] = shared  # many of one length: a state is found where another prompt or its branch ended
    common = {"arrival_time": draw.random(), "priority": draw.choice([-1, 0, 0, 0, 1])}
    common["part_of"] = draw.choice([None, None, "one"])
    if draw.random() < 0.1:
        pooling = draw.choice([each for each in Pooling if each is not Pooling.CLS])  # which an encoder has
        return make_request(name, prompt, max_tokens=0, pooling=pooling, **common)
    most = min(longest - len(prompt), draw.choice([0, 1, 5, 12, 30, 60]))
    choices: dict[str, list[Any]] = {
        "temperature": [1.0, 1.5], "top_p": [0.5, 0.9], "top_k": [1, 3, 20], "min_p": [0.1], "seed": [0, 1],
        "frequency_penalty": [-1.0, 1.5], "presence_penalty": [1.5], "repetition_penalty": [0.5, 1.3],
        "logit_bias": [{7: 5.0}], "logprobs": [0, 2], "prompt_logprobs": [0, 2], "min_tokens": [most // 2],
        "stop_token_ids": [(3, 30, 50)], "ignore_eos": [True], "allowed_token_ids": [(2, 5, 9, 30), tuple(range(20))],
        "bad_words": [((7,), (9, 9), (30, 5, 2))], "dry_multiplier": [0.5, 20.0], "dry_penalty_last_n": [9],
        "thinking": [ThinkingBudget(most, (5,), (9, 30), begun) for most in (0, 2, 9) for begun in (True, False)],
        "dry_sequence_breakers": [(5, 40)], "top_n_sigma": [1.0], "xtc_probability": [0.5], "xtc_threshold": [0.02],
    }  # fmt: skip
    if draw.random() < 0.3:
        choices["grammar"] = GRAMMARS
    sampling = {key: draw.choice(values) for key, values in choices.items() if draw.random() < 0.3}
    if "grammar" in choices:
        sampling["grammar"] = draw.choice(GRAMMARS)
    return make_request(name, prompt, max_tokens=most, **common, **sampling)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models that attend to all tokens, that keep states, and that attend to chosen tokens."""
    place = tmp_path_factory.mktemp("models")
    return {
        name: write_letters(write_random_checkpoint(place / name, FAMILIES[name](vocab_size=VOCAB_SIZE)))
        for name in (
            "llama",
            "qwen3_5",
            "granite_hybrid",
            "bamba",
            "falcon_h1",
            "nemotron_h",
            "lfm2_moe",
            "lfm3",
            "deepseek_v32",
            "glm_moe_dsa",
        )
    }


def tier(seed: int, most: int) -> Any:
    """The first `most` seeds are quick enough for `make test`; from four on they are for before a release."""
    if seed < most:
        return ()
    return pytest.mark.compute if seed < 4 else pytest.mark.long


@pytest.mark.parametrize(
    ("seed", "family", "kv_cache_dtype", "num_ranks"),
    [
        pytest.param(seed, *which, *([] if which[2:] else [1]), marks=tier(seed, most))
        for which, most, num_seeds in (
            (("llama", "auto"), 1, 16), (("llama", "int8"), 0, 16), (("llama", "fp8"), 1, 16),
            (("qwen3_5", "auto"), 1, 16), (("granite_hybrid", "auto"), 1, 16), (("bamba", "auto"), 1, 8),
            (("falcon_h1", "auto"), 0, 16), (("nemotron_h", "auto"), 0, 16),
            (("deepseek_v32", "auto"), 1, 16), (("deepseek_v32", "int8"), 0, 8), (("glm_moe_dsa", "auto"), 0, 16),
            (("qwen3_5", "auto", 2), 0, 4), (("bamba", "auto", 4), 0, 2), (("falcon_h1", "auto", 2), 0, 2),
            (("nemotron_h", "auto", 2), 0, 2), (("lfm2_moe", "auto"), 1, 8), (("lfm2_moe", "auto", 2), 0, 2),
            (("lfm3", "auto"), 0, 8),
        )
        for seed in range(num_seeds)
    ],
)  # fmt: skip
def test_company_and_preemption_change_no_answer(
    seed: int,
    family: str,
    kv_cache_dtype: str,
    num_ranks: int,
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor do ranks: what a request is answered alone, one has computed."""
    folder = folders[family]
    draw = random.Random(seed)
    size, longest, num_seqs = draw.choice([1, 2, 4, 16]), draw.choice(LONGEST), draw.choice([1, 2, 4, 8])
    backend = draw.choice(["cpu_spans", "block_tables"])
    runner = loaded_runner(
        folder, dtype="float32", device="cpu", num_threads=1, block_size=size, attention_backend=backend,
        kv_cache_dtype=kv_cache_dtype, tensor_parallel_size=num_ranks,
    )  # fmt: skip
    one = runner
    if num_ranks > 1:
        one = loaded_runner(folder, dtype="float32", device="cpu", num_threads=1, block_size=size)
    fewest, caches = -(-longest // size), draw.random() < 0.7
    num_places = draw.choice([0, 1, fewest, 4 * fewest]) * caches * (not runner.state_bytes)
    states = (num_seqs + 1 + draw.choice([0, 1, 4, 20]) * caches) * runner.state_bytes if runner.state_bytes else 0
    monkeypatch.setattr(model_runner, "_LOADED_AT_ONCE", draw.choice([0, 2**20]))  # else beside the steps
    config = EngineConfig(
        model=str(folder), dtype="float32", device="cpu", num_threads=1, block_size=size, max_model_len=longest,
        max_num_seqs=num_seqs, max_num_batched_tokens=max(num_seqs, draw.choice([1, 2, 7, 64])),
        max_num_queued_tokens=10**6, enable_prefix_caching=caches,
        host_kv_cache_memory=num_places * runner.kv_bytes_per_block() or None,
        kv_cache_memory=(fewest + draw.choice([0, 1, fewest // 2])) * runner.kv_bytes_per_block() + states,
    )  # fmt: skip
    prefixes = [[draw.randrange(2, VOCAB_SIZE) for _ in range(longest)] for _ in range(2)]
    names = [str(draw.randrange(12)) for _ in range(draw.randint(1, 14))]
    events: dict[int, list[EngineRequest]] = {}
    aborts: dict[int, list[str]] = {}
    for name in dict.fromkeys(names):
        for step in draw.sample(range(20), names.count(name)):
            events.setdefault(step, []).append(random_request(draw, name, longest, prefixes))
        if draw.random() < 0.3:
            aborts.setdefault(draw.randrange(30), []).append(name)
    requests = [request for step in sorted(events) for request in events[step]]
    alone = replace(
        config, enable_prefix_caching=False, host_kv_cache_memory=None, max_num_batched_tokens=256,
        async_scheduling=False, kv_cache_memory=fewest * one.kv_bytes_per_block() + (num_seqs + 1) * one.state_bytes,
    )  # fmt: skip
    closest, whole, are_decided = ClosestCall(monkeypatch), [], []
    for request in requests:
        closest.forget()
        whole += serve(Engine(alone, one), {0: [request]}, {})
        are_decided.append(closest.gap > ClosestCall.DECIDED)
    guesses = {"speculative_method": "ngram", "num_speculative_tokens": draw.randint(1, 5), "prompt_lookup_min": 1}
    for changes, is_busy in (
        (guesses, False),
        ({}, False),
        ({"async_scheduling": True}, False),
        ({"async_scheduling": True}, True),
    ):
        engine = Engine(replace(config, **changes), runner)
        if is_busy:  # as on a device that is at a step when the next one is launched
            runner.is_over = lambda launched: False  # type: ignore[method-assign]
        for answer, expected, is_decided in zip(serve(engine, events, aborts), whole, are_decided, strict=True):
            if is_decided:
                answer.check(expected, TOLERANCES[kv_cache_dtype])
    runner.close()
