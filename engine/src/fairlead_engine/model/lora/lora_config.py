"""`adapter_config.json` of a low-rank adapter: layers, ranks and scales. Everything that would make results differ from
PEFT's is refused, by field."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from fairlead_engine.model.lora.adapter_slots import NEW_BLOCK, OLD_BLOCK, AdapterSlots
from fairlead_engine.model.lora.peft_files import PeftFiles

Number = TypeVar("Number", int, float)
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_PLAIN = re.compile(r"\^?[\w\\.]+\$?")
"""A pattern that is a name."""
_ANY = ".*\\."
"""Before a name, in patterns that PEFT writes itself."""
_HARMLESS = frozenset(
    {
        "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision",
        "inference_mode", "r", "target_modules", "exclude_modules", "lora_alpha", "lora_dropout", "use_rslora",
        "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern", "megatron_core", "loftq_config",
        "eva_config", "corda_config", "lora_ga_config", "qalora_group_size", "runtime_config", "ensure_weight_tying",
        "bias", "init_lora_weights", "target_parameters",
    }
)  # fmt: skip
"""Used here, or without effect after training."""
_ADVICE = {
    "modules_to_save": "whole modules are not replaced; train without it",
    "use_dora": "DoRA changes the weight's magnitudes; train plain LoRA",
    "lora_bias": "biases are not adapted; train without it",
    "fan_in_fan_out": "weights of this model are not transposed",
    "trainable_token_indices": "embeddings are not adapted; train without it",
    "layer_replication": "layers are not repeated",
    "alora_invocation_tokens": "an adapter is on for the whole sequence; train plain LoRA",
}
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that train against a base model other than the served one."""


