"""Families of models by the architecture in `config.json`: generating models and classifiers.

The engine registers the computation of a family under the same names (`fairlead_engine.model.families`).
"""

from importlib import import_module
from pkgutil import iter_modules

from fairlead_common.models import families
from fairlead_common.models.families import dense
from fairlead_common.models.families.family import Family
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import ModelLoadError, ModelLoadReason

CLASSIFIER = "ForSequenceClassification"
"""Endings of the names of classifying architectures."""
_GENERATES = "ForCausalLM"
_SPELLINGS = {"ExaoneMoEForCausalLM": "ExaoneMoeForCausalLM"}
"""Names in published files → names in transformers."""


def _declared() -> list[Family]:
    """`FAMILIES` of all modules of this package."""
    modules = [
        import_module(f"{families.__name__}.{found.name}")
        for found in iter_modules(families.__path__)
        if found.name != __name__.rpartition(".")[2]
    ]
    return [family for module in modules for family in getattr(module, "FAMILIES", ())]


ARCHITECTURES = {family.architecture: family for family in sorted(_declared())}
"""By the name in `config.json`."""
_CLASSIFIERS = {
    **{name.replace(_GENERATES, CLASSIFIER): name for name in ARCHITECTURES},
    "Gemma3TextForSequenceClassification": "Gemma3ForCausalLM",
}
"""Models with a classifier in place of the output projection, by the name of the generating model."""
_TRUNKS = {name.replace(_GENERATES, "Model"): name for name in ARCHITECTURES if name.endswith(_GENERATES)}
"""Decoders without an output projection, as embedders are published → names of the generating models."""
_LIKE_BERT = ("Bert", "DistilBert", "ModernBert", "Roberta", "XLMRoberta")
_BOTH_WAYS = "Gemma3TextModel"
"""An encoder where `config.json` says that tokens look both ways."""
ENCODERS = (*(name + end for name in _LIKE_BERT for end in ("Model", CLASSIFIER)), _BOTH_WAYS)
"""Architectures that are computed without a cache."""


def generating(architecture: str) -> str:
    """The name in `ARCHITECTURES` of the result of `find_family`."""
    return _CLASSIFIERS.get(architecture, architecture)


def find_encoder(fields: JsonFields) -> str | None:
    """The first architecture of an encoder in `config.json`; None = no encoder."""
    names = fields.texts("architectures")
    found = next((name for name in ENCODERS if name in names), None)
    return None if found == _BOTH_WAYS and not fields.boolean(dense.BOTH_WAYS, False) else found


def find_family(fields: JsonFields) -> str | None:
    """The first known architecture in `config.json`, a generating architecture before a classifier or a trunk alone; in
    a file without architectures `model_type` decides."""
    names = [_SPELLINGS.get(name, name) for name in fields.texts("architectures")]
    model_type = fields.text("model_type")
    for name, family in ARCHITECTURES.items():
        if name in names or (not names and family.model_type == model_type):
            return name
    known = _CLASSIFIERS.keys() | _TRUNKS.keys()
    return next((_TRUNKS.get(name, name) for name in names if name in known), None)


def find_architecture(fields: JsonFields) -> str:
    """As `find_family`. Raises ModelLoadError with reason UnsupportedArchitecture and a list of supported families."""
    if (encoder := find_encoder(fields)) is not None:
        raise ModelLoadError(
            ModelLoadReason.UNSUPPORTED_ARCHITECTURE,
            f"config.json names {encoder}, an encoder: it makes vectors of texts, or classifies them, and generates "
            "none, which is needed here",
        )
    if (name := find_family(fields)) is not None:
        return name
    raise ModelLoadError(
        ModelLoadReason.UNSUPPORTED_ARCHITECTURE,
        f"{named_architecture(fields)}; supported are {', '.join((*ARCHITECTURES, *ENCODERS))}. Choose a model of one "
        "of these.",
    )


def named_architecture(fields: JsonFields) -> str:
    """What `config.json` names, in words."""
    named = ", ".join(fields.texts("architectures")) or fields.text("model_type") or "none"
    return f"config.json names the architecture {named}"
