"""Folders of adapters with random weights, as PEFT writes them: LoRA and soft prompts."""

import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fairlead_engine.model.loading import read_config
from fairlead_engine_testing.checkpoints import tensor_shapes

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj")
"""Linear layers by the last part of their names; no model has all of them."""


def write_random_adapter(
    folder: Path,
    model: Path,
    *,
    seed: int = 0,
    rank: int = 8,
    alpha: float = 16,
    targets: Iterable[str] = ALL,
    ranks: Mapping[str, int] | None = None,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Path:
    """Of the model in a folder; `targets` are last parts of names, `ranks` those that have another rank than the rest,
    and `config` is what else the configuration says. What it adds is about as large as what is there."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    found: set[str] = set()
    for name, shape in tensor_shapes(read_config(model)):
        module, _, kind = name.rpartition(".")
        last = module.rpartition(".")[2]
        if kind != "weight" or last not in targets:
            continue
        found.add(last)
        own = (ranks or {}).get(last, rank)
        down = torch.randn(own, shape[1], generator=generator) / shape[1] ** 0.5
        up = torch.randn(shape[0], own, generator=generator) / own**0.5 / (alpha / own)
        tensors[f"base_model.model.{module}.lora_A.weight"] = down.to(dtype)
        tensors[f"base_model.model.{module}.lora_B.weight"] = up.to(dtype)
    fields = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha, "bias": "none",
        "target_modules": sorted(found), "rank_pattern": dict(ranks or {}), **config,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def expert_parameters(network: Any) -> list[str]:
    """Ends of the names of weights that transformers has for all experts of a layer."""
    each = (name.split(".")[-2:] for name, weight in network.named_parameters() if weight.dim() == 3)
    return sorted({".".join(parts) for parts in each if parts[0] == "experts"})


def adapted_by_peft(
    network: Any, folder: Path, parameters: list[str], *, seed: int = 5, rank: int = 4, **config: Any
) -> Any:
    """The model of transformers with a random adapter of these parameters, which is saved into the folder; `config`
    is what else PEFT is told."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    fields = {"r": rank, "lora_alpha": 2 * rank, "target_modules": [], "task_type": "CAUSAL_LM", **config}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(network, LoraConfig(target_parameters=parameters, init_lora_weights=False, **fields))
        adapted.save_pretrained(str(folder))
    return adapted.eval()


def write_random_soft_prompt(
    folder: Path,
    model: Path,
    *,
    seed: int = 0,
    num_virtual_tokens: int = 5,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Path:
    """Of the model in a folder, about as large as its own embeddings; `config` is what else the configuration says."""
    base = read_config(model)
    with safe_open(model / "model.safetensors", framework="pt") as file:
        name = next(name for name in file.keys() if name.endswith("embed_tokens.weight"))  # noqa: SIM118
        scale = float(file.get_tensor(name).float().std()) * base.embedding_scale
    shape = (num_virtual_tokens, base.hidden_size)
    prompt = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    fields = {
        "peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": num_virtual_tokens,
        "token_dim": base.hidden_size, "num_transformer_submodules": 1, "num_layers": base.num_layers,
        "num_attention_heads": base.num_heads, "base_model_name_or_path": str(model), **config,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    save_file({"prompt_embeddings": prompt.to(dtype)}, folder / "adapter_model.safetensors")
    return folder


def break_config(**changes: Any) -> Callable[[Path], None]:
    """What changes an adapter's configuration."""

    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def break_tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    """What changes an adapter's tensors."""

    def apply(folder: Path) -> None:
        path = folder / "adapter_model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return apply
