"""Adapters of experts and of latents' keys and values: what peft computes, on both ways to compute experts; and folders
that are wrong."""

import json
import random
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.runner import load_runner
from fairlead_engine.errors import ConfigError
from fairlead_engine.model import layers, weights
from fairlead_engine.model.layers import GroupedExperts, SharedExpert
from fairlead_engine.model.loading import load_model, read_config
from fairlead_engine.model.lora import expert_adapters
from fairlead_engine.model.lora.adapter_slots import AdapterSlots, HostAdapter
from fairlead_engine.model.lora.lora_config import LoraConfig
from fairlead_engine.model.lora.peft_files import PeftFiles
from fairlead_engine.runner import ModelRunner, model_part
from fairlead_engine_testing import make_request
from fairlead_engine_testing.adapted_models import Peft, check, config_of, ranks_agree, requests_of_all, serve
from fairlead_engine_testing.adapters import (
    adapted_by_peft,
    break_config,
    break_tensors,
    expert_parameters,
    write_random_adapter,
)
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.launches import CPUGraphs
from fairlead_engine_testing.tiny_families import FAMILIES

pytestmark = pytest.mark.matrix

RANKS = (4, 2, 7)


def network(model: Path) -> Any:
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


def write_adapters(folder: Path, model: Path) -> dict[str, Path]:
    """Of all experts, of several ranks."""
    names = expert_parameters(network(model))
    for rank in RANKS:
        adapted_by_peft(network(model), folder / f"rank-{rank}", names, seed=rank, rank=rank, use_rslora=rank == 7)
    return {f"rank-{rank}": folder / f"rank-{rank}" for rank in RANKS}


