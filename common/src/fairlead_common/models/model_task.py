"""The task of a model, and kinds of requests besides generating text."""

from enum import StrEnum

import msgspec

from fairlead_common.models.image_settings import ImageSettings


class Pooling(StrEnum):
    """Pooling of the last hidden states of a prompt."""

    LAST = "last"
    """The state of the last token, after all tokens."""
    MEAN = "mean"
    """The mean over all tokens."""
    MAX = "max"
    """The maximum over all tokens, element by element."""
    CLS = "cls"
    """The state of the first token, in models in which each token sees all tokens."""


class Reading(StrEnum):
    """Processing of the pooled vector."""

    UNIT = "unit"
    """It is scaled to length 1."""
    RAW = "raw"
    """It stays as it is."""
    LABELS = "labels"
    """The classifier of the model makes a number for each label."""


class LabelOutcome(StrEnum):
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
    """Whether each token of a prompt sees all tokens: prompts are computed in one piece, without a cache."""
    pooling: Pooling = Pooling.LAST
    """Default pooling of a prompt."""
    reading: Reading = Reading.UNIT
    """Default processing of the pooled vector without a classifier."""
    labels: tuple[str, ...] = ()
    """Of its classifier; empty where it has none."""
    images: ImageSettings | None = None
    """Preprocessing of images in prompts; None = the model sees no images."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What requests may ask of it."""
        if self.labels:
            return (Kind.CLASSIFY, Kind.SCORE) if self.joins_pairs else (Kind.CLASSIFY,)
        return (Kind.GENERATE, Kind.EMBED) if self.generates else (Kind.EMBED, Kind.SCORE)

    @property
    def joins_pairs(self) -> bool:
        """Whether the model is a cross-encoder, a model with a single label: two texts are scored as a prompt."""
        return len(self.labels) == 1


GENERATES = ModelTask()
"""That of an ordinary decoder."""
