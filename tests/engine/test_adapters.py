"""Adapters on real models: what peft computes, in any company, wherever they are, however steps go."""

import os
import random
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fairlead_engine.config import EngineConfig
from fairlead_engine.core import adapter_places
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.runner import load_runner
from fairlead_engine.errors import AdapterError, ConfigError
from fairlead_engine.model.lora.adapter_slots import AdaptedLinear
from fairlead_engine.runner import ModelRunner, model_part
from fairlead_engine.types import EngineRequest, FinishReason, Grammar, Pooling
from fairlead_engine_testing import make_request
from fairlead_engine_testing.adapted_models import Peft, check, config_of, ranks_agree, requests_of_all, serve
from fairlead_engine_testing.adapters import (
    ALL,
    break_config,
    break_tensors,
    write_random_adapter,
    write_random_soft_prompt,
)
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.launches import CPUGraphs, Launches
from fairlead_engine_testing.letters import write_letters
from fairlead_engine_testing.tiny_families import FAMILIES
from fairlead_engine_testing.tiny_families.dense import llama_fields

pytestmark = pytest.mark.matrix

NUM_VIRTUAL = 5
"""Tokens of a soft prompt."""
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "kv_a_proj_with_mqa", "kv_b_proj")
KINDS: dict[str, dict[str, Any]] = {
    "everything": {"rank": 8, "alpha": 16},
    "one": {"rank": 1, "alpha": 1, "targets": ("q_proj", "qkv_proj")},
    "wide": {"rank": 64, "alpha": 12, "use_rslora": True, "targets": ("o_proj", "down_proj")},
    "attention": {"rank": 4, "alpha": 9, "targets": ATTENTION, "dtype": torch.bfloat16},
    "patterns": {"rank": 4, "alpha": 8, "ranks": {"o_proj": 7}, "alpha_pattern": {"layers.1.self_attn.o_proj": 3}},
}


def write_adapters(folder: Path, model: Path, targets: tuple[str, ...] = ALL) -> dict[str, Path]:
    found = {}
    for seed, (name, kind) in enumerate(KINDS.items()):
        wanted = tuple(each for each in kind.get("targets", ALL) if each in targets)
        found[name] = write_random_adapter(folder / name, model, seed=seed, **{**kind, "targets": wanted})
    return found


@pytest.mark.parametrize(
    "family", ["llama", "qwen2", "qwen3", "phi3", "gemma3", "mixtral", "deepseek_v2", "bamba", "falcon_h1"]
)
def test_many_in_one_batch_are_what_peft_computes(family: str, tmp_path: Path) -> None:
    model = write_random_checkpoint(tmp_path / "model", FAMILIES[family]())
    adapters = write_adapters(tmp_path / "adapters", model, ATTENTION if family in ("mixtral", "deepseek_v2") else ALL)
    peft = Peft(model, adapters)
    engine = Engine(config_of(model, adapters, max_loras=5, max_num_batched_tokens=40))
    requests = requests_of_all(adapters, 20)
    found = serve(engine, requests)
    for request in requests:
        check(peft, request, found[request.request_id])
    unlike = {tuple(each.tokens) for each in found.values()}
    assert len(unlike) > len(adapters), "adapters change what is said"


def test_what_peft_has_saved_is_read(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = write_random_checkpoint(tmp_path / "model", llama_fields())
    adapters: dict[str, Path] = {}
    for name, kind in {
        "all": {"r": 4, "lora_alpha": 32, "target_modules": "all-linear"},
        "pattern": {"r": 2, "target_modules": r".*layers\.1\.(self_attn|mlp)\..*_proj", "use_rslora": True},
        "layers": {"r": 3, "target_modules": ["q_proj", "down_proj"], "layers_to_transform": [1],
                   "rank_pattern": {"q_proj": 5}},
    }.items():  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
            torch.manual_seed(len(adapters))
            get_peft_model(base, LoraConfig(init_lora_weights=False, **kind)).save_pretrained(tmp_path / name)
        adapters[name] = tmp_path / name
    peft = Peft(model, adapters)
    requests = [
        make_request(name, range(3, 20), adapter=name, max_tokens=8, ignore_eos=True, logprobs=0) for name in adapters
    ]
    found = serve(Engine(config_of(model, adapters)), requests)
    for request in requests:
        check(peft, request, found[request.request_id])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("model"), llama_fields(vocab_size=61))


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_adapters(tmp_path_factory.mktemp("adapters"), model)


