"""A family of models, as all parts of Fairlead know it."""

from collections.abc import Callable
from typing import NamedTuple

from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.model_config import ModelConfig


class Family(NamedTuple):
    """An entry of `FAMILIES` in a module of this package, where `registry` collects it."""

    architecture: str
    """As `architectures` in `config.json` spells it."""
    model_type: str
    """As `model_type` spells it; decides where `architectures` names none."""
    parse: Callable[[JsonFields], ModelConfig]
    """Raises ModelLoadError for fields that do not fit, or have no layer."""
    models: str
    """Published models of the family and what is special about them, for the table of `docs/reference/families.md`."""
    built_as: str | None = None
    """Architecture with the same names of tensors, as which the engine builds the model by its configuration; None =
    a function of its own in the engine's `BUILDERS`."""
    gguf: str | None = None
    """`general.architecture` of GGUF files that differ from those of `built_as` by this name alone; None = none, or an
    entry of `gguf_families` in the engine."""
