"""A draft model changes no token, whoever it is; one that is the model itself is right, wherever a sequence comes from.

Real models under mixed traffic: chunks, tiny caches, preemption, shared prefixes, penalties, grammars, seeds.
"""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.runner import load_runner
from fairlead_engine.errors import ConfigError
from fairlead_engine.runner import draft_model
from fairlead_engine.runner.draft_model import DraftModel
from fairlead_engine.runner.model_part import Computed, ModelPart
from fairlead_engine.runner.step_plan import StepPlan
from fairlead_engine.types import EngineLoad, EngineRequest, Grammar, Injectable, ThinkingBudget
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checked_steps import answered, run_checked
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.greedy_answers import engine_of_blocks
from fairlead_engine_testing.letters import write_letters
from fairlead_engine_testing.tiny_families.dense import gemma3_fields, llama_fields, qwen3_fields

pytestmark = pytest.mark.matrix

VOCAB_SIZE = 61
FAMILIES = {
    "llama": llama_fields(vocab_size=VOCAB_SIZE),
    "gemma3": gemma3_fields(vocab_size=VOCAB_SIZE),
    "qwen3": qwen3_fields(vocab_size=VOCAB_SIZE),
}
SAMPLINGS: list[dict[str, Any]] = [
    {}, {"frequency_penalty": 1.0, "logprobs": 1}, {"temperature": 1.0, "seed": 3}, {"stop_token_ids": (3, 30, 50)},
    {"temperature": 0.8, "seed": 1, "top_p": 0.9, "repetition_penalty": 1.2},
    {"grammar": Grammar("start: /[a-e]{2,9}X/")},
    {"min_tokens": 9, "logit_bias": {7: 4.0}}, {"prompt_logprobs": 1},
]  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The models, and a smaller one with a larger and one with a smaller vocabulary."""
    root = tmp_path_factory.mktemp("models")
    made = {name: write_random_checkpoint(root / name, fields) for name, fields in FAMILIES.items()}
    for name, size in (("small", 72), ("short", 55)):
        fields = llama_fields(vocab_size=size, num_hidden_layers=1, hidden_size=32, num_key_value_heads=1)
        made[name] = write_random_checkpoint(root / name, fields, seed=5)
    return {name: write_letters(folder) for name, folder in made.items()}


def requests(seed: int) -> list[EngineRequest]:
    draw = random.Random(seed)
    shared = [draw.randrange(2, 50) for _ in range(20)]
    found = []
    for index in range(12):
        prompt = shared[: draw.choice([0, 8, 20])] + [draw.randrange(2, 50) for _ in range(draw.randint(1, 12))]
        sampling = SAMPLINGS[(index + seed) % len(SAMPLINGS)]
        found.append(make_request(str(index), prompt, arrival_time=index, max_tokens=draw.randint(10, 24), **sampling))
    return found


def config_of(folder: Path, **settings: Any) -> EngineConfig:
    common = {"dtype": "float32", "device": "cpu", "num_threads": 1, "max_model_len": 64, "max_num_queued_tokens": 9999}
    return EngineConfig(model=str(folder), **{**common, **settings})


def serve(config: EngineConfig, num_blocks: int, asked: list[EngineRequest]) -> tuple[dict[str, list[Any]], EngineLoad]:
    engine = engine_of_blocks(config, num_blocks)
    found = answered(engine, asked)
    assert engine.blocks.num_free == engine.blocks.num_blocks
    return {name: [*output.new_token_ids, output.finish_reason] for name, output in found.items()}, engine.load


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.compute) for seed in range(3, 6))])
def test_whoever_guesses_the_tokens_are_the_models(seed: int, folders: dict[str, Path]) -> None:
    draw = random.Random(seed)
    name = list(FAMILIES)[seed % 3]
    size = draw.choice([1, 2, 4])
    config = config_of(
        folders[name], block_size=size, max_num_seqs=4, max_num_batched_tokens=draw.choice([5, 12, 40]),
        attention_backend=draw.choice(["cpu_spans", "block_tables"]),
    )  # fmt: skip
    num_blocks = 64 // size + draw.choice([0, 8 // size, 64 // size])
    expected, _ = serve(config, num_blocks, requests(seed))
    guesser = draw.choice([name, "small", "short"])
    guesses = {"speculative_method": "draft", "num_speculative_tokens": draw.randint(1, 5)}
    found, load = serve(replace(config, speculative_model=str(folders[guesser]), **guesses), num_blocks, requests(seed))
    assert found == expected
    assert load.num_draft_tokens


@pytest.mark.parametrize("host", [None, 2**20])
def test_the_model_itself_guesses_right_after_chunks_prefixes_and_preemption(
    host: int | None, folders: dict[str, Path]
) -> None:
    asked = [request for request in requests(0) if request.sampling.grammar is None]
    config = config_of(
        folders["llama"], block_size=4, max_num_seqs=4, max_num_batched_tokens=24, speculative_method="draft",
        speculative_model=str(folders["llama"]), num_speculative_tokens=3, host_kv_cache_memory=host,
    )  # fmt: skip
    _, load = serve(config, 20, asked)
    assert load.num_preemptions
    assert load.prefix_hit_tokens
    assert bool(load.num_blocks_loaded) == (host is not None)
    least = 0.97 if host is None else 0.8  # what the draft model had not computed of a saved block it lacks for good
    assert sum(load.num_accepted_per_position) >= least * load.num_draft_tokens, "greedy and drawn"


def test_the_model_itself_guesses_right_behind_what_was_put_into_its_answer(folders: dict[str, Path]) -> None:
    """What it had not computed of the answer before that, it computes with it."""
    config = config_of(
        folders["llama"], speculative_method="draft", speculative_model=str(folders["llama"]), num_speculative_tokens=3,
        block_size=4,
    )  # fmt: skip
    engine, told = Engine(config), list[str | None]()
    request = make_request("a", [5, 9, 7], max_tokens=40, ignore_eos=True)
    assert engine.add(msgspec.structs.replace(request, injectable=Injectable([(60, 59)]))) is None
    for place in range(3):
        while engine.load.generation_tokens < 10 * (place + 1):
            engine.step()
        engine.inject("a", f"m{place}", [11, 12, 13 + place, 14], told.append)
    run_checked(engine)
    assert told == [None] * 3
    assert sum(engine.load.num_accepted_per_position) == engine.load.num_draft_tokens


def test_what_is_made_up_for_comes_in_steps_of_a_bounded_size(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sequences for which long prompts left no room for guesses, which are right all the same."""
    num_rows: list[int] = []

    def compute(part: ModelPart, plan: StepPlan) -> Computed:
        num_rows.append(int(plan.num_queries.sum()))
        return kept(part, plan)

    kept = ModelPart.compute
    monkeypatch.setattr(ModelPart, "compute", compute)
    monkeypatch.setattr(draft_model, "_MOST_MADE_UP", 7)
    config = config_of(
        folders["llama"], speculative_method="draft", speculative_model=str(folders["llama"]), num_speculative_tokens=2,
        max_num_seqs=4, max_num_batched_tokens=8,
    )  # fmt: skip
    engine = Engine(config)
    for name in "abc":
        assert engine.add(make_request(name, [5, 9, 7 + ord(name) % 3], max_tokens=30, ignore_eos=True)) is None
    engine.step()
    assert engine.add(make_request("long", [2 + place % 50 for place in range(60)], max_tokens=1)) is None
    num_rows.clear()
    run_checked(engine)
    assert max(num_rows) <= 7 + 8
    assert num_rows.count(7) > 2, "there was more to make up for"
    assert sum(engine.load.num_accepted_per_position) >= engine.load.num_draft_tokens - 3 > 20