@pytest.fixture(params=["each by itself", "in one product", "captured"])
def computed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings under which experts are computed in this way, the last two as on CUDA."""
    if request.param == "each by itself":
        return {}
    monkeypatch.setattr(weights, "groups_experts", lambda device: True)
    if request.param == "captured":
        monkeypatch.setattr(model_part, "choose_recorder", lambda *args, **settings: CPUGraphs())
    return {"attention_backend": "block_tables"}


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss", "llama4", "deepseek_v3"])
def test_many_in_one_batch_are_what_peft_computes(family: str, computed: dict[str, Any], tmp_path: Path) -> None:
    """More adapters than places, so that they come and go."""
    model = write_random_checkpoint(tmp_path / "model", FAMILIES[family]())
    adapters = write_adapters(tmp_path, model)
    peft = Peft(model, adapters)
    config = config_of(model, adapters, max_loras=2, max_num_batched_tokens=40, max_lora_expert_rank=7, **computed)
    engine = Engine(config)
    requests = requests_of_all(adapters, 20)
    found = serve(engine, requests)
    for request in requests:
        check(peft, request, found[request.request_id])
    assert len({tuple(each.tokens) for each in found.values()}) > len(adapters), "adapters change what is said"
    assert isinstance(engine.runner, ModelRunner)
    is_captured = engine.runner._part.model.why_not_captured is None
    assert is_captured is bool(computed)


@pytest.mark.parametrize("way", ["quantised", "ngram", "bfloat16"])
def test_experts_with_adapters_compose(way: str, computed: dict[str, Any], tmp_path: Path) -> None:
    """In company, and alone: the same tokens."""
    model = write_random_checkpoint(tmp_path / "model", FAMILIES["qwen3_moe"]())
    adapters = write_adapters(tmp_path, model)
    settings: dict[str, Any] = {"quantised": {"quantization": "int4-weight-only"}, "bfloat16": {}, "ngram": {}}[way]
    settings |= {"speculative_method": "ngram", "prompt_lookup_min": 1} if way == "ngram" else {}
    config = config_of(
        model, adapters, max_loras=3, max_num_batched_tokens=40, dtype="bfloat16" if way == "bfloat16" else "float32",
        **settings, **computed,
    )  # fmt: skip
    engine, draw = Engine(config), random.Random(3)
    requests = [
        make_request(name or "none", [draw.randrange(2, 9) for _ in range(17)], adapter=name, max_tokens=10,
                     ignore_eos=True, logprobs=0)
        for name in (*adapters, None)
    ]  # fmt: skip
    together = serve(engine, requests)
    for request in requests:
        alone = serve(engine, [request])[request.request_id]
        if way != "bfloat16":
            assert alone.tokens == together[request.request_id].tokens
        assert alone.logprobs[0] == pytest.approx(together[request.request_id].logprobs[0], abs=0.1)
    assert together["none"].tokens != together["rank-4"].tokens


def test_linear_layers_of_experts_as_older_versions_have_them(tmp_path: Path) -> None:
    """peft itself puts them together for newer ones."""
    model = write_random_checkpoint(tmp_path / "model", FAMILIES["mixtral"]())
    adapters = {
        name: write_random_adapter(tmp_path / name, model, seed=seed, rank=4, alpha=8, targets=("w1", "w2", "w3"))
        for seed, name in enumerate("ab")
    }
    peft = Peft(model, adapters)
    requests = requests_of_all(adapters, 20)
    found = serve(Engine(config_of(model, adapters, max_loras=2)), requests)
    for request in requests:
        check(peft, request, found[request.request_id])


def test_one_parameter_alone_and_routers_are_what_peft_computes(tmp_path: Path) -> None:
    model = write_random_checkpoint(tmp_path / "model", FAMILIES["qwen3_moe"]())
    kinds = {"up": ["mlp.experts.gate_up_proj"], "down": ["mlp.experts.down_proj"], "router": ["mlp.gate.weight"]}
    for name, parameters in kinds.items():
        adapters = {name: tmp_path / name}
        adapted_by_peft(network(model), tmp_path / name, parameters)
        requests = requests_of_all(adapters, 20)
        found = serve(Engine(config_of(model, adapters)), requests)
        for request in requests:
            check(Peft(model, adapters), request, found[request.request_id])


def test_sides_that_older_versions_of_peft_swap_are_told_by_their_shapes(tmp_path: Path) -> None:
    """The same numbers on the other sides: A of outputs, and B of inputs."""
    model = write_random_checkpoint(tmp_path / "model", FAMILIES["qwen3_moe"](moe_intermediate_size=24))
    names = expert_parameters(network(model))
    adapted_by_peft(network(model), tmp_path / "new", names, rank=4)
    tensors = load_file(tmp_path / "new/adapter_model.safetensors")
    swapped: dict[str, torch.Tensor] = {}
    for name, first in tensors.items():
        if "lora_A" in name:
            other = name.replace("lora_A", "lora_B")
            second, num = tensors[other], len(first) // 4
            swapped[name] = second.view(len(second), 4, num).permute(2, 1, 0).reshape(4 * num, -1).contiguous()
            swapped[other] = first.view(num, 4, -1).permute(2, 1, 0).reshape(-1, 4 * num).contiguous()
    (tmp_path / "old").mkdir()
    (tmp_path / "old/adapter_config.json").write_text((tmp_path / "new/adapter_config.json").read_text())
    save_file(swapped, tmp_path / "old/adapter_model.safetensors")
    adapters = {name: tmp_path / name for name in ("new", "old")}
    requests = [
        make_request(name, range(3, 20), adapter=name, max_tokens=8, ignore_eos=True, logprobs=0) for name in adapters
    ]
    found = serve(Engine(config_of(model, adapters)), requests)
    assert found["new"] == found["old"]


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "glm4_moe_lite"])
def test_what_makes_keys_and_values_of_latents_is_what_peft_computes(family: str, tmp_path: Path) -> None:
    """Absorbed into queries and outputs, for some rows of a step and others not."""
    model = write_random_checkpoint(tmp_path / "model", FAMILIES[family]())
    adapters = {
        f"rank-{rank}": write_random_adapter(tmp_path / f"{rank}", model, seed=rank, rank=rank, targets=("kv_b_proj",))
        for rank in (5, 1)
    }
    peft = Peft(model, adapters)
    requests = requests_of_all(adapters, 20)
    found = serve(Engine(config_of(model, adapters, max_loras=1, max_num_batched_tokens=24)), requests)
    for request in requests:
        check(peft, request, found[request.request_id])


@pytest.mark.parametrize(
    "family",
    [
        pytest.param("qwen3_moe", marks=pytest.mark.slow),
        *(pytest.param(family, marks=pytest.mark.long) for family in ("deepseek_v3", "gpt_oss")),
    ],
)
def test_ranks_have_their_parts_of_experts(family: str, tmp_path: Path) -> None:
    model = write_random_checkpoint(tmp_path / "model", FAMILIES[family]())
    ranks_agree(model, write_adapters(tmp_path, model), max_loras=3)


def linear_layers(layers: Iterable[int], experts: Iterable[int]) -> Callable[[Path], None]:
    """Adapters of `up_proj` of these experts, as linear layers, too."""
    names = [f"base_model.model.model.layers.{at}.mlp.experts.{index}.up_proj" for at in layers for index in experts]

    def apply(folder: Path) -> None:
        break_config(target_modules=["up_proj"])(folder)
        for kind, shape in (("A", (4, 64)), ("B", (32, 4))):
            break_tensors(
                lambda each, kind=kind, shape=shape: each.update(
                    {f"{name}.lora_{kind}.weight": torch.ones(shape) for name in names}
                )
            )(folder)

    return apply


LAYER = "base_model.model.model.layers.1.mlp.experts"
UP, DOWN = f"{LAYER}.base_layer.lora_A.weight", f"{LAYER}.lora_A.weight"
WRONG: dict[str, tuple[Callable[[Path], None], str]] = {
    "rank": (break_config(r=9), "r is 9, and adapters of experts here have at most 8; see --max-lora-expert-rank"),
    "rank of some": (
        break_config(rank_pattern={".*\\.gate_up_proj": 9}),
        "rank_pattern has 9, and adapters of experts here have at most 8; see --max-lora-expert-rank",
    ),
    "unknown": (
        break_config(target_parameters=["mlp.experts.gate_proj"]),
        "names 'mlp.experts.gate_proj', which is no parameter .*; there are .*mlp.experts.gate_up_proj",
    ),
    "no names": (break_config(target_parameters={"a": 1}), "target_parameters must be names of parameters"),
    "a pattern": (break_config(target_parameters=[".*"]), "target_parameters names '.*', which is no parameter"),
    "left out": (
        break_config(target_parameters=["mlp.experts.down_proj"]),
        "layers.0.mlp.experts.base_layer.lora_A.weight belongs to experts that neither",
    ),
    "shape": (
        break_tensors(lambda each: each.update({DOWN: torch.ones(9, 9)})),
        "lora_A.weight should have shape .* has .9, 9",
    ),
    "missing": (
        break_tensors(lambda each: each.pop(UP)),
        "has no tensor .*layers.1.mlp.experts.base_layer.lora_A.weight",
    ),
    "a layer": (
        break_tensors(lambda each: [each.pop(name) for name in list(each) if "layers.1" in name]),
        "has no tensor .*layers.1.mlp.experts.lora_A.weight",
    ),
    "integers": (
        break_tensors(lambda each: each.update({DOWN: each[DOWN].int()})),
        "lora_A.weight holds int32, no floats",
    ),
    "no number": (break_tensors(lambda each: each[DOWN].fill_(float("inf"))), "experts hold what is no finite number"),
    "deeper": (
        break_tensors(lambda each: each.update({UP.replace("base_layer", "base_layer.base_layer"): torch.ones(1, 1)})),
        "base_layer.base_layer.lora_A.weight belongs to experts that neither",
    ),
    "twice": (linear_layers(range(2), range(6)), "adapt what others adapt, too"),
    "some experts": (linear_layers([1], [0]), "has no tensor .*layers.0.mlp.experts.0.up_proj.lora_A.weight"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("models") / "model", FAMILIES["qwen3_moe"]())


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of all experts."""
    folder = tmp_path_factory.mktemp("adapters") / "whole"
    adapted_by_peft(network(model), folder, expert_parameters(network(model)))
    return folder


