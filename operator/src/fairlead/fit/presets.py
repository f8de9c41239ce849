"""The catalogue: presets of well-known public models, as data (`catalogue.yaml`): source, the fields of `config.json`
that decide on memory, and an engine's settings on a profile of the chart."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fairlead.api import names
from fairlead_common.wire.model_sources import Source, SourceError, parse_source

_DEFAULT_REVISION = "main"
PURPOSES = ("chat", "reasoning", "code", "images", "demo")
"""What a model was made for: reasoning = it writes its thoughts before an answer, images = it reads them, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One model, ready to be served."""

    name: str
    """Also the name of its LLMDeployment."""
    about: str
    source: str
    purpose: str
    """One of PURPOSES."""
    licence: str
    """Its SPDX identifier, or the name that the makers give it."""
    gated: bool
    """Whether the hub requires accepted terms, and so a token."""
    parameters: int
    """As published, of what is loaded: without an image tower that the engine leaves out."""
    profile: str
    engine: Mapping[str, Any]
    """Of `spec.engine`."""
    memory: str
    """Memory of a GPU or container for one sequence of the longest context (a quantity)."""
    config: Mapping[str, Any]
    """Of `config.json`, what decides on memory."""

    def deployment(self) -> dict[str, Any]:
        """An LLMDeployment to be applied."""
        model: dict[str, Any] = {"source": self.source}
        if self.gated:
            model["credentials"] = {"secretName": "hub"}
        spec: dict[str, Any] = {"model": model, "resources": {"profile": self.profile}}
        if self.engine:
            spec["engine"] = dict(self.engine)
        return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": self.name}, "spec": spec}


@cache
def presets() -> Mapping[str, Preset]:
    """All, by name. Do not change the result."""
    return {
        name: Preset(name=name, gated=bool(each.pop("gated", False)), engine=each.pop("engine", {}), **each)
        for name, each in _read("catalogue.yaml").items()
    }


@cache
def chart_profiles() -> Mapping[str, Mapping[str, Any]]:
    """The chart's default profiles beyond the operator's own, by name, as in a settings file. Do not change the
    result."""
    return _read("chart_profiles.yaml")


def config_of(source: str) -> Mapping[str, Any] | None:
    """The catalogue's entry for a source; None = another model, another revision than the default one, or a GGUF file
    of a source."""
    try:
        wanted = _model(parse_source(source))
    except SourceError:
        return None
    return next((each.config for each in presets().values() if _model(parse_source(each.source)) == wanted), None)


def _read(file: str) -> dict[str, Any]:
    text = (Path(__file__).parent / file).read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found


def _model(source: Source) -> tuple[str, str, str | None, str | None]:
    revision = source.revision or _DEFAULT_REVISION if source.scheme == "hf" else source.revision
    return source.scheme, source.model_id.lower(), revision, source.variant
