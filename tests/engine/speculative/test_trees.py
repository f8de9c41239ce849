"""Guesses of heads, in chains and in trees, change no token, whatever runs beside; more stands of trees."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.runner import load_runner
from fairlead_engine.errors import ConfigError
from fairlead_engine.runner import model_part
from fairlead_engine.types import EngineLoad, EngineRequest, Grammar
from fairlead_engine_testing import make_request
from fairlead_engine_testing.adapters import write_random_adapter
from fairlead_engine_testing.checked_steps import answered
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.eagle_heads import eagle_fields, write_eagle_head
from fairlead_engine_testing.greedy_answers import engine_of_blocks, small_config
from fairlead_engine_testing.launches import CPUGraphs
from fairlead_engine_testing.letters import write_letters
from fairlead_engine_testing.tiny_families.dense import gemma3_fields, llama_fields
from fairlead_engine_testing.tiny_families.experts import gpt_oss_fields, llama4_fields
from fairlead_engine_testing.tiny_families.latent import deepseek_v3_fields, deepseek_v32_fields

pytestmark = pytest.mark.matrix

VOCAB_SIZE, HIDDEN = 61, 64
MEDUSA = "[[0],[1],[0,0],[2],[0,1],[1,0],[0,0,0],[0,0,1],[0,1,0],[3]]"
SHAPES = {"medusa": [None, MEDUSA, "3x9"], "eagle3": [None, "3x9", "2x6"]}
SAMPLINGS: list[dict[str, Any]] = [
    {}, {"grammar": Grammar("start: /([a-m][N-Z]?)*/")},
    {"frequency_penalty": 1.0, "logprobs": 2}, {"temperature": 1.0, "seed": 3}, {"stop_token_ids": (3, 30, 50)},
    {"temperature": 0.8, "seed": 1, "top_p": 0.9, "repetition_penalty": 1.3}, {"min_tokens": 9, "logit_bias": {7: 4.0}},
    {"prompt_logprobs": 1}, {"allowed_token_ids": (4, 5, 6)}, {"dry_multiplier": 1.0, "dry_allowed_length": 1},
    {"logit_bias": {7: 3.0, 8: 3.0}, "bad_words": ((7, 8), (8, 8, 7))}, {"presence_penalty": 1.5, "temperature": 0.5},
]  # fmt: skip


def write_medusa(folder: Path, vocab_size: int = VOCAB_SIZE, output: torch.Tensor | None = None) -> Path:
    """Random heads, or such as say what the model's own output does: right where it repeats itself."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    weights = [torch.randn(vocab_size, HIDDEN) / 8 if output is None else output.clone() for _ in range(3)]
    save_file({f"{head}.0.weight": weight for head, weight in enumerate(weights)}, folder / "model.safetensors")
    return folder


def write_eagle(folder: Path, vocab_size: int = VOCAB_SIZE) -> Path:
    layers = {"eagle_aux_hidden_state_layer_ids": [0, 1, 1]}
    return write_eagle_head(folder, eagle_fields(HIDDEN, vocab_size, vocab_size - 1, **layers))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_letters(write_random_checkpoint(tmp_path_factory.mktemp("model"), llama_fields(vocab_size=VOCAB_SIZE)))