@pytest.fixture(scope="module")
def runner(model: Path) -> Any:
    return load_runner(config_of(model, {}, max_loras=1))


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused_by_field_or_tensor(
    case: str, model: Path, whole: Path, runner: Any, tmp_path: Path
) -> None:
    change, said = WRONG[case]
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_bytes((whole / name).read_bytes())
    change(tmp_path)
    with pytest.raises(ConfigError, match=f"(?s)lora-modules: 'x' cannot be loaded: .*{said}"):
        Engine(config_of(model, {"x": tmp_path}, max_loras=1), runner)


def test_without_room_for_experts_they_are_refused_and_take_none(model: Path, whole: Path) -> None:
    config = config_of(model, {"x": whole}, max_loras=1, max_lora_expert_rank=0)
    with pytest.raises(ConfigError, match="experts cannot be adapted here, see --max-lora-expert-rank"):
        Engine(config)
    sizes = []
    for rank in (0, 1, 3):
        runner = load_runner(config_of(model, {}, max_loras=2, max_lora_expert_rank=rank))
        assert isinstance(runner, ModelRunner) and runner._part.model.slots is not None
        sizes.append(runner._part.model.slots.num_bytes)
    assert sizes[2] - sizes[0] == 3 * (sizes[1] - sizes[0]) > 0