def test_the_model_itself_guesses_right_behind_guesses_that_did_not_stand(folders: dict[str, Path]) -> None:
    """As a grammar chose otherwise, and a long prompt then left no room for guesses: nothing is left of those."""
    config = config_of(
        folders["llama"], speculative_method="draft", speculative_model=str(folders["llama"]), num_speculative_tokens=5,
        max_num_seqs=2, max_num_batched_tokens=8,
    )  # fmt: skip
    engine, grammar = Engine(config), Grammar('start: "abc"')
    assert engine.add(make_request("a", [5, 9, 7], max_tokens=40, ignore_eos=True, grammar=grammar)) is None
    while not engine.load.num_draft_tokens:
        engine.step()
    assert engine.load.num_draft_tokens == 5 and not sum(engine.load.num_accepted_per_position)
    assert engine.add(make_request("b", [2 + place % 50 for place in range(60)], max_tokens=1)) is None
    while engine.load.generation_tokens < 30:
        engine.step()
    assert sum(engine.load.num_accepted_per_position) == engine.load.num_draft_tokens - 5 > 0


def test_a_cache_for_two_models_holds_fewer_tokens(folders: dict[str, Path]) -> None:
    alone, draft = (load_runner(config_of(folders[name])).kv_bytes_per_block() for name in ("llama", "small"))
    both = config_of(folders["llama"], speculative_method="draft", speculative_model=str(folders["small"]))
    assert load_runner(both).kv_bytes_per_block() == alone + draft


def test_who_has_no_drafts_costs_the_draft_model_nothing_when_a_prompt_comes(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or all that was decoded until then would be made up for in one pass."""
    num_rows = []

    def compute(self: DraftModel, plan: StepPlan, *rest: Any) -> None:
        num_rows.append(int(plan.num_queries.sum()))
        kept(self, plan, *rest)

    kept = DraftModel._compute
    monkeypatch.setattr(DraftModel, "_compute", compute)
    config = config_of(folders["llama"], speculative_method="draft", speculative_model=str(folders["small"]))
    engine = Engine(config)
    assert engine.add(make_request("a", [2, 3], max_tokens=40, thinking=ThinkingBudget(100, (60,), (59,)))) is None
    while engine.load.generation_tokens < 30:
        engine.step()
    num_rows.clear()
    assert engine.add(make_request("b", [4, 5, 6], max_tokens=1)) is None
    run_checked(engine)
    assert num_rows == [3]


def test_a_model_with_other_tokens_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    other = write_random_checkpoint(tmp_path, llama_fields())

    def refused() -> str:
        with pytest.raises(ConfigError) as error:
            load_runner(config_of(folders["llama"], speculative_method="draft", speculative_model=str(other)))
        assert error.value.field == "speculative_model"
        return str(error.value)

    assert "no tokenizer.json" in refused()
    write_letters(other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "2 tokens differ, such as 'a' (2 and 3)" in refused()
    (other / "tokenizer.json").write_text("[]")
    assert "is no tokenizer" in refused()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"speculative_method": "draft"}, "speculative_model"),
        ({"speculative_method": "ngram", "speculative_model": "/m"}, "speculative_model"),
        ({"speculative_method": "draft", "speculative_model": "/m", "prompt_lookup_min": 2}, "prompt_lookup_min"),
        ({"speculative_method": "draft", "speculative_model": "/m", "tensor_parallel_size": 2}, "speculative_method"),
    ],
)
def test_settings_of_a_draft_model_that_do_not_fit_are_refused(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as error:
        config_of(Path("/m"), **settings)
    assert error.value.field == field