@pytest.fixture(scope="module")
def heads(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("heads")
    output = load_file(folder / "model.safetensors")["lm_head.weight"]
    return {"medusa": write_medusa(root / "medusa", output=output), "eagle3": write_eagle(root / "eagle")}


def config_of(folder: Path, method: str | None = None, heads: Path | None = None, **settings: Any) -> EngineConfig:
    common: dict[str, Any] = {"block_size": 4, "max_model_len": 64, "max_num_batched_tokens": 24}
    if method is not None:
        common |= {"speculative_method": method, "speculative_model": str(heads), "num_speculative_tokens": 3}
    return small_config(folder, **{**common, **settings})


def serve(config: EngineConfig, asked: list[EngineRequest], num_blocks: int = 24) -> tuple[dict[str, Any], EngineLoad]:
    """Each request's tokens and log-probabilities."""
    engine, found = engine_of_blocks(config, num_blocks), dict[str, Any]()
    for name, output in answered(engine, asked).items():
        told = [(each.token_id, round(each.logprob, 3), each.rank) for each in output.logprobs or []]
        found[name] = output.new_token_ids, told
    assert engine.blocks.num_free == engine.blocks.num_blocks
    return found, engine.load


def mixed(num: int = 14, **changes: Any) -> list[EngineRequest]:
    shared = [2 + 5 * place % 50 for place in range(16)]
    return [
        make_request(
            str(index), shared[: 8 * (index % 3)] + [2 + (7 * index + 3 * place) % 50 for place in range(1 + index)],
            arrival_time=index, max_tokens=20, **SAMPLINGS[index % len(SAMPLINGS)], **changes,
        )
        for index in range(num)
    ]  # fmt: skip


@pytest.mark.parametrize("backend", ["cpu_spans", "block_tables"])
@pytest.mark.parametrize(("method", "tree"), [(method, tree) for method in SHAPES for tree in SHAPES[method]])
def test_guesses_change_no_token(
    method: str, tree: str | None, backend: str, folder: Path, heads: dict[str, Path]
) -> None:
    """Greedy or drawn, penalised or told of, with chunks, preemption, shared prefixes and a tiny cache."""
    expected, _ = serve(config_of(folder, attention_backend=backend), mixed())
    config = config_of(folder, method, heads[method], speculative_tree=tree, attention_backend=backend)
    found, load = serve(config, mixed())
    assert found == expected
    assert load.num_preemptions
    assert load.prefix_hit_tokens
    assert load.num_draft_tokens > load.num_drafts, "there were chains or trees"
    assert sum(load.num_accepted_per_position), "and something of them stood"


@pytest.mark.parametrize("method", SHAPES)
def test_trees_change_no_token_where_steps_are_captured(
    method: str, folder: Path, heads: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decodes are one graph, and steps with trees those between attentions."""
    asked = mixed(6)
    expected, _ = serve(config_of(folder, attention_backend="block_tables"), asked)
    monkeypatch.setattr(model_part, "choose_recorder", lambda *_, **__: CPUGraphs())
    tree = {"speculative_tree": "3x9", "attention_backend": "block_tables"}
    found, load = serve(config_of(folder, method, heads[method], **tree), asked)
    assert found == expected
    assert load.num_draft_tokens > load.num_drafts


@pytest.mark.compute
@settings(deadline=None, max_examples=15)
@given(
    method=st.sampled_from(["medusa", "eagle3"]),
    block_size=st.integers(1, 4),
    num_blocks=st.integers(40, 90),
    budget=st.integers(5, 40),
    depth=st.integers(1, 3),
    width=st.integers(2, 4),
    nodes=st.integers(12, 20),
    kv_dtype=st.sampled_from(["auto", "int8", "fp8"]),
    backend=st.sampled_from(["cpu_spans", "block_tables"]),
    seed=st.integers(0, 99),
)
def test_any_tree_in_any_cache_changes_no_token(
    method: str, block_size: int, num_blocks: int, budget: int, depth: int, width: int, nodes: int, kv_dtype: str,
    backend: str, seed: int, folder: Path, heads: dict[str, Path],
) -> None:  # fmt: skip
    asked = [
        make_request(
            str(index), [2 + (seed + 7 * index + 3 * place) % 50 for place in range(1 + (seed + index) % 9)],
            arrival_time=index, max_tokens=12, ignore_eos=True, **SAMPLINGS[(seed + index) % len(SAMPLINGS)],
        )
        for index in range(5)
    ]  # fmt: skip
    common: dict[str, Any] = {
        "block_size": block_size, "max_num_batched_tokens": budget, "kv_cache_dtype": kv_dtype,
        "attention_backend": backend, "max_model_len": 40,
    }  # fmt: skip
    num_blocks = -(-num_blocks // block_size)
    expected, _ = serve(config_of(folder, **common), asked, num_blocks)
    common |= {"speculative_tree": f"{width}x{nodes}", "num_speculative_tokens": depth}
    found, _ = serve(config_of(folder, method, heads[method], **common), asked, num_blocks)
    assert found == expected


FAMILIES = {
    "gemma3": gemma3_fields(vocab_size=VOCAB_SIZE),
    "deepseek": deepseek_v3_fields(vocab_size=VOCAB_SIZE),
    "indexer": deepseek_v32_fields(vocab_size=VOCAB_SIZE, index_topk=9),
    "gpt_oss": gpt_oss_fields(vocab_size=VOCAB_SIZE),
    "llama4": llama4_fields(vocab_size=VOCAB_SIZE, attention_chunk_size=7),
}


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_windows_sinks_and_latents_know_trees(family: str, kv_dtype: str, tmp_path: Path) -> None:
    model = write_random_checkpoint(tmp_path / "model", FAMILIES[family])
    head = write_medusa(tmp_path / "heads")
    asked = [
        make_request(str(index), [3 + index, 9, 7], arrival_time=index, max_tokens=24, ignore_eos=True)
        for index in range(5)
    ]
    common: dict[str, Any] = {"kv_cache_dtype": kv_dtype, "block_size": 2}
    expected, _ = serve(config_of(model, **common), asked, 48)
    found, load = serve(config_of(model, "medusa", head, speculative_tree="4x20", **common), asked, 48)
    assert found == expected
    assert sum(load.num_accepted_per_position)


@pytest.mark.parametrize("method", SHAPES)
def test_adapters_and_trees_are_what_each_is_alone(
    method: str, folder: Path, heads: dict[str, Path], tmp_path: Path
) -> None:
    modules = ",".join(
        f"{name}={write_random_adapter(tmp_path / name, folder, seed=seed)}" for seed, name in enumerate(("one", "two"))
    )
    asked = [
        make_request(
            str(index), [3 + index, 9, 5 + index], arrival_time=index, max_tokens=16,
            adapter=(None, "one", "two")[index % 3],
        )
        for index in range(9)
    ]  # fmt: skip
    common: dict[str, Any] = {"lora_modules": modules, "max_loras": 2}
    expected, _ = serve(config_of(folder, **common), asked)
    found, load = serve(config_of(folder, method, heads[method], speculative_tree="3x9", **common), asked)
    assert found == expected
    assert load.num_draft_tokens


GRAMMARS: list[dict[str, Any]] = [
    {"grammar": Grammar("start: /[a-e]{2,9}X/")},
    {"grammar": Grammar("start: /[a-c]*/"), "temperature": 1.0, "seed": 4},
    {"grammar": Grammar("start: /ab(ab)*/"), "ignore_eos": True, "logprobs": 1},
    {"grammar": Grammar('start: "a" "b" "c" /[d-z]{4}/ "x"'), "ignore_eos": True},
    {"grammar": Grammar("start: /[a-z]+/")},
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "tree"), [("medusa", MEDUSA), ("medusa", None), ("eagle3", "3x9"), ("eagle3", None), ("ngram", None)]
)
def test_every_guess_has_a_grammar_state_of_its_own(
    method: str, tree: str | None, folder: Path, heads: dict[str, Path], tmp_path: Path
) -> None:
    """Beyond its end, too, where a request goes on freely."""
    asked = [
        make_request(
            str(index), [2 + index, 9, 5 + index], arrival_time=index, max_tokens=24, logit_bias={2: 5.0, 3: 4.9},
            **GRAMMARS[index % len(GRAMMARS)],
        )
        for index in range(10)
    ]  # fmt: skip
    expected, plain = serve(config_of(folder), asked, 30)
    head = write_medusa(tmp_path, output=torch.zeros(VOCAB_SIZE, HIDDEN)) if method == "medusa" else heads["eagle3"]
    given: dict[str, Any] = {"speculative_tree": tree}
    if method == "ngram":
        given |= {"speculative_model": None, "prompt_lookup_min": 1}
    found, load = serve(config_of(folder, method, head, **given), asked, 30)
    assert found == expected
    assert load.num_masks > plain.num_masks
    assert sum(load.num_accepted_per_position)


@pytest.mark.parametrize("method", SHAPES)
def test_more_stands_of_a_tree_than_of_a_chain(
    method: str, folder: Path, heads: dict[str, Path], tmp_path: Path
) -> None:
    """Random heads are seldom right; with several guesses for a place more often."""
    head = write_medusa(tmp_path / "random") if method == "medusa" else heads[method]
    asked = [make_request(str(index), [5 + index, 9, 7], max_tokens=40, ignore_eos=True) for index in range(4)]
    accepted = []
    for tree in (None, "16x40"):
        config = config_of(folder, method, head, speculative_tree=tree, max_num_batched_tokens=512)
        _, load = serve(config, asked, 100)
        accepted.append(sum(load.num_accepted_per_position))
    assert accepted[1] > accepted[0]


def test_what_a_request_rules_out_is_not_guessed(folder: Path, tmp_path: Path) -> None:
    """Of two tokens that it allows one is a bad word: the other is all that a chain of likeliest guesses has."""
    torch.manual_seed(1)
    save_file(
        {f"{head}.0.weight": torch.randn(VOCAB_SIZE, HIDDEN) for head in range(3)}, tmp_path / "model.safetensors"
    )
    sampling: dict[str, Any] = {"allowed_token_ids": (7, 9), "bad_words": ((9,),)}
    asked = [make_request("a", [5, 9, 7], max_tokens=17, ignore_eos=True, **sampling)]
    _, load = serve(config_of(folder, "medusa", tmp_path, speculative_tree="[[0],[0,0],[0,0,0]]"), asked)
    assert load.num_accepted_per_position == (load.num_drafts,) * 3 or sum(load.num_accepted_per_position) == 16


def test_the_length_follows_what_stands(folder: Path, tmp_path: Path) -> None:
    """Where nothing stands there are hardly any trees."""
    torch.manual_seed(2)
    weights = {f"{head}.0.weight": torch.randn(VOCAB_SIZE, HIDDEN) for head in range(3)}
    save_file(weights, tmp_path / "model.safetensors")
    asked = [make_request("a", [5, 9, 7], max_tokens=50, ignore_eos=True, logit_bias={7: 0.0})]
    config = config_of(folder, "medusa", tmp_path, speculative_tree="[[0],[0,0],[1]]")
    _, load = serve(config, asked)
    assert load.num_drafts < 25


@pytest.mark.parametrize(
    ("method", "changes", "says"),
    [
        ("medusa", {"speculative_tree": "x"}, "is neither a list of paths"),
        ("medusa", {"speculative_tree": "[[0],[1,0]]"}, r"names \[1, 0\] without \[1\]"),
        ("medusa", {"speculative_tree": "[[0],[0]]"}, r"names \[0\] twice"),
        ("medusa", {"speculative_tree": "[[-1]]"}, "is neither"),
        ("medusa", {"speculative_tree": str([[each] for each in range(64)])}, "is neither"),
        ("medusa", {"speculative_tree": "3x64"}, "has 64 guesses"),
        ("medusa", {"speculative_tree": "1x4"}, "is 1 guesses wide"),
        ("eagle3", {"speculative_tree": "4x6"}, "follows 4 guesses at each of 3 places"),
        ("eagle3", {"speculative_tree": "[[0],[1]]"}, "an EAGLE head follows"),
    ],
)
def test_what_is_no_tree_is_refused_by_name(
    method: str, changes: dict[str, Any], says: str, folder: Path, heads: dict[str, Path]
) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        config_of(folder, method, heads[method], **changes)
    assert error.value.field == "speculative_tree"


def test_trees_are_for_heads_alone(folder: Path) -> None:
    with pytest.raises(ConfigError, match="set speculative-method to medusa or eagle3 or mtp") as error:
        config_of(folder, speculative_method="ngram", speculative_tree="3x9")
    assert error.value.field == "speculative_tree"


def test_a_tree_that_is_wider_than_the_vocabulary_is_refused(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "model", llama_fields(vocab_size=6))
    with pytest.raises(ConfigError, match="guesses 7 tokens for one place, among 6 words"):
        load_runner(config_of(folder, "medusa", write_medusa(tmp_path / "heads", 6), speculative_tree="7x21"))
