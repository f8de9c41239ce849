"""A low-rank adapter added to the weights of a network of torch modules, for good: as PEFT merges one."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairlead_engine.errors import AdapterError
from fairlead_engine.model.lora.adapted_layers import AdapterTarget
from fairlead_engine.model.lora.adapter_slots import AdapterSlots, Module
from fairlead_engine.model.lora.expert_adapters import ExpertModule
from fairlead_engine.model.lora.peft_folder import read_adapter

_MOST_RANK = 2**16
_WHOLE = slice(None)


class _Merged:
    """A weight that an adapter is added to (`Placed`)."""

    num_bytes = 0

    def __init__(self, weight: Tensor, *, is_transposed: bool) -> None:
        """`weight` [..., out_features, in_features], or transposed."""
        self._weight = weight.mT if is_transposed else weight

    def clear(self, slot: int) -> None:
        """Nothing is kept beside the weight."""

    def put(self, part: int, slot: int, down: Tensor, up: Tensor) -> None:
        """`down` and `up` are [..., rank, features]."""
        added = up.to(self._weight.device).mT @ down.to(self._weight.device)
        self._weight.copy_(self._weight.float().add_(added))


@torch.no_grad()
def merge_adapter(folder: Path, network: Any, hidden_size: int) -> int:
    """Merges the adapter in `folder` into a model of transformers, and returns the number of its weights that changed.
    Raises AdapterError, naming file and field or tensor."""
    slots = AdapterSlots(
        1, 1, torch.float32, torch.device("cpu"), hidden_size=hidden_size, expert_rank=1, are_merged=True
    )
    slots.rank = slots.experts.rank = _MOST_RANK  # which takes no memory here
    head, embedding = network.get_output_embeddings(), network.get_input_embeddings()
    for name, module in network.named_modules():
        is_tied = module is head and getattr(embedding, "weight", None) is getattr(head, "weight", None)
        if _is_linear(module) and not is_tied:
            _add_linear(slots, name, module, is_optional=module is head)
        elif name.endswith(".experts"):
            _add_experts(slots, name, module)
    adapter = read_adapter(folder, slots)
    if adapter.prompt is not None:
        raise AdapterError(f"{folder} is a soft prompt, which has no weights to merge; give a LoRA adapter")
    slots.put(0, adapter)
    return len(adapter.tensors)


def _is_linear(module: Any) -> bool:
    return isinstance(module, nn.Linear) or _is_transposed(module)


def _is_transposed(module: Any) -> bool:
    """Whether it is GPT-2's kind of linear layer, whose weight is [in_features, out_features]."""
    return type(module).__name__ == "Conv1D" and module.weight.dim() == 2


def _add_linear(slots: AdapterSlots, name: str, module: Any, *, is_optional: bool) -> None:
    is_transposed = _is_transposed(module)
    out_features, in_features = module.weight.t().shape if is_transposed else module.weight.shape
    target = AdapterTarget(_Merged(module.weight, is_transposed=is_transposed), 0, _WHOLE, _WHOLE)
    slots.modules[name] = Module(in_features, out_features, [target], is_optional)


def _add_experts(slots: AdapterSlots, name: str, module: Any) -> None:
    is_transposed = getattr(module, "is_transposed", False)
    for own in ("gate_up_proj", "down_proj"):
        weight = getattr(module, own, None)
        if isinstance(weight, nn.Parameter) and weight.dim() == 3:
            num_experts, out_features, in_features = weight.mT.shape if is_transposed else weight.shape
            target = AdapterTarget(_Merged(weight, is_transposed=is_transposed), 0, _WHOLE, _WHOLE)
            slots.experts.modules[f"{name}.{own}"] = ExpertModule(
                num_experts, in_features, out_features, False, [target]
            )