def random_requests(draw: random.Random, adapters: dict[str, Path], longest: int) -> Iterator[EngineRequest]:
    shared = [draw.randrange(2, 60) for _ in range(longest)]
    longest -= NUM_VIRTUAL
    for index in range(draw.randint(6, 14)):
        length = draw.randint(1, longest * 2 // 3)
        prompt = shared[: draw.randint(0, length)]
        prompt += [draw.randrange(2, 60) for _ in range(length - len(prompt))]
        common: dict[str, Any] = {"adapter": draw.choice([None, *adapters]), "arrival_time": float(draw.random())}
        if draw.random() < 0.2 and adapters.get(common["adapter"]) != adapters["soft"]:
            yield make_request(
                str(index), prompt, max_tokens=0, pooling=draw.choice([Pooling.LAST, Pooling.MEAN]), **common
            )
            continue
        sampling = draw.choice(
            [{}, {}, {"temperature": 1.0, "seed": 3}, {"frequency_penalty": 1.5}, {"prompt_logprobs": 0}]
        )
        most = draw.randint(1, longest - length)
        yield make_request(str(index), prompt, max_tokens=most, ignore_eos=True, logprobs=0, **sampling, **common)


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.compute) for seed in range(2, 30))])
def test_company_places_and_preemption_change_no_answer(
    seed: int, model: Path, adapters: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More adapters than places on the device, and than the host keeps; steps that overlap, that are captured, that go
    on by guesses from the text."""
    draw = random.Random(seed)
    soft = write_random_soft_prompt(tmp_path / "soft", model, num_virtual_tokens=NUM_VIRTUAL)
    adapters = {**adapters, "soft": soft, "again": soft}
    is_captured = seed % 3 == 0
    if is_captured:
        monkeypatch.setattr(model_part, "choose_recorder", lambda *args, **settings: CPUGraphs())
    size, longest, num_slots = draw.choice([1, 2, 3, 4]), draw.choice([16, 40]), draw.choice([1, 2, 3])
    settings: dict[str, Any] = {"block_size": size, "max_model_len": longest, "max_loras": num_slots}
    settings["attention_backend"] = "block_tables" if is_captured else draw.choice(["cpu_spans", "block_tables"])
    settings["max_num_seqs"] = draw.choice([1, 2, 4, 6])
    config = config_of(
        model, adapters, max_cpu_loras=draw.choice([1, 2, 5]), enable_prefix_caching=draw.random() < 0.7,
        max_num_batched_tokens=max(settings["max_num_seqs"], draw.choice([1, 3, 8, 64])), **settings,
    )  # fmt: skip
    runner = load_runner(config)
    blocks = -(-longest // size) + draw.choice([0, 1, 4, 20])
    config = replace(config, kv_cache_memory=blocks * runner.kv_bytes_per_block())
    requests = [*random_requests(draw, adapters, longest)]
    alone = replace(config, enable_prefix_caching=False, max_num_batched_tokens=256, async_scheduling=False)
    apart = Engine(alone, runner)
    wanted = {each.request_id: serve(apart, [each])[each.request_id] for each in requests}
    for changes in ({}, {"speculative_method": "ngram"}, {"async_scheduling": True}):
        engine = Engine(replace(config, **{"async_scheduling": False, **changes}), runner)
        if changes.get("async_scheduling"):
            runner.is_over = lambda launched: False  # type: ignore[attr-defined]
        found = serve(engine, requests)
        for name, answer in wanted.items():
            assert found[name].tokens == answer.tokens
            assert found[name].logprobs == pytest.approx(answer.logprobs, abs=2e-3)
            assert found[name].prompt_logprobs == pytest.approx(answer.prompt_logprobs, abs=2e-3)
            assert found[name].vector == pytest.approx(answer.vector, abs=1e-4)
        assert engine.blocks.num_free == engine.blocks.num_blocks


@pytest.mark.parametrize("num_slots", [1, 5])
def test_features_meet_in_one_batch_and_each_answer_is_what_it_is_alone(
    num_slots: int, model: Path, adapters: dict[str, Path]
) -> None:
    """Adapters, drafts, grammars, penalties and vectors, in chunks, with prefixes in common and a cache too small."""
    write_letters(model)
    common: dict[str, Any] = {"max_loras": num_slots, "max_cpu_loras": 2, "max_num_seqs": 6}
    config = config_of(model, adapters, **common, max_num_batched_tokens=24, speculative_method="ngram")
    runner = load_runner(config)
    engine = Engine(replace(config, kv_cache_memory=34 * runner.kv_bytes_per_block()), runner)
    requests = []
    for index, adapter in enumerate([None, *adapters, None, *adapters]):
        prompt = [5, 6, 7, 8] * 5 + [2 + index % 3]
        kind = [
            {},
            {"grammar": Grammar("start: /[a-d]{3,20}/")},
            {"frequency_penalty": 0.7},
            {"pooling": Pooling.MEAN},
        ][index % 4]
        most = {"max_tokens": 0} if "pooling" in kind else {"max_tokens": 24, "ignore_eos": "grammar" not in kind}
        requests.append(make_request(str(index), prompt, adapter=adapter, **kind, **most))
    found = serve(engine, requests)
    alone = Engine(replace(config, speculative_method=None, enable_prefix_caching=False), runner)
    for request in requests:
        answer = serve(alone, [request])[request.request_id]
        assert found[request.request_id].tokens == answer.tokens
        assert found[request.request_id].vector == pytest.approx(answer.vector, abs=1e-4)
    assert engine.load.num_draft_tokens > 0 and engine.load.num_masks > 0


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"quantization": "int8-weight-only"}], ids=str)
def test_ranks_have_their_parts_of_adapters(settings: dict[str, Any], tmp_path: Path) -> None:
    model = write_random_checkpoint(
        tmp_path / "model", FAMILIES["phi3" if not settings else "llama"](num_key_value_heads=1)
    )
    adapters = write_adapters(tmp_path / "adapters", model)
    ranks_agree(model, adapters, max_loras=2, max_cpu_loras=3, **settings)


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen3_next", {}),
        ("qwen3_5", {}),
        ("bamba", {}),
        ("lfm2", {"conv_bias": True}),
        ("granite_hybrid", {"num_local_experts": 0}),
    ],
)
def test_ranks_have_their_parts_of_adapters_of_recurrent_layers(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    model = write_random_checkpoint(tmp_path / "model", FAMILIES[family](**changes))
    separate = (f"in_proj_{end}" for end in ("qkvz", "ba", "qkv", "z", "b", "a"))
    targets = ("in_proj", "out_proj", "input_linear", *separate)
    adapters = {
        str(seed): write_random_adapter(tmp_path / str(seed), model, seed=seed, targets=targets) for seed in range(3)
    }
    ranks_agree(model, adapters, max_loras=2, max_cpu_loras=3)


@pytest.mark.slow
def test_what_another_rank_cannot_read_fails_that_load_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank may be refused a file that the first has read; all of them go on, and the next load is as any."""
    model = write_random_checkpoint(tmp_path / "model", FAMILIES["llama"](num_key_value_heads=1))
    folder = write_adapters(tmp_path / "adapters", model)["everything"]
    config = config_of(model, {}, max_loras=2, tensor_parallel_size=2, max_cpu_loras=2)
    runner = load_runner(config)
    assert isinstance(runner, ModelRunner) and runner._ranks is not None
    told: list[AdapterError | None] = []
    try:
        engine = Engine(config, runner)
        call = runner._ranks.call
        absent = str(folder / "absent")
        monkeypatch.setattr(
            runner._ranks, "call", lambda method, key, *read: call(method, key, *[absent for _ in read])
        )
        for name in ("lost", "found"):
            engine.load_adapter(name, folder, told.append)
            while len(told) < 1 + (name == "found"):
                engine.adapters.wait()
                engine.adapters.settle()
            monkeypatch.undo()
        [lost, found] = told
        assert lost is not None and "rank 1 could not read it: " in lost.message and found is None
        answers = serve(engine, [make_request(name, [5, 6, 7], adapter=name or None) for name in ("", "found")])
        assert answers[""].tokens and answers["found"].tokens != answers[""].tokens
        engine.check()
    finally:
        runner.close()


def test_one_that_was_replaced_on_disk_continues_nobodys_keys_and_values(
    model: Path, adapters: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host keeps one: the other's folder is read again when somebody asks for it."""
    monkeypatch.setattr(adapter_places, "_RETRY_SECONDS", ())
    first, second = list(adapters.values())[:2]
    folder = shutil.copytree(first, tmp_path / "replaced")
    engine = Engine(config_of(model, {"a": folder, "b": second}, max_loras=1, max_cpu_loras=1))
    for name in "aba":
        serve(engine, [make_request(name, [*range(3, 40)], adapter=name, max_tokens=2)])
    serve(engine, [make_request("b", [3, 4], adapter="b", max_tokens=2)])
    shutil.copytree(second, folder, dirs_exist_ok=True)
    assert engine.add(make_request("late", [*range(3, 40)], adapter="a", max_tokens=2)) is None
    [ended] = [output for _ in range(200) if engine.has_work() for output in engine.step()]
    assert ended.finish_reason is FinishReason.ERROR
    assert "its files are others than when it was loaded" in (ended.message or "")


def test_a_model_without_places_has_the_layers_it_had_and_others_do_nothing_for_who_has_no_adapter(
    model: Path, adapters: dict[str, Path]
) -> None:
    plain, adapted = (load_runner(config_of(model, each)) for each in ({}, adapters))
    assert isinstance(plain, ModelRunner) and isinstance(adapted, ModelRunner)
    assert plain._part.model.slots is None and plain.num_adapter_slots == 0
    layers = [each._part.model.layers[0].attention.qkv for each in (plain, adapted)]
    assert not isinstance(layers[0], AdaptedLinear) and isinstance(layers[1], AdaptedLinear)
    engine = Engine(config_of(model, adapters), adapted)
    with Launches() as launches:
        serve(engine, [make_request("r", max_tokens=3)])
    assert not {"masked_fill", "index_add_", "addmm_"} & launches.by_name.keys()
    with Launches() as launches:
        serve(engine, [make_request("r", max_tokens=3, adapter="everything"), make_request("s", max_tokens=3)])
    assert {"masked_fill", "index_add_"} <= launches.by_name.keys()


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


NAME = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
BROKEN: dict[str, tuple[Any, str]] = {
    "rank": (break_config(r=128), r"adapter_config.json: r is 128, .*at most 64; see --max-lora-rank"),
    "no rank": (break_config(r=None), "adapter_config.json: r must be a whole number above 0, not None"),
    "alpha": (break_config(lora_alpha="x"), "lora_alpha must be a number, not 'x'"),
    "dora": (break_config(use_dora=True), "use_dora is True: DoRA"),
    "bias": (break_config(bias="all"), "bias is 'all'"),
    "saved": (break_config(modules_to_save=["lm_head"]), r"modules_to_save is \['lm_head'\]: whole modules"),
    "future": (break_config(use_wings=True), "use_wings is True: which this engine does not know"),
    "kind": (break_config(peft_type="IA3"), "peft_type is 'IA3'; only LORA"),
    "targets": (break_config(target_modules=["q_proj", "lm_head"]), "names 'lm_head', which is no layer"),
    "nothing": (break_config(target_modules=[]), "target_modules names nothing"),
    "pissa": (break_config(init_lora_weights="pissa_niter_4"), "init_lora_weights is 'pissa_niter_4'"),
    "left out": (break_config(target_modules=["k_proj"]), "_proj.* belongs to a module that target_modules"),
    "a pipe": (lambda folder: make_pipe(folder / "adapter_config.json"), "is no file"),
    "no json": (lambda folder: (folder / "adapter_config.json").write_text("{"), "cannot be read as JSON"),
    "no config": (lambda folder: (folder / "adapter_config.json").unlink(), "adapter_config.json cannot be read"),
    "no weights": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "has no adapter_model.safetensors"),
    "cut": (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"\x08" * 30), "as safetensors"),
    "pickle": (
        lambda folder: (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin"),
        "adapter_model.bin may run code when it is read",
    ),
    "shape": (break_tensors(lambda each: each.update({NAME: torch.ones(8, 63)})),
              r"q_proj.lora_A.weight should have shape \[8, 64\].*\[8, 63\]"),
    "missing": (break_tensors(lambda each: each.pop(NAME)), "has no tensor .*q_proj.lora_A.weight"),
    "nan": (break_tensors(lambda each: each[NAME].fill_(float("nan"))), "q_proj hold what is no finite number"),
    "integers": (break_tensors(lambda each: each.update({NAME: torch.ones(8, 64, dtype=torch.int32)})), "holds int32"),
    "thousands": (break_tensors(lambda each: each.update({f"w{index}": torch.ones(0) for index in range(20_000)})),
                  r"its header is said to have .* bytes, and at most 1,048,576 are read"),
    "strange": (break_tensors(lambda each: each.update({"w": torch.ones(1)})), "tensor w is no low-rank part"),
    "experts": (
        break_tensors(lambda each: each.update({NAME.replace("self_attn", "mlp.experts.0"): torch.ones(8, 64)})),
        "adapts experts, and none can be adapted here: the model has none",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_served_is_refused_by_file_and_field(case: str, model: Path, tmp_path: Path) -> None:
    change, said = BROKEN[case]
    folder = write_random_adapter(tmp_path / "broken", model)
    config = config_of(model, {"x": folder})
    runner = load_runner(config)
    change(folder)
    with pytest.raises(ConfigError, match=f"(?s)lora-modules: 'x' cannot be loaded: .*{said}"):
        Engine(config, runner)


@pytest.mark.parametrize(
    ("modules", "said"),
    [("x", "has 'x'"), ("=f", "has '=f'"), ("a=1,a=2", "and 'a' twice")],
)
def test_modules_are_written_as_names_and_folders(modules: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EngineConfig(model="m", lora_modules=modules)
    assert EngineConfig(model="m", lora_modules="a=/x=y, b=/z").adapters == {"a": "/x=y", "b": "/z"}
    with pytest.raises(ConfigError, match="max-loras: is 0"):
        EngineConfig(model="m", lora_modules="a=/x", max_loras=0)
