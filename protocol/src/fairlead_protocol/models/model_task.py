"""What a model was made for, and what may be asked of it beside text."""

from enum import StrEnum

import msgspec

from fairlead_protocol.models.image_settings import ImageSettings


class Pooling(StrEnum):
    """How the last hidden states of a prompt become one vector."""

    LAST = "last"
    """That of the last token, which has seen all others."""
    MEAN = "mean"
    """The mean over all tokens."""
    MAX = "max"
    """Of each element the largest over all tokens."""
    CLS = "cls"
    """That of the first token, of models in which each token sees all others."""


class Reading(StrEnum):
    """What is made of that vector."""

    UNIT = "unit"
    """It is scaled to length 1."""
    RAW = "raw"
    """It stays as it is."""
    LABELS = "labels"
    """The model's classifier says what it is: a number for each label."""


class Outcome(StrEnum):
    """What a classifier makes of the labels' logits."""

    SIGMOID = "sigmoid"
    """Each becomes a probability by itself."""
    SOFTMAX = "softmax"
    """They share what is likely."""
    PLAIN = "plain"
    """They are what is told."""


class Kind(StrEnum):
    """What a request wants of a model."""

    GENERATE = "generate"
    EMBED = "embed"
    SCORE = "score"
    CLASSIFY = "classify"


class ModelTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a model was made for."""

    generates: bool = True
    """Whether it continues prompts."""
    sees_all: bool = False
    """Whether each token of a prompt sees all others: prompts are computed whole, and nothing is kept of them."""
    pooling: Pooling = Pooling.LAST
    """How its makers make a vector of a prompt,"""
    reading: Reading = Reading.UNIT
    """and what of that, where nobody classifies."""
    labels: tuple[str, ...] = ()
    """Of its classifier; empty where it has none."""
    images: ImageSettings | None = None
    """How it wants the images that prompts may have; None = it sees none."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What requests may ask of it."""
        if self.labels:
            return (Kind.CLASSIFY, Kind.SCORE) if self.joins_pairs else (Kind.CLASSIFY,)
        return (Kind.GENERATE, Kind.EMBED) if self.generates else (Kind.EMBED, Kind.SCORE)

    @property
    def joins_pairs(self) -> bool:
        """Whether it reads two texts as one prompt and says how much they have to do with each other: a cross-encoder,
        which has a single label."""
        return len(self.labels) == 1


GENERATES = ModelTask()
"""That of an ordinary decoder."""
