"""A decoder computed by transformers, with our decoder's interface: a step's tokens in one row, attention over our
cache.

transformers reads the checkpoint's weights itself, with names of newer and older files; quantised ones are given to it
as floats. An adapter is merged into them.
"""

import importlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from fairlead_common.models.model_config import DecoderShape
from fairlead_engine.errors import AdapterError, ConfigError, ModelLoadError, ModelLoadReason
from fairlead_engine.kernels.attention.backend import LayerCache
from fairlead_engine.kernels.norm_rope_store import HeadTurn
from fairlead_engine.model.decoder import BetweenAttentions
from fairlead_engine.model.fallback.attention_survey import (
    NAME,
    SURVEYED,
    AttentionSurvey,
    LayerAttention,
    attending,
    register,
)
from fairlead_engine.model.fallback.dequantized_weights import read_floats
from fairlead_engine.model.fallback.foreign_config import ForeignConfig, cause, refused_where_it_fails
from fairlead_engine.model.layers import ForwardInput
from fairlead_engine.model.lora.merging import merge_adapter

_LOOKS_FOR_PADDING = "warn_if_padding_and_no_attention_mask"
"""A method of transformers' models that makes the host wait for the device."""


def read_network(folder: Path, config: ForeignConfig, dtype: torch.dtype, device: torch.device) -> Any:
    """Reads safetensors, never pickles. Raises ModelLoadError, naming missing or left-over tensors."""
    source: dict[str, Any] = {"pretrained_model_name_or_path": str(folder)}
    if config.quantization is not None:
        with torch.device("meta"):
            names = config.network(config.settings)
        state = read_floats(folder, config.quantization, dtype, names)
        source = {"pretrained_model_name_or_path": None, "state_dict": state}
    try:
        with _without_progress():
            network, loading = config.network.from_pretrained(
                **source,
                config=config.settings,
                dtype=dtype,
                attn_implementation=NAME,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except Exception as error:  # files, shapes and names: it raises of many kinds
        raise ModelLoadError(
            ModelLoadReason.CHECKPOINT_INVALID,
            f"{folder}: transformers cannot read the weights of {config.architecture} ({cause(error)}). Check "
            "that all safetensors files of the checkpoint are there and that config.json belongs to them.",
        ) from error
    _check_all(folder, loading)
    network.eval().requires_grad_(False)
    for module in network.modules():  # there is no padding, which some look for in every step
        if hasattr(module, _LOOKS_FOR_PADDING):
            setattr(module, _LOOKS_FOR_PADDING, lambda *_: None)
    return network.to(device)


def _check_all(folder: Path, loading: Any) -> None:
    """Raises ModelLoadError: a model without some of its weights computes nonsense."""
    if missing := sorted(loading["missing_keys"]):
        raise ModelLoadError(
            ModelLoadReason.MISSING_TENSOR,
            f"{folder} lacks {len(missing)} tensors that its config.json calls for: {_some(missing)}. Check that all "
            "files of the checkpoint are there and that config.json belongs to them.",
        )
    if unexpected := sorted(loading["unexpected_keys"]):
        raise ModelLoadError(
            ModelLoadReason.UNEXPECTED_TENSOR,
            f"{folder} holds {len(unexpected)} tensors that its config.json does not account for: {_some(unexpected)}. "
            "Check that config.json belongs to these weights.",
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")


@contextmanager
def _without_progress() -> Iterator[None]:
    """Keeps progress bars and loading reports out of the log."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    had_bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()


logger = logging.getLogger(__name__)


class StepAttention:
    """Attention in a step; layers come in the order of the survey."""

    def __init__(
        self, layers: Sequence[LayerAttention], head_dim: int, step: ForwardInput, caches: Sequence[LayerCache]
    ) -> None:
        """`head_dim`: of the cache, where smaller heads are padded with zeros."""
        self._layers = zip(layers, caches, strict=True)
        self._head_dim = head_dim
        self._step = step
        unturned = torch.empty((len(step.positions), 1, 0), device=step.positions.device)
        self._turn = HeadTurn(layers[0].num_kv_heads, layers[0].num_kv_heads, unturned, unturned, None)

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Mapping[str, Any]
    ) -> Tensor:
        """Arguments other than the heads are known from the survey."""
        (layer, cache), step = next(self._layers), self._step
        parts = [part.transpose(1, 2) for part in (query, key, value)]
        missing = [self._head_dim - part.shape[-1] for part in parts]
        padded = [pad(part, (0, lack)) if lack else part for part, lack in zip(parts, missing, strict=True)]
        heads = torch.cat(padded, dim=2)[0]
        queries = step.backend.store(heads, self._turn, cache, step.attention)
        scale = layer.scale * math.sqrt(self._head_dim)  # the backend divides by this root
        if not math.isclose(scale, 1.0):
            queries = queries * scale
        attended = step.backend.attend(queries, cache, step.attention, layer.scoring)
        return attended[None, ..., : layer.value_dim]

    def mask(self, mask_function: Any, device: Any) -> None:
        """No mask in a step."""


@dataclass(frozen=True, slots=True)
class ForeignDecoder:
    """A loaded model in `model.Decoder`'s place; `load_foreign` makes it."""

    config: DecoderShape
    network: Any
    """transformers' model."""
    trunk: Any
    """Its part from tokens to hidden states."""
    outputs: Any
    """The class of its outputs."""
    layers: tuple[LayerAttention, ...]
    num_parameters: int
    weight_bytes: int

    slots: ClassVar[None] = None
    """Without adapters."""
    classifier: ClassVar[None] = None
    """Without a classifier."""
    why_not_captured: ClassVar[str | None] = "the model is computed by transformers"

    def __call__(
        self, step: ForwardInput, caches: Sequence[LayerCache], between: BetweenAttentions | None = None
    ) -> Tensor:
        """Runs one step and returns the last hidden states of its logit rows: [rows, hidden]."""
        with attending(StepAttention(self.layers, self.config.head_dim, step, caches)):
            hidden: Tensor = _run(self.trunk, step.token_ids, step.positions).last_hidden_state[0]
        return hidden[step.logit_rows]

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [rows, hidden] → logits [rows, vocab], by the model's own part behind its trunk."""
        if not len(hidden):
            return hidden.new_empty((0, self.config.vocab_size))
        with self._instead_of_trunk(hidden):
            return self._all_logits(torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device))

    def eager_logits(self, token_ids: Tensor, *, is_shaken: bool = False) -> Tensor:
        """token_ids int64 [tokens] of one prompt → logits [tokens, vocab], by transformers alone. `is_shaken`: each
        number of the tokens' vectors is moved to the next in its format."""
        self.network.set_attn_implementation("eager")
        hook = self.network.get_input_embeddings().register_forward_hook(_shaken) if is_shaken else None
        try:
            return self._all_logits(token_ids)
        finally:
            self.network.set_attn_implementation(NAME)
            if hook is not None:
                hook.remove()

    def _all_logits(self, token_ids: Tensor) -> Tensor:
        logits: Tensor = self.network(input_ids=token_ids[None], use_cache=False).logits[0]
        return logits

    @contextmanager
    def _instead_of_trunk(self, hidden: Tensor) -> Iterator[None]:
        self.trunk.forward = lambda *_, **__: self.outputs(last_hidden_state=hidden[None])
        try:
            yield
        finally:
            del self.trunk.forward  # the class's is found again


@torch.no_grad()
def load_foreign(
    folder: Path, config: ForeignConfig, dtype: torch.dtype, device: torch.device, adapter: Path | None = None
) -> ForeignDecoder:
    """Reads the weights, merges the `adapter`, and surveys the model's attention. Raises ModelLoadError for an
    unsupported model, and for missing or left-over weights, and ConfigError for an adapter that cannot be merged."""
    with refused_where_it_fails(config.architecture, "it is made and its attention is looked at"):
        return _loaded(folder, config, dtype, device, adapter)


def _loaded(
    folder: Path, config: ForeignConfig, dtype: torch.dtype, device: torch.device, adapter: Path | None
) -> ForeignDecoder:
    register()
    network = read_network(folder, config, dtype, device)
    if adapter is not None:
        _merge(adapter, network)
    trunk = _trunk(network)
    layers, output = _survey(config, network, trunk, device)
    shape = _shape(config, network, layers, output.last_hidden_state.shape[-1])
    parameters = list(network.parameters())
    logger.warning(
        "%s has no implementation of this engine's own: transformers computes it, operation by operation, with this "
        "engine's attention and cache; nothing of it is fused or captured, so expect it to be slower than a family "
        "that is listed in the documentation",
        config.architecture,
    )
    return ForeignDecoder(
        shape,
        network,
        trunk,
        type(output),
        layers,
        num_parameters=sum(parameter.numel() for parameter in parameters),
        weight_bytes=sum(parameter.nbytes for parameter in parameters),
    )


def _merge(adapter: Path, network: Any) -> None:
    try:
        num_weights = merge_adapter(adapter, network, network.get_input_embeddings().weight.shape[1])
    except AdapterError as error:
        hint = "give a folder of LoRA that PEFT has saved for this model"
        raise ConfigError("merged_adapter", f"cannot be merged: {error.message}", hint) from error
    logger.info("the adapter in %s is merged into %d weights", adapter, num_weights)


def _shaken(_: Any, __: Any, vectors: Tensor) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    signs = torch.randint(2, vectors.shape, generator=draw).to(vectors.device, vectors.dtype) * 2 - 1
    return vectors * (1 + signs * torch.finfo(vectors.dtype).eps)


def _trunk(network: Any) -> Any:
    """The model's decoder. Some models name themselves so, or their output projection, which has no configuration."""
    told = (network.get_decoder(), network.base_model, getattr(network, "model", None))
    return next((each for each in told if hasattr(each, "config") and each is not network), network)


def _run(trunk: Any, token_ids: Tensor, positions: Tensor) -> Any:
    """int64 [tokens] each → an object with `last_hidden_state` [1, tokens, hidden]."""
    return trunk(input_ids=token_ids.long()[None], position_ids=positions[None], use_cache=False)


def _survey(
    config: ForeignConfig, network: Any, trunk: Any, device: torch.device
) -> tuple[tuple[LayerAttention, ...], Any]:
    """Of all layers, in order; and the result of a run."""
    survey = AttentionSurvey(config.max_position_embeddings)
    tokens = torch.arange(min(4, config.vocab_size, config.max_position_embeddings), device=device)
    network.set_attn_implementation(SURVEYED)
    try:
        with attending(survey):
            output = _run(trunk, tokens, tokens)
            assert output.last_hidden_state is not None
    except (ModelLoadError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever its code raises when it is called so
        raise _refused(config, f"cannot be run with its tokens in one row ({cause(error)})") from error
    finally:
        network.set_attn_implementation(NAME)
    num_layers, num_found = config.settings.num_hidden_layers, len(survey.layers)
    if num_found < num_layers:  # one that asks twice has as many caches
        raise _refused(config, f"has {num_layers} layers, of which {num_found} ask transformers' AttentionInterface")
    shapes = sorted({layer[:4] for layer in survey.layers})
    if len(shapes) > 1:
        told = "; ".join("{} and {}, of {} and {}".format(*shape) for shape in shapes)
        raise _refused(config, f"has layers that differ in heads of queries and keys, or in their sizes ({told})")
    return tuple(survey.layers), output


def _shape(config: ForeignConfig, network: Any, layers: tuple[LayerAttention, ...], hidden_size: int) -> DecoderShape:
    head = network.get_output_embeddings()
    head_dim = max(layers[0].key_dim, layers[0].value_dim)
    return DecoderShape(
        architecture=config.architecture,
        vocab_size=config.vocab_size if head is None else len(head.weight),
        hidden_size=hidden_size,
        num_layers=len(layers),
        num_heads=layers[0].num_heads,
        num_kv_heads=layers[0].num_kv_heads,
        head_dim=head_dim + head_dim % 2,
        max_position_embeddings=config.max_position_embeddings,
        dtype=config.dtype,
        eos_token_ids=config.eos_token_ids,
        task=config.task,
    )


def _refused(config: ForeignConfig, what: str) -> ModelLoadError:
    return ModelLoadError(
        ModelLoadReason.UNSUPPORTED_ARCHITECTURE,
        f"{config.architecture} {what}, and so cannot be served over a paged cache; choose another model",
    )