class LoraConfig:
    """`adapter_config.json` of a low-rank adapter, checked."""

    def __init__(self, files: PeftFiles, slots: AdapterSlots) -> None:
        self.wrong = files.wrong
        self.weights = files.weights
        self._fields = fields = files.fields
        for name, value in fields.items():
            is_known = name in _HARMLESS or (slots.are_merged and name == "fan_in_fan_out")
            if not is_known and value not in (None, False, [], {}, ""):
                raise self.wrong(name, f"is {value!r}: " + _ADVICE.get(name, "which this engine does not know"))
        if fields.get("bias", "none") != "none":
            raise self.wrong("bias", f"is {fields['bias']!r}: biases are not adapted; train with none")
        begin = str(fields.get("init_lora_weights", True))
        if begin.lower().startswith(_CHANGES_BASE):
            raise self.wrong("init_lora_weights", f"is {begin!r}, which changes the base model; convert it to LoRA")
        self.rank = self._positive_int("r", fields.get("r"))
        if self.rank > max(slots.rank, slots.experts.rank):
            raise self.wrong("r", f"is {self.rank}, and adapters here have at most {slots.rank}; see --max-lora-rank")
        self.alpha = self._number("lora_alpha", fields.get("lora_alpha", 8))
        self.is_by_root = self._boolean("use_rslora")
        self._ranks = {
            key: (at, self._positive_int("rank_pattern", value))
            for at, (key, value) in enumerate(self._patterns("rank_pattern"))
        }
        self._alphas = {
            key: (at, self._number("alpha_pattern", value))
            for at, (key, value) in enumerate(self._patterns("alpha_pattern"))
        }
        self._parameters = self._names_of_parameters("target_parameters", slots)
        self._targets = self._names_of_modules("target_modules", slots)
        self._excluded = self._names("exclude_modules")
        layers = fields.get("layers_to_transform")
        given = None if layers is None else layers if isinstance(layers, list) else [layers]
        if given is not None and not all(type(each) is int for each in given):
            raise self.wrong("layers_to_transform", "must be whole numbers")
        self._layers = None if given is None else frozenset(given)

    def check_rank(self, rank: int, most: int, flag: str, what: str = "adapters") -> None:
        """Raises AdapterError for a rank above a limit."""
        if rank > most:
            field = "r" if rank == self.rank else "rank_pattern"
            problem = f"has {rank}" if field == "rank_pattern" else f"is {rank}"
            raise self.wrong(field, f"{problem}, and {what} here have at most {most}; see {flag}")

    def has_parameter(self, name: str) -> bool:
        """Whether `target_parameters` names this one."""
        return _is_among(name, self._parameters)

    def rank_of(self, module: str) -> int:
        return _first_of(module, self._ranks, self.rank)

    def scale_of(self, module: str) -> float:
        alpha, rank = _first_of(module, self._alphas, self.alpha), self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.is_by_root else rank)

    def adapts(self, module: str) -> bool | None:
        """Whether the adapter has the module; None = a pattern, and only its tensors tell."""
        if self._layers is not None:
            layer = _LAYER.search(module)
            if layer is None or int(layer[1]) not in self._layers:
                return False
        if self._excluded is None or self._targets is None:
            return None
        if _is_among(module, self._excluded):
            return False
        return not self._targets or _is_among(module, self._targets)

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
            if not _PLAIN.fullmatch(key.removeprefix(_ANY)):
                raise self.wrong(field, f"has the pattern {key!r}; only names of modules are understood")
            yield key.removeprefix("^").removeprefix(_ANY).removesuffix("$").replace("\\", ""), value

    def _names(self, field: str) -> frozenset[str] | None:
        """Empty without names; None = a pattern."""
        found = self._fields.get(field)
        if isinstance(found, str):
            return None
        if not isinstance(found, list | None) or not all(isinstance(each, str) for each in found or ()):
            raise self.wrong(field, f"must be names of modules, not {found!r}")
        return frozenset(found or ())

    def _names_of_modules(self, field: str, slots: AdapterSlots) -> frozenset[str] | None:
        """Empty = all modules."""
        if self._fields.get(field) == "all-linear":
            return frozenset()
        names = self._names(field)
        if names is not None and not names:
            if self._parameters:
                return frozenset({""})  # which no module is called
            raise self.wrong(field, "names nothing")
        known = [*slots.modules, *slots.experts.of_experts]
        if unknown := sorted((names or frozenset()) - {end for module in known for end in _endings(module)}):
            there = ", ".join(sorted({module.rpartition(".")[2] for module in known}))
            raise self.wrong(field, f"names {unknown[0]!r}, which is no layer that can be adapted; there are {there}")
        return names

    def _names_of_parameters(self, field: str, slots: AdapterSlots) -> frozenset[str]:
        names = self._fields.get(field) or []
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            raise self.wrong(field, f"must be names of parameters, not {names!r}")
        known = {*slots.experts.modules, *(f"{module}.weight" for module in slots.modules)}
        known |= {name.replace(OLD_BLOCK, NEW_BLOCK) for name in known}
        if unknown := sorted(set(names) - {end for each in known for end in _endings(each)}):
            there = ", ".join(sorted({".".join(each.split(".")[-3:]) for each in slots.experts.parameters}))
            told = f"there are {there}" if there else "experts cannot be adapted here, see --max-lora-expert-rank"
            raise self.wrong(field, f"names {unknown[0]!r}, which is no parameter that can be adapted; {told}")
        return frozenset(names)


def _endings(module: str) -> Iterator[str]:
    """The name, and what is behind each of its dots: a configuration may mean the module by any of these. Looked up,
    not compared one by one: files may name tens of thousands, and a model with experts has as many."""
    yield module
    while "." in module:
        module = module.partition(".")[2]
        yield module


def _is_among(module: str, names: frozenset[str]) -> bool:
    return any(end in names for end in _endings(module))


def _first_of(module: str, patterns: Mapping[str, tuple[int, Number]], otherwise: Number) -> Number:
    """The number of the first pattern, by place, that the module has; `otherwise`, if none."""
    return min((patterns[end] for end in _endings(module) if end in patterns), default=(0, otherwise))[1]