def test_the_rank_of_experts_is_bounded_and_has_a_default() -> None:
    assert EngineConfig(model="m").expert_rank == 8
    assert EngineConfig(model="m", max_lora_rank=4).expert_rank == 4
    assert EngineConfig(model="m", max_lora_expert_rank=0).expert_rank == 0
    with pytest.raises(ConfigError, match="max-lora-expert-rank"):
        EngineConfig(model="m", max_lora_expert_rank=257)


@pytest.mark.parametrize("num_tokens", [1, 9, 150])
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "llama4"])
def test_kernels_give_what_torch_does(
    family: str, num_tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of some rows with adapters and some without."""
    from fairlead_engine.kernels import expert_product_kernel, routes_kernel

    folder = write_random_checkpoint(tmp_path / "model", FAMILIES[family]())
    monkeypatch.setattr(weights, "groups_experts", lambda device: True)
    config, cpu = read_config(folder), torch.device("cpu")
    slots = AdapterSlots(3, 4, torch.float32, cpu, hidden_size=config.hidden_size, expert_rank=5)
    decoder = load_model(folder, config, torch.float32, cpu, slots=slots)
    draw = torch.Generator().manual_seed(num_tokens)
    tensors = [
        (place, *(torch.randn(module.num_experts, 5, size, generator=draw) / 4 for size in sizes))
        for module in (slots.experts.modules[name] for name in slots.experts.parameters)
        for place in module.places
        for sizes in ((place.columns.stop, place.rows.stop - place.rows.start),)
    ]
    slots.put(1, HostAdapter(tensors))
    x = torch.randn(num_tokens, config.hidden_size, generator=draw)
    slots.now = slots.of_rows(None, torch.arange(num_tokens) % 3 - 1)
    layer = next(
        each.feed_forward for each in decoder.layers if isinstance(each.feed_forward, (GroupedExperts, SharedExpert))
    )
    found = []
    for is_kernel in (False, True):
        if is_kernel:
            for place in (layers, expert_adapters):
                monkeypatch.setattr(place, "weighted_product", expert_product_kernel.weighted_product)
            monkeypatch.setattr(layers, "gated_product", expert_product_kernel.gated_product)
            monkeypatch.setattr(layers, "find_routes", routes_kernel.find_routes)
            monkeypatch.setattr(expert_adapters, "row_product", expert_product_kernel.row_product)
        with torch.inference_mode():
            found.append(layer(x))
    slots.now = None
    with torch.inference_mode():
        plain = layer(x)
    assert (found[0] - found[1]).abs().max() < 1e-4 * found[0].abs().max()
    rows = torch.arange(num_tokens) % 3 != 2
    assert torch.allclose(found[0][rows], plain[rows], atol=1e-5)
    assert rows.all() or not torch.allclose(found[0][~rows], plain[~rows], atol=1e-3)


def test_the_first_pattern_that_a_layer_has_decides(model: Path, tmp_path: Path) -> None:
    """As peft takes them, whichever is longer."""
    ranks = {"up_proj": 3, "experts.1.up_proj": 5, "layers.1.mlp.experts.0.up_proj": 2, "0.up_proj": 6}
    adapter = write_random_adapter(tmp_path / "one", model, rank=4, targets=("up_proj",))
    config = json.loads((adapter / "adapter_config.json").read_text())
    for order in (list(ranks), list(reversed(ranks))):
        patterns = {name: ranks[name] for name in order}
        (adapter / "adapter_config.json").write_text(json.dumps({**config, "rank_pattern": patterns}))
        slots = AdapterSlots(1, 8, torch.float32, torch.device("cpu"), hidden_size=64, expert_rank=8)
        load_model(model, read_config(model), torch.float32, torch.device("cpu"), slots=slots)
        read = LoraConfig(PeftFiles(adapter), slots)
        for layer, expert in ((0, 0), (0, 1), (1, 0), (1, 1)):
            name = f"model.layers.{layer}.mlp.experts.{expert}.up_proj"
            assert read.rank_of(name) == next(ranks[each] for each in order if name.endswith(f".{each}"))
