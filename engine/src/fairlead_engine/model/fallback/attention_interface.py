"""Our attention as transformers calls it: one function for all models, under a name of its own.

Whoever runs a model says who attends in its stead, for the time of one forward pass and one thread.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from torch import Tensor

NAME = "fairlead"
"""In a step: there are no masks, as no function makes any under this name."""
SURVEYED = "fairlead-survey"
"""In a survey: what would be masked is asked."""


class Attending(Protocol):
    """Stands for attention in one forward pass."""

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Mapping[str, Any]
    ) -> Tensor:
        """query [1, heads, tokens, head_dim], key and value [1, kv_heads, tokens, head_dim], rotated if at all; layer
        after layer, in an order that is the same in all passes → [1, tokens, heads, value's head_dim]."""
        ...

    def mask(self, mask_function: Any, device: Any) -> Tensor | None:
        """What stands for a mask that is visible where `mask_function(batch, head, query, key)` says."""
        ...


_ATTENDING: ContextVar[Attending] = ContextVar("attending")


@contextmanager
def attending(by: Attending) -> Iterator[None]:
    """Meanwhile models of this thread attend so."""
    token = _ATTENDING.set(by)
    try:
        yield
    finally:
        _ATTENDING.reset(token)


def register() -> None:
    """Tells transformers of it; more than once is as good as once."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, _attend)
    AttentionInterface.register(SURVEYED, _attend)
    AttentionMaskInterface.register(SURVEYED, _mask)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **options: Any
) -> tuple[Tensor, None]:
    return _ATTENDING.get().attend(module, query, key, value, attention_mask, options), None


def _mask(*_: Any, mask_function: Any = None, device: Any = None, **__: Any) -> Tensor | None:
    return _ATTENDING.get().mask(mask_function, device)
