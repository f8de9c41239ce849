"""The folder of an adapter as PEFT writes it: `adapter_config.json` and `adapter_model.safetensors`.

Low-rank adapters are read here, soft prompts in `peft_files.py`. Experts come in two forms: a linear layer each, or one
parameter for all (`target_parameters`), whose ranks lie beside each other.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairlead_common.models.weight_formats import decoder_name
from fairlead_engine.errors import AdapterError
from fairlead_engine.model.checkpoint import reordered
from fairlead_engine.model.lora.adapted_layers import AdapterTarget
from fairlead_engine.model.lora.adapter_slots import NEW_BLOCK, OLD_BLOCK, AdapterSlots, HostAdapter, Module
from fairlead_engine.model.lora.expert_adapters import ExpertModule
from fairlead_engine.model.lora.lora_config import LoraConfig
from fairlead_engine.model.lora.peft_files import FLOATS, SOFT_PROMPTS, PeftFiles, read_soft_prompt
from fairlead_engine.types.adapters import CONFIG_FILE

_PREFIX = "base_model.model."
_TENSOR = re.compile(r"(?P<module>.+)\.lora_(?P<kind>[AB])\.weight")
_WITHIN = ".base_layer"
"""Behind the name of a module with several adapted parameters: once for each that is adapted after it."""
_PARAMETERS = ("gate_up_proj", "down_proj")
"""Of experts, in the order in which PEFT adapts them."""
_ELSEWHERE = {
    "PREFIX_TUNING": "keys and values of every layer are not taken from a folder; train prompt tuning",
    "MULTITASK_PROMPT_TUNING": "a prompt for each task is not told apart; train prompt tuning",
    "CPT": "context that stands among the prompt is not kept apart; train prompt tuning",
}
"""Kinds that one might expect to be served."""


def read_adapter(folder: Path, slots: AdapterSlots) -> HostAdapter:
    """The rank's part of the adapter in `folder`. Raises AdapterError, naming file and field or tensor."""
    files = PeftFiles(folder)
    kind = files.fields.get("peft_type")
    if kind in SOFT_PROMPTS:
        return read_soft_prompt(files, slots)
    if kind != "LORA":
        served = ", ".join(("LORA", *SOFT_PROMPTS))
        hint = _ELSEWHERE.get(kind) if isinstance(kind, str) else None
        raise files.wrong("peft_type", f"is {kind!r}; only {served} are served" + (f": {hint}" if hint else ""))
    config = LoraConfig(files, slots)
    most = len(slots.modules) + len(slots.experts.of_experts)
    with files.weights_open(2 * most) as file, torch.inference_mode():
        return HostAdapter([*_AdapterTensors(file, config, slots).all()])


class _Stored(NamedTuple):
    """An adapted layer in the file."""

    name: str
    """As the file names the module."""
    parameter: str
    """What patterns of ranks are matched with: the module, or a parameter of it."""


