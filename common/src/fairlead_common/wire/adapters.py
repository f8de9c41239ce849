"""Adapters: names in requests, and the refusal of unknown adapters.

`NAME:ADAPTER` in `model` asks for the model `NAME` with the adapter `ADAPTER`. Gateway and engine share the parser and
the refusal; `fairlead_common.wire.blocks.extra_bytes` adds the adapter to the hash of a block.
"""

from collections.abc import Container, Iterable

from fairlead_common.openai.prompts import PromptError


class UnknownAdapter(PromptError):
    """The model is there, the adapter is not. `held`: those that are."""

    code = "model_not_found"

    def __init__(self, adapter: str, held: Iterable[str]) -> None:
        self.adapter = adapter
        self.held = tuple(sorted(held))
        there = f"it has {', '.join(map(repr, self.held))}" if self.held else "it has none"
        super().__init__("model", f"The model has no adapter {adapter!r}; {there}")


def split_adapter(model: str, names: Container[str]) -> tuple[str, str | None]:
    """The requested model of `names`, and the adapter: both may have colons, and the longest name counts. An unknown
    model comes back unchanged."""
    base, colon = model, ":"
    while colon and base not in names:
        base, colon, _ = base.rpartition(":")
    return (base, model[len(base) + 1 :]) if colon and base != model else (model, None)


def with_adapter(name: str, adapter: str | None) -> str:
    """What to write in `model`."""
    return name if adapter is None else f"{name}:{adapter}"
