"""The folder of an adapter as PEFT writes it: `adapter_config.json` and `adapter_model.safetensors`.

Low-rank adapters are read here, soft prompts in `peft_files.py`. Everything that would make results differ from PEFT's
is refused, by file and field.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairlead_common.models.weight_formats import decoder_name
from fairlead_engine.errors import AdapterError
from fairlead_engine.model.checkpoint import reordered
from fairlead_engine.model.lora.adapter_slots import AdapterSlots, HostAdapter, Module
from fairlead_engine.model.lora.peft_files import FLOATS, SOFT_PROMPTS, PeftFiles, read_soft_prompt
from fairlead_engine.types.adapters import CONFIG_FILE

_PREFIX = "base_model.model."
_TENSOR = re.compile(r"(?P<module>.+)\.lora_(?P<kind>[AB])\.weight")
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_PLAIN = re.compile(r"\^?[\w\\.]+\$?")
"""A pattern that is a name."""
_HARMLESS = frozenset(
    {
        "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision",
        "inference_mode", "r", "target_modules", "exclude_modules", "lora_alpha", "lora_dropout", "use_rslora",
        "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern", "megatron_core", "loftq_config",
        "eva_config", "corda_config", "lora_ga_config", "qalora_group_size", "runtime_config", "ensure_weight_tying",
        "bias", "init_lora_weights",
    }
)  # fmt: skip
"""Used here, or without effect after training."""
_ADVICE = {
    "modules_to_save": "whole modules are not replaced; train without it",
    "use_dora": "DoRA changes the weight's magnitudes; train plain LoRA",
    "lora_bias": "biases are not adapted; train without it",
    "fan_in_fan_out": "weights of this model are not transposed",
    "target_parameters": "experts stored as one parameter are not adapted; name linear layers in target_modules",
    "trainable_token_indices": "embeddings are not adapted; train without it",
    "layer_replication": "layers are not repeated",
    "alora_invocation_tokens": "an adapter is on for the whole sequence; train plain LoRA",
}
_ABSORBED = {
    "kv_b_proj": "which is multiplied into queries and outputs where latents are cached, and cannot be adapted here; "
    "train q_proj, q_a_proj, q_b_proj, kv_a_proj_with_mqa or o_proj",
}
"""Linear layers merged into others, without a separate product for an adapter."""
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that train against a base model other than the served one."""


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
    config = _Config(files, slots)
    with files.weights_open() as file, torch.inference_mode():
        return HostAdapter([*_tensors(file, config, slots)])


class _Config:
    """`adapter_config.json` of a low-rank adapter, checked."""

    def __init__(self, files: PeftFiles, slots: AdapterSlots) -> None:
        self.wrong = files.wrong
        self.weights = files.weights
        self._fields = fields = files.fields
        for name, value in fields.items():
            if name not in _HARMLESS and value not in (None, False, [], {}, ""):
                raise self.wrong(name, f"is {value!r}: " + _ADVICE.get(name, "which this engine does not know"))
        if fields.get("bias", "none") != "none":
            raise self.wrong("bias", f"is {fields['bias']!r}: biases are not adapted; train with none")
        begin = str(fields.get("init_lora_weights", True))
        if begin.lower().startswith(_CHANGES_BASE):
            raise self.wrong("init_lora_weights", f"is {begin!r}, which changes the base model; convert it to LoRA")
        self.rank = self._positive_int("r", fields.get("r"))
        if self.rank > slots.rank:
            raise self.wrong("r", f"is {self.rank}, and adapters here have at most {slots.rank}; see --max-lora-rank")
        self.alpha = self._number("lora_alpha", fields.get("lora_alpha", 8))
        self.is_by_root = self._boolean("use_rslora")
        self._ranks = {key: self._positive_int("rank_pattern", value) for key, value in self._patterns("rank_pattern")}
        self._alphas = {key: self._number("alpha_pattern", value) for key, value in self._patterns("alpha_pattern")}
        self._targets = self._names_of_modules("target_modules", slots)
        self._excluded = self._names("exclude_modules")
        layers = fields.get("layers_to_transform")
        self._layers = None if layers is None else layers if isinstance(layers, list) else [layers]
        if self._layers is not None and not all(type(each) is int for each in self._layers):
            raise self.wrong("layers_to_transform", "must be whole numbers")

    def rank_of(self, module: str) -> int:
        return next((rank for key, rank in self._ranks.items() if _is_named(module, key)), self.rank)

    def scale_of(self, module: str) -> float:
        alpha = next((alpha for key, alpha in self._alphas.items() if _is_named(module, key)), self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.is_by_root else rank)

    def adapts(self, module: str) -> bool | None:
        """Whether the adapter has the module; None = a pattern, and only its tensors tell."""
        if self._layers is not None:
            layer = _LAYER.search(module)
            if layer is None or int(layer[1]) not in self._layers:
                return False
        if self._excluded is None or self._targets is None:
            return None
        if any(_is_named(module, each) for each in self._excluded):
            return False
        return not self._targets or any(_is_named(module, each) for each in self._targets)

    def _positive_int(self, field: str, value: Any) -> int:
        if type(value) is not int or value < 1:
            raise self.wrong(field, f"must be a whole number above 0, not {value!r}")
        return value

    def _number(self, field: str, value: Any) -> float:
        if type(value) not in (int, float) or not abs(value) < 1e9:
            raise self.wrong(field, f"must be a number, not {value!r}")
        return float(value)

    def _boolean(self, field: str) -> bool:
        value = self._fields.get(field, False)
        if not isinstance(value, bool):
            raise self.wrong(field, f"must be true or false, not {value!r}")
        return value

    def _patterns(self, field: str) -> Iterator[tuple[str, Any]]:
        """Names of modules. A pattern could take for ever to match."""
        found = self._fields.get(field) or {}
        if not isinstance(found, dict):
            raise self.wrong(field, f"must map names of modules to numbers, not {found!r}")
        for key, value in found.items():
            if not _PLAIN.fullmatch(key):
                raise self.wrong(field, f"has the pattern {key!r}; only names of modules are understood")
            yield key.removeprefix("^").removesuffix("$").replace("\\", ""), value

    def _names(self, field: str) -> list[str] | None:
        """Empty without names; None = a pattern."""
        found = self._fields.get(field)
        if isinstance(found, str):
            return None
        if not isinstance(found, list | None) or not all(isinstance(each, str) for each in found or ()):
            raise self.wrong(field, f"must be names of modules, not {found!r}")
        return found or []

    def _names_of_modules(self, field: str, slots: AdapterSlots) -> list[str] | None:
        """Empty = all modules."""
        if self._fields.get(field) == "all-linear":
            return []
        names = self._names(field)
        if names is not None and not names:
            raise self.wrong(field, "names nothing")
        for name in names or ():
            if name in _ABSORBED:
                raise self.wrong(field, f"names {name!r}, {_ABSORBED[name]}")
            if not any(_is_named(module, name) for module in slots.modules):
                there = ", ".join(sorted({module.rpartition(".")[2] for module in slots.modules}))
                raise self.wrong(field, f"names {name!r}, which is no layer that can be adapted; there are {there}")
        return names


