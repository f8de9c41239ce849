"""What transformers' code raises, of whatever kind, as a refusal of the model in one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fairlead_engine.errors import EngineError, ModelLoadError, ModelLoadReason


@contextmanager
def refused_where_it_fails(architecture: str, doing: str) -> Iterator[None]:
    """Errors of this engine pass, and those that say that memory is short. `doing`: what fails, as in `its config.json
    is read`."""
    try:
        yield
    except (EngineError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ModelLoadError(
            ModelLoadReason.UNSUPPORTED_ARCHITECTURE,
            f"{architecture} cannot be served: transformers' code for it fails when {doing} ({cause(error)}). Check "
            "its config.json, or choose another model.",
        ) from error


def cause(error: Exception) -> str:
    """The kind of an exception, and the first line of what it says."""
    return ": ".join((type(error).__name__, *str(error).strip().splitlines()[:1]))
