"""Lists of models → what Ollama's `/api/tags`, `/api/ps`, `/api/show` and `/api/version` tell. Pure.

Models are no files here: sizes are told as 0, digests are made of names, and formats and families are left empty.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from fairlead_common.openai.prompts import PromptError
from fairlead_common.openai.translate.decoding import decoded
from fairlead_common.openai.translate.messages_models import MODELS_PATH, ListedModel, ListedModels
from fairlead_common.openai.translate.ollama import OllamaShowRequest
from fairlead_common.openai.translate.ollama_answers import OllamaTranslation, timestamp
from fairlead_common.openai.unknown_fields import UnknownFields

API_VERSION = "0.14.0"
"""Of Ollama, whose API this is; clients ask for a version with the paths of their requests. Ollama has /v1/responses
from 0.13.4 on, for which Codex looks, and /v1/messages from 0.14.0 on."""
_ARCHITECTURE = "fairlead"
"""Begins the names of facts about a model; real ones are not told."""
_NEVER = "9999-12-31T23:59:59Z"


def _named(model: ListedModel) -> dict[str, Any]:
    details = {"parent_model": model.parent or "", "format": "", "family": "", "families": []}
    return {
        "name": model.id, "model": model.id, "size": 0, "digest": hashlib.sha256(model.id.encode()).hexdigest(),
        "details": details | {"parameter_size": "", "quantization_level": ""},
    }  # fmt: skip


class ModelQuestion(OllamaTranslation):
    """A question about models, which are those of `/v1/models`."""

    NAME: ClassVar[str]
    """For programs, as the next."""
    SUMMARY: ClassVar[str]
    METHOD: ClassVar[str] = "GET"
    """Of Ollama's path."""
    REQUEST: ClassVar[type[msgspec.Struct] | None] = None
    """None = no body."""

    def request(self, body: bytes, unknown: UnknownFields) -> tuple[str, bytes]:
        return MODELS_PATH, b""


class ModelTags(ModelQuestion):
    """`GET /api/tags`: the models that can be asked for."""

    NAME = "ollama_tags"
    SUMMARY = "The models that can be asked for, in Ollama's form"

    def _whole(self, body: bytes) -> Mapping[str, Any]:
        models = msgspec.json.decode(body, type=ListedModels).data
        return {"models": [_named(each) | {"modified_at": timestamp(each.created)} for each in models]}


class Running(ModelQuestion):
    """`GET /api/ps`: the models that are ready."""

    NAME = "ollama_ps"
    SUMMARY = "The models that are ready, in Ollama's form"

    def _whole(self, body: bytes) -> Mapping[str, Any]:
        models = [each for each in msgspec.json.decode(body, type=ListedModels).data if each.state == "ready"]
        return {
            "models": [
                _named(each) | {"expires_at": _NEVER, "size_vram": 0, "context_length": each.max_model_len or 0}
                for each in models
            ]
        }


class Show(ModelQuestion):
    """`POST /api/show`: one model."""

    NAME = "ollama_show"
    SUMMARY = "One model in Ollama's form"
    METHOD = "POST"
    REQUEST = OllamaShowRequest

    def request(self, body: bytes, unknown: UnknownFields) -> tuple[str, bytes]:
        request = decoded(body, OllamaShowRequest, unknown)
        if not (name := request.wanted):
            raise PromptError("model", "model: is missing; send the name of a model")
        return f"{MODELS_PATH}/{name}", b""

    def _whole(self, body: bytes) -> Mapping[str, Any]:
        model = msgspec.json.decode(body, type=ListedModel)
        info: dict[str, Any] = {"general.architecture": _ARCHITECTURE, "general.basename": model.id}
        if model.max_model_len is not None:
            info[f"{_ARCHITECTURE}.context_length"] = model.max_model_len
        return {
            "modelfile": f"FROM {model.id}\n",
            "parameters": "",
            "template": "",
            "details": _named(model)["details"],
            "model_info": info,
            "capabilities": model.capabilities,
            "modified_at": timestamp(model.created),
        }


class OllamaVersion(ModelQuestion):
    """`GET /api/version`."""

    NAME = "ollama_version"
    SUMMARY = "The version of Ollama's API"

    def _whole(self, body: bytes) -> Mapping[str, Any]:
        return {"version": API_VERSION}


MODEL_QUESTIONS: Mapping[str, type[ModelQuestion]] = {
    "/api/tags": ModelTags,
    "/api/ps": Running,
    "/api/show": Show,
    "/api/version": OllamaVersion,
}
"""By path."""