def _is_named(module: str, name: str) -> bool:
    return module == name or module.endswith(f".{name}")


def _tensors(file: Any, config: _Config, slots: AdapterSlots) -> Iterator[tuple[Any, Tensor, Tensor]]:
    found: dict[str, set[str]] = {}
    stored: dict[str, str] = {}
    for key in file.keys():  # noqa: SIM118 - no mapping
        match = _TENSOR.fullmatch(key.removeprefix(_PREFIX)) if key.startswith(_PREFIX) else None
        module = "" if match is None else decoder_name(match["module"])
        if match is None or module not in slots.modules or config.adapts(match["module"]) is False:
            raise AdapterError(f"{config.weights}: tensor {key} {_why_not(key, match is not None, slots)}")
        found.setdefault(module, set()).add(match["kind"])
        stored[module] = match["module"]
    for module in slots.modules:
        kinds = found.get(module, set())
        lacks = sorted({"A", "B"} - kinds) if kinds or config.adapts(module) else []
        if lacks:
            name = f"{_PREFIX}{module}.lora_{lacks[0]}.weight"
            raise AdapterError(f"{config.weights} has no tensor {name}, and target_modules names its module")
    for module in found:
        yield from _placed(file, stored[module], slots.modules[module], config, slots, slots.orders.get(module))


def _why_not(key: str, is_lora: bool, slots: AdapterSlots) -> str:
    for name, reason in _ABSORBED.items():
        if f".{name}." in key:
            return f"adapts {name}, {reason}"
    if ".experts." in key:
        return "adapts experts, which cannot be adapted here; train attention or other layers only"
    if is_lora:
        module = decoder_name(key.removeprefix(_PREFIX).rpartition(".lora_")[0])
        if module in slots.modules:
            return "belongs to a module that target_modules, exclude_modules or layers_to_transform leave out"
        return "belongs to no layer of this model that can be adapted; check that it was trained on this model"
    return "is no low-rank part of a linear layer; only lora_A and lora_B are understood"


def _placed(
    file: Any, name: str, module: Module, config: _Config, slots: AdapterSlots, order: Tensor | None
) -> Iterator[tuple[Any, Tensor, Tensor]]:
    rank = config.rank_of(name)
    down = _tensor(file, f"{_PREFIX}{name}.lora_A.weight", (rank, module.in_features), config)
    up = _tensor(file, f"{_PREFIX}{name}.lora_B.weight", (module.out_features, rank), config)
    up = (up * config.scale_of(name) if order is None else reordered(up * config.scale_of(name), order)).T
    for whole in (down, up):  # not a rank's part of it alone: all ranks have to judge alike
        if not bool(whole.to(slots.dtype).isfinite().all()):
            raise AdapterError(f"{config.weights}: tensors of {name} hold what is no finite number in {slots.dtype}")
    if rank > slots.rank:
        raise config.wrong("rank_pattern", f"has {rank}, and adapters here have at most {slots.rank}")
    for place in module.places:
        yield place, _held(down[:, place.columns], slots), _held(up[:, place.rows], slots)


def _tensor(file: Any, key: str, shape: tuple[int, int], config: _Config) -> Tensor:
    """float32."""
    tensor: Tensor = file.get_tensor(key)
    if tuple(tensor.shape) != shape:
        problem = f"should have shape {list(shape)} by {CONFIG_FILE} and the model, but has {list(tensor.shape)}"
        raise AdapterError(f"{config.weights}: tensor {key} {problem}")
    if tensor.dtype not in FLOATS:
        raise AdapterError(
            f"{config.weights}: tensor {key} holds {str(tensor.dtype).removeprefix('torch.')}, no floats"
        )
    return tensor.float()


def _held(part: Tensor, slots: AdapterSlots) -> Tensor:
    tensor = part.to(slots.dtype).contiguous()
    return tensor.pin_memory() if slots.device.type == "cuda" else tensor
