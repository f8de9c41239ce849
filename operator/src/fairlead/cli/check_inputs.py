"""What `fairlead check` reads: LLMDeployments, profiles, and a model's `config.json`, wherever that is at hand."""

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from fairlead.api import names
from fairlead.api.decoding import InvalidValue, decode
from fairlead.api.llmdeployment import InvalidSpec, LLMDeployment, LLMDeploymentSpec, broken_rules
from fairlead.cli.options import UsageError
from fairlead.fit.presets import chart_profiles, config_of
from fairlead.operator_settings import OperatorSettings, SettingsError
from fairlead_protocol.model_sources import Source, SourceError, folder_name, parse_source

_STDIN = "-"
_CONFIG = "config.json"
_HUB = "https://huggingface.co"
_HUB_SECONDS = 20.0
_LARGEST_CONFIG = 4 * 2**20
"""Bytes; those of models have a few thousand."""
_SCHEMA = "apiVersion: fairlead.dev/v1alpha1, kind: LLMDeployment"


def read_deployments(files: list[str]) -> list[LLMDeployment]:
    """Every LLMDeployment of these files; other kinds are passed over. Raises UsageError, naming file and field."""
    found = [deployment for file in files for deployment in _of_file(file)]
    if not found:
        raise UsageError(f"there is no LLMDeployment in {', '.join(files)}", f"write one: {_SCHEMA}")
    return found


def _of_file(file: str) -> Iterator[LLMDeployment]:
    try:
        text = sys.stdin.read() if file == _STDIN else Path(file).read_text(encoding="utf-8")
        documents = list(yaml.safe_load_all(text))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # ValueError: also of a date that is none
        raise UsageError(f"{file} cannot be read: {error}", "give a YAML file, or - for standard input") from error
    for document in documents:
        items = (
            document.get("items") if isinstance(document, Mapping) and document.get("kind") == "List" else [document]
        )
        for each in items if isinstance(items, list) else ():
            if each is not None and not isinstance(each, Mapping):
                raise UsageError(f"{file}: a document is no object", f"write one: {_SCHEMA}")
            if each and each.get("kind") == names.KIND:
                yield _decoded(file, each)


def _decoded(file: str, document: Mapping[str, Any]) -> LLMDeployment:
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    name, spec = str(metadata.get("name") or ""), document.get("spec")
    if not name:
        raise UsageError(f"{file}: metadata.name: Required value", "name the LLMDeployment")
    stamped = {"namespace": "default", "uid": "", "creationTimestamp": "1970-01-01T00:00:00Z"} | dict(metadata)
    body = {"metadata": stamped, "spec": spec if isinstance(spec, Mapping) else {}}
    hint = "`kubectl explain llmdeployment.spec` lists the fields"
    try:
        deployment = LLMDeployment.from_body(body)
        decode(LLMDeploymentSpec, body["spec"], "spec", strict=True)  # a misspelt field would change nothing
    except (InvalidSpec, InvalidValue) as error:
        raise UsageError(f"{file}: {name}: {error}", hint) from error
    if broken := broken_rules(body):
        raise UsageError(f"{file}: {name}: {'; '.join(each.message for each in broken)}", hint)
    return deployment


def read_settings(file: Path | None) -> OperatorSettings:
    """Of a settings file of the operator, or values of the chart, of which the profiles count; without one, the chart's
    default profiles. Raises UsageError."""
    if file is None:
        return OperatorSettings.from_mapping({"profiles": chart_profiles(), "allowFileSources": True})
    try:
        raw = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        if not isinstance(raw, Mapping):
            raise SettingsError("file", "is not a mapping", "write `key: value` lines")
        profiles = raw.get("profiles") or {}
        if isinstance(profiles, Mapping):  # null takes one out of the chart's
            profiles = {str(name): _texts(each) for name, each in profiles.items() if each is not None}
        kept = {"profiles": profiles, "allowFileSources": True}
        if raw.get("defaultProfile") is not None:
            kept["defaultProfile"] = raw["defaultProfile"]
        return OperatorSettings.from_mapping(kept)
    except SettingsError as error:
        raise UsageError(f"{file}: {error.name}: {error.message}", error.hint) from error
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"--profiles {file} cannot be read: {error}", "give a YAML file with `profiles:`") from error


def _texts(profile: Any) -> Any:
    """Quantities as text, as the chart makes them."""
    if not isinstance(profile, Mapping):
        return profile

    def text(value: Any) -> Any:
        return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value

    kept = {key: text(value) for key, value in profile.items() if value is not None}
    for key in ("requests", "limits"):
        if isinstance(kept.get(key), Mapping):
            kept[key] = {name: text(value) for name, value in kept[key].items()}
    return kept


def find_config(source: str) -> tuple[object, str]:
    """The parsed `config.json` of a source that is at hand, and where it was found: in the catalogue, in a folder of
    this machine, or among downloaded models. Raises UsageError where it is not."""
    if (known := config_of(source)) is not None:
        return known, "the catalogue"
    folders = [Path(source.removeprefix("file://"))] if source.startswith("file://") else []
    root = os.environ.get("FAIRLEAD_MODELS_FOLDER") or Path.home() / ".cache" / "fairlead" / "models"
    folders.append(Path(root) / folder_name(source))
    for folder in folders:
        if (folder / _CONFIG).is_file():
            return _parsed((folder / _CONFIG).read_bytes(), str(folder / _CONFIG)), str(folder)
    hint = "give its config.json: --config FILE, --config FOLDER"
    if source.startswith("hf://"):
        hint += f", or let the hub be asked: --config {source}"
    raise UsageError(f"model.source {source} is not at hand, so nothing is known of the model", hint)


def read_config(given: str) -> tuple[object, str]:
    """The parsed `config.json` that `--config` names: a file, a folder, or an hf:// source whose hub is asked. Raises
    UsageError."""
    if given.startswith("hf://"):
        return _of_hub(given)
    path = Path(given.removeprefix("file://"))
    path = path / _CONFIG if path.is_dir() else path
    try:
        return _parsed(path.read_bytes(), str(path)), str(path)
    except OSError as error:
        raise UsageError(f"--config {given}: {error.strerror or error}", "give config.json, or its folder") from error


def _of_hub(source: str) -> tuple[object, str]:
    try:
        url = _hub_url(parse_source(source))
    except SourceError as error:
        raise UsageError(f"--config: {error}", "as in hf://Qwen/Qwen3-8B") from error
    request = urllib.request.Request(url)
    if token := os.environ.get("HF_TOKEN"):
        request.add_unredirected_header("Authorization", f"Bearer {token}")  # the hub's alone, wherever it sends us
    try:
        with urllib.request.urlopen(request, timeout=_HUB_SECONDS) as answer:
            return _parsed(answer.read(_LARGEST_CONFIG), url), url
    except urllib.error.HTTPError as error:
        hint = {401: "set HF_TOKEN", 403: "set HF_TOKEN, and accept the model's terms on its page"}.get(
            error.code, "see organisation, name and revision"
        )
        raise UsageError(f"{url} answered {error.code} {error.reason}", hint) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{url} cannot be asked: {error}", "HF_ENDPOINT names a mirror") from error


def _hub_url(source: Source) -> str:
    endpoint = (os.environ.get("HF_ENDPOINT") or _HUB).rstrip("/")
    return f"{endpoint}/{source.model_id}/resolve/{source.revision or 'main'}/{_CONFIG}"


def _parsed(content: bytes, where: str) -> object:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is no JSON: {error}", "give a model's config.json") from error