class _AdapterTensors:
    """The tensors of a file, in their places."""

    def __init__(self, file: Any, config: LoraConfig, slots: AdapterSlots) -> None:
        self._file = file
        self._config = config
        self._slots = slots
        self._found: dict[str, _Stored] = {}
        """By the model's name of the layer, parameter or expert's layer."""
        self._taken: set[tuple[int, int]] = set()
        """Destinations that have an adapter."""

    def all(self) -> Iterator[tuple[AdapterTarget, Tensor, Tensor]]:
        """Raises AdapterError, naming a tensor that is missing, left over or wrong."""
        self._find()
        self._check_all_there()
        slots, of_experts = self._slots, dict[str, dict[int, _Stored]]()
        for name, stored in self._found.items():
            if name in slots.modules:
                yield from self._of_linear(stored, slots.modules[name], slots.orders.get(name))
            elif (one := slots.experts.of_experts.get(name)) is not None:
                of_experts.setdefault(one.module, {})[one.place] = stored
            else:
                yield from self._of_parameter(stored, slots.experts.modules[name])
        for name, each in of_experts.items():
            yield from self._of_experts(each, slots.experts.modules[name])

    def _find(self) -> None:
        kinds: dict[str, set[str]] = {}
        for key in self._file.keys():  # noqa: SIM118 - no mapping
            match = _TENSOR.fullmatch(key.removeprefix(_PREFIX)) if key.startswith(_PREFIX) else None
            name, stored = (None, None) if match is None else self._layer(match["module"])
            if match is None or name is None or stored is None:
                raise self._wrong(key, self._why_not(key, match is not None))
            kinds.setdefault(name, set()).add(match["kind"])
            self._found[name] = stored
        for name, has in kinds.items():
            if lacks := sorted({"A", "B"} - has):
                raise self._lacks(self._found[name].name, lacks[0])

    def _layer(self, module: str) -> tuple[str | None, _Stored | None]:
        """The model's name of what a module in the file is; None = the adapter has no such, by its configuration."""
        slots, config = self._slots, self._config
        name = slots.own_name(decoder_name(module))
        if name in slots.modules or name in slots.experts.of_experts:
            if config.has_parameter(f"{module}.weight"):
                return name, _Stored(module, f"{module}.weight")
            return (None if config.adapts(module) is False else name), _Stored(module, module)
        base = module
        while base.endswith(_WITHIN):
            base = base.removesuffix(_WITHIN)
        depth, own = (len(module) - len(base)) // len(_WITHIN), slots.own_name(decoder_name(base))
        adapted = [
            each for each in _PARAMETERS
            if f"{own}.{each}" in slots.experts.modules and config.has_parameter(f"{base}.{each}")
        ]  # fmt: skip
        if depth >= len(adapted):
            return None, None
        parameter = adapted[-1 - depth]
        return f"{own}.{parameter}", _Stored(module, f"{base}.{parameter}")

    def _check_all_there(self) -> None:
        """What is no linear layer in newer versions of a model is there as a whole, or not at all."""
        experts, config = self._slots.experts, self._config
        for name, module in self._slots.modules.items():
            if name not in self._found and not module.is_optional and config.adapts(name):
                raise self._lacks(name, "A")
        for name in experts.parameters:
            is_named = config.has_parameter(name) or config.has_parameter(name.replace(OLD_BLOCK, NEW_BLOCK))
            if name not in self._found and is_named:
                raise self._lacks(name.rpartition(".")[0], "A")
        optional = [name for name, module in self._slots.modules.items() if module.is_optional]
        lacking: dict[str, str] = {}
        has: set[str] = set()
        for name in (*optional, *experts.of_experts):
            last = name.rpartition(".")[2]
            if name in self._found:
                has.add(last)
            elif config.adapts(name):
                lacking.setdefault(last, name)
        if here := sorted(has & lacking.keys()):
            raise self._lacks(lacking[here[0]], "A")

    def _wrong(self, key: str, problem: str) -> AdapterError:
        return AdapterError(f"{self._config.weights}: tensor {key} {problem}")

    def _lacks(self, module: str, kind: str) -> AdapterError:
        name = f"{_PREFIX}{module}.lora_{kind}.weight"
        return AdapterError(f"{self._config.weights} has no tensor {name}, and adapter_config.json names its module")

    def _why_not(self, key: str, is_lora: bool) -> str:
        slots = self._slots
        module = slots.own_name(decoder_name(key.removeprefix(_PREFIX).rpartition(".lora_")[0]))
        if ".experts" in key and not slots.experts.modules:
            return "adapts experts, and none can be adapted here: the model has none, or --max-lora-expert-rank is 0"
        if is_lora and (module in slots.modules or module in slots.experts.of_experts):
            return "belongs to a module that target_modules, exclude_modules or layers_to_transform leave out"
        if is_lora and ".experts" in key:
            return "belongs to experts that neither target_modules nor target_parameters name"
        if is_lora:
            return "belongs to no layer of this model that can be adapted; check that it was trained on this model"
        return "is no low-rank part of a linear layer; only lora_A and lora_B are understood"

    def _of_linear(
        self, stored: _Stored, module: Module, order: Tensor | None
    ) -> Iterator[tuple[AdapterTarget, Tensor, Tensor]]:
        config, rank = self._config, self._config.rank_of(stored.parameter)
        down = self._tensor(stored, "A", (rank, module.in_features))
        up = self._tensor(stored, "B", (module.out_features, rank)) * config.scale_of(stored.parameter)
        config.check_rank(rank, self._slots.rank, "--max-lora-rank")
        yield from self._placed(stored, module.places, down, (up if order is None else reordered(up, order)).T)

    def _of_parameter(self, stored: _Stored, module: ExpertModule) -> Iterator[tuple[AdapterTarget, Tensor, Tensor]]:
        """Ranks of an expert are neighbours in A, and those of all experts are in B. Older versions of PEFT take other
        sides for inputs than newer ones: shapes tell."""
        config, rank = self._config, self._config.rank_of(stored.parameter)
        config.check_rank(rank, self._slots.experts.rank, "--max-lora-expert-rank", "adapters of experts")
        all_ranks = module.num_experts * rank
        sides = module.in_features, module.out_features
        held = self._file.get_slice(f"{_PREFIX}{stored.name}.lora_A.weight").get_shape()
        is_swapped = module.are_sides_swapped
        if list(held) == [all_ranks, sides[not is_swapped]] and sides[0] != sides[1]:
            is_swapped = not is_swapped
        if is_swapped:
            sides = sides[::-1]
        first = self._tensor(stored, "A", (all_ranks, sides[0])).view(module.num_experts, rank, -1)
        second = self._tensor(stored, "B", (sides[1], all_ranks)).view(-1, rank, module.num_experts).permute(2, 1, 0)
        down, up = (second, first) if is_swapped else (first, second)
        yield from self._placed(stored, module.places, down, up * config.scale_of(stored.parameter))

    def _of_experts(
        self, each: Mapping[int, _Stored], module: ExpertModule
    ) -> Iterator[tuple[AdapterTarget, Tensor, Tensor]]:
        config = self._config
        ranks = {index: config.rank_of(stored.parameter) for index, stored in each.items()}
        for rank in ranks.values():
            config.check_rank(rank, self._slots.experts.rank, "--max-lora-expert-rank", "adapters of experts")
        most = max(ranks.values())
        down = torch.zeros(module.num_experts, most, module.in_features)
        up = torch.zeros(module.num_experts, most, module.out_features)
        for index, stored in each.items():
            rank = ranks[index]
            down[index, :rank] = self._tensor(stored, "A", (rank, module.in_features))
            up[index, :rank] = self._tensor(stored, "B", (module.out_features, rank)).T
            up[index, :rank] *= config.scale_of(stored.parameter)
        yield from self._placed(next(iter(each.values())), module.places, down, up)

    def _placed(
        self, stored: _Stored, places: list[AdapterTarget], down: Tensor, up: Tensor
    ) -> Iterator[tuple[AdapterTarget, Tensor, Tensor]]:
        """`down` and `up` [..., rank, features]."""
        slots, weights = self._slots, self._config.weights
        for whole in (down, up):  # not a rank's part of it alone: all ranks have to judge alike
            if not bool(whole.to(slots.dtype).isfinite().all()):
                problem = f"hold what is no finite number in {slots.dtype}"
                raise AdapterError(f"{weights}: tensors of {stored.name} {problem}")
        for place in places:
            if (key := (id(place.linear), place.projection)) in self._taken:
                raise AdapterError(f"{weights}: tensors of {stored.name} adapt what others adapt, too")
            self._taken.add(key)
            yield place, _held(down[..., place.columns], slots), _held(up[..., place.rows], slots)

    def _tensor(self, stored: _Stored, kind: str, shape: tuple[int, int]) -> Tensor:
        """float32."""
        key = f"{_PREFIX}{stored.name}.lora_{kind}.weight"
        held = self._file.get_slice(key).get_shape()
        if list(held) != list(shape):
            problem = f"should have shape {list(shape)} by {CONFIG_FILE} and the model, but has {list(held)}"
            raise self._wrong(key, problem)
        tensor: Tensor = self._file.get_tensor(key)
        if tensor.dtype not in FLOATS:
            raise self._wrong(key, f"holds {str(tensor.dtype).removeprefix('torch.')}, no floats")
        return tensor.float()


def _held(part: Tensor, slots: AdapterSlots) -> Tensor:
    tensor = part.to(slots.dtype).contiguous()
    return tensor.pin_memory() if slots.device.type == "cuda" else tensor
