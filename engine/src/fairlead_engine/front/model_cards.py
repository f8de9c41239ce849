"""The models that a server lists at `/v1/models`, with their lengths: as vLLM does, and SGLang."""

import msgspec

from fairlead_engine.front.foreign_engine import NotServing


class ModelCard(msgspec.Struct):
    """A model, as `/v1/models` lists it."""

    id: str
    max_model_len: int | None = None


class ModelCards(msgspec.Struct):
    """All of them."""

    data: list[ModelCard]

    def length_of(self, name: str) -> int:
        """Longest prompt plus answer of the model, in tokens. Raises NotServing where it is not served."""
        lengths = [length for card in self.data if card.id == name and (length := card.max_model_len or 0) > 0]
        if not lengths:
            names = ", ".join(card.id for card in self.data)
            raise NotServing(f"it serves no model {name!r}, but {names or 'none'}")
        return lengths[0]
