"""Thinking budgets: the end of reasoning is forced, a token at a time, exactly where the budget ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.runner import ModelRunner
from fairlead_engine.types import Grammar, ThinkingBudget
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.letters import LETTERS, write_letters
from fairlead_engine_testing.model_runners import loaded_runner
from fairlead_engine_testing.tiny_families.dense import llama_fields

BEGIN, END = (50,), (51, 52, 53)
A, B = (2 + LETTERS.index(letter) for letter in "ab")
Answer = Callable[..., list[int]]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModelRunner]:
    folder = write_random_checkpoint(tmp_path_factory.mktemp("model"), llama_fields(vocab_size=61))
    write_letters(folder)
    return folder, loaded_runner(folder, dtype="float32", device="cpu", num_threads=1, block_size=4)


@pytest.fixture(params=[(False, None), (True, None), (False, "ngram")], ids=["steps", "overlap", "drafts"])
def answer(request: pytest.FixtureRequest, runner: tuple[Path, ModelRunner]) -> Answer:
    folder, model = runner
    is_async, method = request.param
    settings: dict[str, Any] = {"speculative_method": method} if method else {}
    config = EngineConfig(
        model=str(folder), dtype="float32", device="cpu", num_threads=1, block_size=4, max_model_len=100,
        kv_cache_memory=100 * model.kv_bytes_per_block(), async_scheduling=is_async, **settings,
    )  # fmt: skip

    def run(budget: ThinkingBudget | None, *, bias: dict[int, float], num_tokens: int = 16, **more: Any) -> list[int]:
        engine = Engine(config, model)
        sampling = {"thinking": budget, "logit_bias": bias, "max_tokens": num_tokens, "ignore_eos": True, **more}
        engine.add(make_request("r", [3, 4, 5], **sampling))
        engine.add(make_request("beside", [3, 4, 5], max_tokens=20, ignore_eos=True))
        tokens: list[int] = []
        while engine.has_work():
            tokens += [each for output in engine.step() if output.request_id == "r" for each in output.new_token_ids]
        assert not engine.thinking._thoughts
        return tokens

    return run


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 5])
def test_the_end_comes_after_so_many_tokens_of_reasoning(answer: Answer, num_tokens: int) -> None:
    found = answer(ThinkingBudget(num_tokens, BEGIN, END, has_begun=True), bias={A: 100.0})
    assert found == [A] * num_tokens + list(END) + [A] * (16 - num_tokens - 3)


def test_reasoning_that_the_answer_begins_itself_is_counted_from_there(answer: Answer) -> None:
    grammar = Grammar('start: "aa" <[50]> /a*/')
    found = answer(ThinkingBudget(4, BEGIN, END), bias={A: 100.0}, grammar=grammar)
    assert found == [A, A, *BEGIN] + [A] * 13, "the grammar rules the end out, and goes first"
    grammar = Grammar('start: "aa" <[50]> /a*/ <[51]> <[52]> <[53]> /b{6}/')
    found = answer(ThinkingBudget(4, BEGIN, END), bias={A: 100.0}, grammar=grammar)
    assert found == [A, A, *BEGIN, A, A, A, A, *END] + [B] * 6


def test_who_does_not_reason_or_ends_by_itself_is_left_alone(answer: Answer) -> None:
    for budget in (ThinkingBudget(2, BEGIN, END), ThinkingBudget(50, BEGIN, END, has_begun=True)):
        assert answer(budget, bias={}) == answer(None, bias={})
    own = answer(ThinkingBudget(5, BEGIN, END, has_begun=True), bias={}, grammar=Grammar(f"start: {ENDING} /b{{12}}/"))
    assert own == [A, *END] + [B] * 12


ENDING = '"a" <[51]> <[52]> <[53]>'
