"""A checkpoint's weights in transformers' own model, which knows what older and newer files call them."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.model.fallback.attention_interface import NAME
from fairlead_engine.model.fallback.foreign_config import ForeignConfig, first_line

_LOOKS_FOR_PADDING = "warn_if_padding_and_no_attention_mask"
"""A method of transformers' models, for which the host waits for the device."""


def read_network(folder: Path, config: ForeignConfig, dtype: torch.dtype, device: torch.device) -> Any:
    """From safetensors, never from pickles. Raises ModelLoadError, naming tensors that are missing or left over."""
    try:
        with _without_progress():
            network, loading = config.network.from_pretrained(
                str(folder),
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
            f"{folder}: transformers cannot read the weights of {config.architecture} ({first_line(error)}). Check "
            "that all safetensors files of the checkpoint are there and that config.json belongs to them.",
        ) from error
    _check_all(folder, loading)
    network.eval().requires_grad_(False)
    for module in network.modules():  # there is no padding, which some look for in every step
        if hasattr(module, _LOOKS_FOR_PADDING):
            setattr(module, _LOOKS_FOR_PADDING, lambda *_: None)
    return network.to(device)


def _check_all(folder: Path, loading: Any) -> None:
    """A model that lacks weights, or ignores some, computes nonsense."""
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
    """Bars and reports of loading are not for a log."""
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
