"""Whether the model fits what a replica gets, as far as the operator can know it: by the catalogue, without asking
anybody. Pure.

A no that is certain keeps the first pods of an LLMDeployment from being made, which could only fail. Whatever runs is
left alone, and whoever knows better says so by an annotation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fairlead.api import names
from fairlead.api.conditions import ConditionStatus, Reason
from fairlead.api.llmdeployment import EngineType, LLMDeployment
from fairlead.fit.fit_check import Memory, Verdict, check
from fairlead.fit.memory_need import EngineChoice
from fairlead.fit.model_shape import read_shape
from fairlead.fit.presets import config_of
from fairlead.fit.remedies import remedies
from fairlead.fit.replica_memory import other_profiles, replica_memory
from fairlead.manifests.source import CannotBuild
from fairlead.operator_settings import OperatorSettings
from fairlead_protocol.models.load_errors import ModelLoadError

_MIRROR = "HF_ENDPOINT"
_MOST_REMEDIES = 4
"""That a condition names."""
_REASONS: Mapping[Verdict, Reason] = {
    Verdict.FITS: Reason.FITS,
    Verdict.FEWER_SEQUENCES: Reason.FEWER_SEQUENCES,
    Verdict.TOO_LARGE: Reason.TOO_LARGE,
    Verdict.WEIGHTS_TOO_LARGE: Reason.WEIGHTS_TOO_LARGE,
    Verdict.NOT_DIVISIBLE: Reason.NOT_DIVISIBLE,
    Verdict.NOT_SUPPORTED: Reason.NOT_SUPPORTED,
    Verdict.MEMORY_UNKNOWN: Reason.MEMORY_UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class ModelFit:
    """What the condition Fits says before a replica has proved anything."""

    status: ConditionStatus
    reason: Reason
    message: str
    is_certain_no: bool = False
    """Whether pods could only fail."""


def model_fit(deployment: LLMDeployment, settings: OperatorSettings) -> ModelFit:
    """Never raises for what a user can write."""
    source, engine = deployment.spec.model.source, deployment.spec.engine
    if engine.type is not EngineType.FAIRLEAD:
        message = f"engine.type is {engine.type}, which lays out memory its own way: it is not reckoned"
        return _unknown(Reason.ENGINE_NOT_OURS, message)
    if config_of(source) is None:
        message = f"{source} is not in the catalogue, so nothing is known of the model before it is loaded; "
        return _unknown(Reason.MODEL_UNKNOWN, message + "`fairlead check --config` reckons with its config.json")
    try:
        choice, memory = EngineChoice.of(deployment.spec), replica_memory(deployment, settings)
    except (CannotBuild, ValueError) as e:
        return _unknown(Reason.INVALID_SPEC, str(e))
    others = other_profiles(deployment, settings)
    try:
        found = _reckoned(source, choice, memory, tuple(others.items()))
    except ModelLoadError as e:  # the catalogue is held to what can be read
        return _unknown(Reason.MODEL_UNKNOWN, str(e))
    # A mirror may hold anything under a name.
    is_sure = _MIRROR not in settings.download_environment or not source.startswith("hf://")
    return found if is_sure else ModelFit(found.status, found.reason, found.message)


def holds_back(fit: ModelFit, metadata: Mapping[str, Any]) -> bool:
    """Whether nothing is to be made for an LLMDeployment that has nothing yet."""
    is_overridden = (metadata.get("annotations") or {}).get(names.ANNOTATION_IGNORE_FIT) == "true"
    return fit.is_certain_no and not is_overridden


def _unknown(reason: Reason, message: str) -> ModelFit:
    return ModelFit(ConditionStatus.UNKNOWN, reason, message)


@lru_cache(maxsize=256)
def _reckoned(source: str, choice: EngineChoice, memory: Memory, others: tuple[tuple[str, Memory], ...]) -> ModelFit:
    """Proposals take some tens of milliseconds, and an LLMDeployment is looked at again and again."""
    known = None if choice.draft is None else config_of(choice.draft)
    draft = None if known is None else read_shape(known)
    fit = check(read_shape(config_of(source)), choice, memory, draft)
    status = ConditionStatus.UNKNOWN
    if fit.verdict is not Verdict.MEMORY_UNKNOWN:
        status = ConditionStatus.TRUE if fit.verdict.starts else ConditionStatus.FALSE
    message = fit.message
    if proposed := remedies(fit, dict(others))[:_MOST_REMEDIES]:
        message += f". What would fit: {'; or '.join(map(str, proposed))}"
    return ModelFit(status, _REASONS[fit.verdict], message, fit.is_certain_no)
