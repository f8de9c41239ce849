"""Fairlead's engine: continuous batching over a paged KV cache, in process (`LLM`) or behind HTTP (`serve`)."""

from typing import TYPE_CHECKING, Any

from fairlead_engine.version import __version__ as __version__

if TYPE_CHECKING:
    from fairlead_engine.llm import LLM as LLM
    from fairlead_engine.types import SamplingParams as SamplingParams

_LAZY = {"LLM": "fairlead_engine.llm", "SamplingParams": "fairlead_engine.types"}


def __getattr__(name: str) -> Any:
    """`LLM` pulls in torch, which the HTTP process must not import: so it is looked up on first use."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
