"""`fairlead-engine quantize`: a checkpoint of floats becomes a checkpoint with quantised weights, on disk.

Layers are rounded one after the other and written at once; everything but linear layers' weights is copied.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairlead_common.models.model_config import ModelConfig
from fairlead_engine.errors import ConfigError
from fairlead_engine.model.checkpoint import INDEX_FILE, Checkpoint
from fairlead_engine.model.linear import Linear, make_linear
from fairlead_engine.model.loading import load_model, read_config
from fairlead_engine.model.quantization import written
from fairlead_engine.model.safetensors_writer import SafetensorsWriter
from fairlead_engine.runner.calibration import LayerwiseReading, WatchedLinear
from fairlead_engine.runner.placement import TORCH_DTYPES, choose_device, choose_dtype

METHODS = ("rtn", "awq", "gptq")
_MAKES_INPUTS = {"o_proj": "v_proj", "down_proj": "up_proj", "w2": "w3"}
"""Layer → the layer whose outputs, times attention's weights or an activated gate, are its inputs."""
_READ_NO_NORM = (".o_proj", ".down_proj", ".q_b_proj")
_MULTIPLIED = (".q_proj", ".k_proj")
"""Layers whose outputs are multiplied with each other: their largest elements count and are not cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeOrders:
    """What to make of a checkpoint."""

    format_name: str
    method: str
    group_size: int | None = None
    """None = as the format has it."""
    device: str = "auto"

    def grid(self) -> written.RoundingGrid:
        """Raises ConfigError where format and group size do not go together."""
        grid = written.GRIDS[self.format_name]
        if self.group_size is None:
            return grid
        if grid.rounds_activations:
            raise ConfigError("group_size", f"{self.format_name} has a scale for each output", "leave it out")
        return replace(grid, group_size=self.group_size)


Tell = Callable[[str], None]
"""Gets a line of progress at a time."""


def quantize(folder: Path, target: Path, orders: QuantizeOrders, texts: Tensor | None, tell: Tell) -> None:
    """`texts` int64 [texts, tokens]: input of the model, for methods that look at activations. Writes beside `target`,
    which appears at the end. Raises StartError for an unreadable or quantised model, groups that do not divide a
    layer's inputs, or a folder that cannot be written."""
    grid, config = orders.grid(), read_config(folder)
    if config.quantization is not None:
        raise ConfigError("model", f"{folder} is quantised already", "name the checkpoint that it was made of")
    if config.are_pairs_adjacent:
        problem = f"{folder} is of a family whose quantised checkpoints are not read"
        raise ConfigError("model", problem, "serve it with --quantization, which rounds while weights are loaded")
    if config.is_text_part:
        problem = f"{folder} reads more than text, and its decoder alone is not written apart"
        raise ConfigError("model", problem, "serve it with --quantization, which rounds while weights are loaded")
    if target.exists() and any(target.iterdir()):
        raise ConfigError("out", f"{target} is there and not empty", "name a folder that is to be made")
    watched: list[WatchedLinear] = []
    ignored = {"lm_head"}

    def watch(names: Sequence[str], linear: Linear, is_sensitive: bool) -> Linear:
        if is_sensitive:
            ignored.update(names)
            return linear
        watched.append(WatchedLinear(names, linear))
        return watched[-1]

    device = choose_device(orders.device)
    place = torch.device("meta") if texts is None else device  # rounding alone needs to know no more than names
    dtype = choose_dtype("auto", config.dtype, device)
    model = load_model(folder, config, dtype, place, watch=watch)
    partial = target.with_name(target.name + ".partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        with torch.inference_mode(), Checkpoint(folder, torch.float32, device) as checkpoint:
            _check_apart(folder, watched, checkpoint)
            reading = None if texts is None else LayerwiseReading(model, texts)
            made = _Rounding(checkpoint, grid, orders.method, config, dtype)
            files = SafetensorsWriter(partial)
            for index in range(config.num_layers):
                here = [each for each in watched if f"{each.names[0]}.".startswith(f"model.layers.{index}.")]
                if reading is not None:
                    reading.watch(index, here)
                errors = made.layer(here, files)
                if reading is not None and index + 1 < config.num_layers:
                    reading.go_on(index)
                told = f": errors of outputs {max(errors):.2%} at most" if errors else ""
                tell(f"layer {index + 1} of {config.num_layers}{told}")
            quantized = {name for each in watched for name in each.names}
            for name in sorted(checkpoint.names() - files.names - {f"{name}.weight" for name in quantized}):
                files.add(name, checkpoint.raw(name))
            files.finish()
        _copy_others(folder, partial, grid.config(sorted(ignored)))
        if target.exists():
            target.rmdir()
        partial.rename(target)
    except OSError as error:
        raise ConfigError("out", f"{error.filename or target} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_apart(folder: Path, watched: Sequence[WatchedLinear], checkpoint: Checkpoint) -> None:
    """Raises ConfigError for a layer whose weight shares a tensor with others."""
    stored = checkpoint.names()
    stacked = next((name for each in watched for name in each.names if f"{name}.weight" not in stored), None)
    if stacked is not None:
        problem = f"{folder} stores {stacked} in one tensor with others of its kind, which are not rounded apart"
        raise ConfigError("model", problem, "serve it with --quantization, which rounds while weights are loaded")


class _Rounding:
    """Rounds the linear layers of a model, a decoder layer at a time."""

    def __init__(
        self, checkpoint: Checkpoint, grid: written.RoundingGrid, method: str, config: ModelConfig, dtype: torch.dtype
    ) -> None:
        """`dtype`: what the model computes in."""
        self._checkpoint = checkpoint
        self._grid = grid
        self._method = method
        self._config = config
        self._dtype = TORCH_DTYPES[config.dtype]
        self._compute_dtype = dtype

    def layer(self, here: Sequence[WatchedLinear], files: SafetensorsWriter) -> list[float]:
        """Writes the layers' weights; returns their outputs' errors, if the inputs are known."""
        weights = {name: self._weight(name) for each in here for name in each.names}
        if self._method == "awq":
            for each in here:
                self._divide_projection(each, weights, files)
            for each in here:
                self._divide_norm(each, weights, files)
        errors = []
        for each in here:
            left = []
            for name in each.names:
                weight = weights[name]
                scales = self._grid.scales(weight, self._dtype)
                seen, num_seen = (None, 0) if each.seen is None else (each.seen.moments, each.seen.num_rows)
                if self._method == "awq" and seen is not None and not name.endswith(_MULTIPLIED):
                    scales = written.clipped_scales(weight, scales, self._grid, seen).to(self._dtype).float()
                if self._method == "gptq" and seen is not None:
                    rounded = written.compensate(weight, scales, self._grid, seen, num_seen)
                    left.append(rounded.dequantized())
                else:
                    rounded = self._grid.nearest(weight, scales)
                if seen is not None:
                    errors.append(written.relative_error(weight, rounded.dequantized(), seen))
                for key, tensor in self._grid.stored(name, rounded, self._dtype).items():
                    files.add(key, tensor)
            if left:  # the layers after it are to make good what it errs
                bias = self._bias(each.names)
                dtype = self._compute_dtype
                each.linear = make_linear(torch.cat(left).to(dtype), None if bias is None else bias.to(dtype))
            each.seen = None
        return errors

    def _weight(self, name: str) -> Tensor:
        """Raises ConfigError where groups do not divide the layer's inputs."""
        weight = self._checkpoint.raw(f"{name}.weight")
        if self._grid.group_size and weight.shape[1] % self._grid.group_size:
            problem = f"{self._grid.group_size} does not divide the {weight.shape[1]} inputs of {name}"
            raise ConfigError("group_size", problem, "choose one that divides those of all layers")
        return weight.float()

    def _bias(self, names: Sequence[str]) -> Tensor | None:
        kept = [f"{name}.bias" for name in names if self._checkpoint.has(f"{name}.bias")]
        return torch.cat([self._checkpoint.raw(key) for key in kept]) if kept else None

    def _divide_projection(self, each: WatchedLinear, weights: dict[str, Tensor], files: SafetensorsWriter) -> None:
        """AWQ's scales for a layer whose inputs are another's outputs times something: divides these outputs."""
        name = each.names[0]
        prefix, _, kind = name.rpartition(".")
        if kind == "o_proj" and self._config.are_values_normalised:  # which would undo the division
            return
        source = f"{prefix}.{_MAKES_INPUTS.get(kind)}"
        if each.seen is None or source not in weights:
            return
        if kind == "down_proj" and f"{prefix}.gate_proj" not in weights:
            return  # without a gate outputs are squared, not multiplied
        magnitudes, num_outputs = each.seen.magnitudes, len(weights[source])
        shape = (num_outputs, 1, 1)
        if len(magnitudes) > num_outputs:  # several heads of queries read the values of one
            head_dim = self._config.head_dim
            shape = (num_outputs // head_dim, len(magnitudes) // num_outputs, head_dim)
        shared = magnitudes.view(shape).mean(1, keepdim=True).expand(shape).reshape(-1)
        scales = written.best_input_scales([weights[name]], each.seen.moments, shared, self._grid, self._dtype)
        outputs = scales.view(shape)[:, 0].reshape(-1)
        weights[name] = weights[name] * scales
        each.seen.divide(scales)
        weights[source] = weights[source] / outputs.unsqueeze(1)
        if self._checkpoint.has(f"{source}.bias"):
            bias = self._checkpoint.raw(f"{source}.bias")
            files.add(f"{source}.bias", (bias.float() / outputs).to(bias.dtype))

    def _divide_norm(self, each: WatchedLinear, weights: dict[str, Tensor], files: SafetensorsWriter) -> None:
        """AWQ's scales for the only readers of a normalisation: divides its weight by them."""
        layer, _, part = each.names[0].rpartition(".")[0].rpartition(".")
        has = self._checkpoint.has
        norm = {"self_attn": "input_layernorm", "mlp": "post_attention_layernorm"}.get(part)
        if norm is None or each.names[0].endswith(_READ_NO_NORM) or not has(f"{layer}.input_layernorm.weight"):
            return
        if part == "self_attn" and has(f"{layer}.{part}.indexer.wk.weight"):
            return  # which reads the norm, too, and is not rounded
        if part == "self_attn" and has(f"{layer}.mamba.in_proj.weight"):
            return  # which reads the same normalisation
        if part == "mlp" and has(f"{layer}.pre_feedforward_layernorm.weight"):
            norm = "pre_feedforward_layernorm"
        if each.seen is None or has(f"{layer}.{norm}.bias"):  # which would have to be divided, too
            return
        key = f"{layer}.{norm}.weight"
        own = self._checkpoint.raw(key)
        found = written.best_input_scales(
            [weights[name] for name in each.names], each.seen.moments, each.seen.magnitudes, self._grid, self._dtype
        )
        offset = self._config.norm_offset
        meant = own.float() + offset
        divided = (meant / found - offset).to(own.dtype)
        kept = divided.float() + offset  # as it is stored: what that rounds off, the weights make good
        scales = torch.where((kept == 0) | (meant == 0), torch.ones_like(found), meant / kept)
        for name in each.names:
            weights[name] = weights[name] * scales
        each.seen.divide(scales)
        files.add(key, torch.where(kept == 0, own.float(), divided.float()).to(own.dtype))


def _copy_others(folder: Path, target: Path, quantization: dict[str, Any]) -> None:
    """All files but the weights, and `config.json` with the quantisation."""
    for file in folder.iterdir():
        if file.is_file() and file.suffix not in (".safetensors", ".bin", ".gguf") and file.name != INDEX_FILE:
            shutil.copy(file, target)
    path = target / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "quantization_config": quantization}, indent=2), encoding="utf-8")
