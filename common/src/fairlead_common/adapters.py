"""Adapters: how a request names one, and what it is told where nobody has it.

`NAME:ADAPTER` in `model` asks for the model `NAME` with the adapter `ADAPTER`. Gateway and engine take it apart and
refuse it by this code; what it does to a block's hash is `fairlead_common.blocks.extra_bytes`.
"""

from collections.abc import Container, Iterable

from fairlead_common.prompts import PromptError


class UnknownAdapter(PromptError):
    """The model is there, the adapter is not. `held`: those that are."""

    code = "model_not_found"

    def __init__(self, adapter: str, held: Iterable[str]) -> None:
        self.adapter = adapter
        self.held = tuple(sorted(held))
        there = f"it has {', '.join(map(repr, self.held))}" if self.held else "it has none"
        super().__init__("model", f"The model has no adapter {adapter!r}; {there}")


def split_adapter(model: str, names: Container[str]) -> tuple[str, str | None]:
    """Which of `names` is asked for, and which adapter of it: either may have colons, and the longest name counts. A
    model that is not among them is given back as it is."""
    base, colon = model, ":"
    while colon and base not in names:
        base, colon, _ = base.rpartition(":")
    return (base, model[len(base) + 1 :]) if colon and base != model else (model, None)


def with_adapter(name: str, adapter: str | None) -> str:
    """What to write in `model`."""
    return name if adapter is None else f"{name}:{adapter}"
