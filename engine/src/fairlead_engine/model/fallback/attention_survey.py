"""Our attention behind transformers' interface, one function for all models; and a survey of a model's needs, by layer.

The caller of a model sets the attention (`Attending`), for one forward pass and one thread. The survey runs the model
once without attention. Masks are functions of two positions in transformers, and the survey calls them for the whole
context, beyond the reach of short trials: a window is found by its width, and a mask that is neither a window nor
causal is refused.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.kernels.attention.scoring import Scoring

NAME = "fairlead"
"""In a step: without masks, because no function makes masks under this name."""
SURVEYED = "fairlead-survey"
"""In a survey: mask functions are examined."""


class Attending(Protocol):
    """Stands for attention in one forward pass."""

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Mapping[str, Any]
    ) -> Tensor:
        """query [1, heads, tokens, head_dim], key and value [1, kv_heads, tokens, head_dim], rotated if at all; layers
        come in the same order in all passes → [1, tokens, heads, value's head_dim]."""

    def mask(self, mask_function: Any, device: Any) -> Tensor | None:
        """In place of a mask, visible where `mask_function(batch, head, query, key)` is true."""


_ATTENDING: ContextVar[Attending] = ContextVar("attending")


@contextmanager
def attending(by: Attending) -> Iterator[None]:
    """Sets what models of this thread attend with."""
    token = _ATTENDING.set(by)
    try:
        yield
    finally:
        _ATTENDING.reset(token)


def register() -> None:
    """Registers it with transformers; may be called again."""
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


_HONOURED = {"scaling", "dropout", "sliding_window", "softcap", "s_aux", "is_causal"}
_NEEDLESS = {"position_ids", "cache_position", "position_embeddings", "input_ids"}
"""Arguments from models that attention ignores."""


class LayerAttention(NamedTuple):
    """One layer's attention."""

    num_heads: int
    num_kv_heads: int
    key_dim: int
    """Elements of a head of queries and keys."""
    value_dim: int
    """Elements of a head of values."""
    scale: float
    """Factor of scores."""
    scoring: Scoring


class AttentionSurvey:
    """Computes nothing, and notes each layer's needs. Raises ModelLoadError for features that our attention lacks."""

    def __init__(self, longest: int) -> None:
        """`longest`: the model's longest context, in tokens."""
        self.layers: list[LayerAttention] = []
        self._longest = longest

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Mapping[str, Any]
    ) -> Tensor:
        """Zeros."""
        causal = options.get("is_causal")
        if not (getattr(module, "is_causal", True) if causal is None else causal):
            raise _sees_more()
        if key.shape[2] != query.shape[2]:
            raise _refused(
                f"attends to {key.shape[2]} keys where {query.shape[2]} tokens are computed",
                "a decoder here attends to its own tokens alone",
            )
        num_heads, num_kv_heads, key_dim = query.shape[1], key.shape[1], query.shape[3]
        if num_heads % num_kv_heads:
            raise _refused(
                f"has {num_heads} heads of queries for {num_kv_heads} of keys", "the latter must divide the former"
            )
        for name, given in options.items():
            if name not in _HONOURED | _NEEDLESS and given is not None and given is not False:
                raise _refused(f"tells attention of {name}", "which this engine's does not know")
        scale = options.get("scaling")
        sinks = options.get("s_aux")
        scoring = Scoring(
            window=self._window(mask, options.get("sliding_window")),
            soft_cap=options.get("softcap") or 0.0,
            sinks=None if sinks is None else sinks.detach().float().flatten(),
        )
        self.layers.append(
            LayerAttention(
                num_heads,
                num_kv_heads,
                key_dim,
                value.shape[3],
                1 / math.sqrt(key_dim) if scale is None else float(scale),
                scoring,
            )
        )
        return query.new_zeros(1, query.shape[2], num_heads, value.shape[3])

    def mask(self, mask_function: Any, device: Any) -> Tensor:
        """The window's width, or 0, in the place of a mask."""
        tokens = torch.arange(self._longest, device=device)
        rows = sorted({self._longest - 1, max(0, self._longest - 2), self._longest // 2, self._longest // 3, 1, 0})
        seen = {row: self._visible(mask_function, row, tokens) for row in rows if row < self._longest}
        window = int(seen[self._longest - 1].sum())
        for row, visible in seen.items():
            if bool(visible[row + 1 :].any()):
                raise _sees_more()
            if not torch.equal(visible, (tokens <= row) & (tokens > row - window)):
                raise _refused(
                    f"has layers whose token {row} sees other tokens than all before it, or the last of them in a "
                    "window of one width",
                    "no attention here computes that",
                )
        return torch.full((1, 1, 1, 1), window if window < self._longest else 0, device=device)

    def _visible(self, mask_function: Any, row: int, tokens: Tensor) -> Tensor:
        """bool [tokens]: whether that one sees them."""
        first = torch.zeros((), dtype=torch.int64, device=tokens.device)
        try:
            visible = mask_function(first, first, first + row, tokens)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise _refused(f"makes masks that cannot be looked at ({error})", "choose another model") from error
        return torch.as_tensor(visible, dtype=torch.bool, device=tokens.device).expand(len(tokens))

    def _window(self, mask: Tensor | None, told: int | None) -> int:
        """The mask's window, if there is a mask: models name windows for layers that have none."""
        if mask is None:
            return told if told and told < self._longest else 0
        if mask.numel() != 1 or mask.is_floating_point():
            raise _refused("adds to attention's scores, as a bias of positions does", "no attention here computes that")
        return int(mask)


def _sees_more() -> ModelLoadError:
    return _refused("has attention whose tokens see those after them", "a decoder's see those before them alone")


def _refused(what: str, remedy: str) -> ModelLoadError:
    return ModelLoadError(ModelLoadReason.UNSUPPORTED_ARCHITECTURE, f"the model {what}; {remedy}")
