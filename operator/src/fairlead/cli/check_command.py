"""`fairlead check`: whether models fit their replicas, before anything is scheduled. Without a cluster: reads
LLMDeployments, profiles, and models' `config.json` where they are at hand."""

import argparse
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
from fairlead.api.llmdeployment import EngineType, InvalidSpec, LLMDeployment, LLMDeploymentSpec, broken_rules
from fairlead.api.schema import InvalidValue, decode
from fairlead.cli.options import UsageError, console_for_words, tell
from fairlead.cli.report_table import facts_table
from fairlead.fit.fit_check import Fit, Verdict, assumed, check, extras, read_shape, size, unreckoned
from fairlead.fit.memory_need import EngineChoice
from fairlead.fit.presets import chart_profiles, config_of
from fairlead.fit.remedies import Remedy, remedies
from fairlead.fit.replica_memory import other_profiles, replica_memory
from fairlead.manifests.source import CannotBuild
from fairlead.operator_settings import OperatorSettings, SettingsError
from fairlead_common.models.load_errors import ModelLoadError
from fairlead_common.models.model_config import ModelConfig
from fairlead_common.models.quantized_checkpoints import MODELOPT_FILE, with_modelopt
from fairlead_common.wire.model_sources import Source, SourceError, folder_name, parse_source

_STDIN = "-"
_CONFIG = "config.json"
_HUB = "https://huggingface.co"
_HUB_SECONDS = 20.0
_LARGEST_CONFIG = 4 * 2**20
"""Bytes; those of models have a few thousand."""
_OF_GGUF = "its weights take about the size of the file, and the engine's log says what is left for the cache"
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
    """Profiles of an operator's settings file or of chart values; None = the chart's default profiles. Raises
    UsageError."""
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
    """A source's parsed `config.json` and its place: the catalogue, a local folder, or downloaded models. Raises
    UsageError where there is none."""
    if (known := config_of(source)) is not None:
        return known, "the catalogue"
    folders = [Path(source.removeprefix("file://"))] if source.startswith("file://") else []
    root = os.environ.get("FAIRLEAD_MODELS_FOLDER") or Path.home() / ".cache" / "fairlead" / "models"
    folders.append(Path(root) / folder_name(source))
    for folder in folders:
        if (folder / _CONFIG).is_file():
            return _of_folder(folder), str(folder)
        if file := next(folder.glob("*.gguf"), None):
            raise UsageError(f"model.source {unreckoned(f'file://{file.absolute()}')}", _OF_GGUF)
    hint = "give its config.json: --config FILE, --config FOLDER"
    if source.startswith("hf://"):
        hint += f", or let the hub be asked: --config {source}"
    raise UsageError(f"model.source {source} is not at hand, so nothing is known of the model", hint)


def read_config(given: str) -> tuple[object, str]:
    """The parsed `config.json` named by `--config`: a file, a folder, or an hf:// source, whose hub is asked. Raises
    UsageError."""
    if problem := unreckoned(given):
        raise UsageError(f"--config {problem}", _OF_GGUF)
    if given.startswith("hf://"):
        return _of_hub(given)
    path = Path(given.removeprefix("file://"))
    try:
        if path.is_dir():
            return _of_folder(path), str(path / _CONFIG)
        return _parsed(path.read_bytes(), str(path)), str(path)
    except OSError as error:
        raise UsageError(f"--config {given}: {error.strerror or error}", "give config.json, or its folder") from error


def _of_folder(folder: Path) -> object:
    """The parsed `config.json`, with the quantisation that a file beside it may state. Raises OSError, UsageError."""
    config = _parsed((folder / _CONFIG).read_bytes(), str(folder / _CONFIG))
    if not (path := folder / MODELOPT_FILE).is_file() or not isinstance(config, Mapping):
        return config
    beside = _parsed(path.read_bytes(), str(path))
    return with_modelopt(config, beside) if isinstance(beside, Mapping) else config


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


_FITS, _DOES_NOT, _CANNOT_KNOW = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f", "--filename", action="append", required=True, metavar="FILE",
        help="LLMDeployments, in one or several documents; - = standard input; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--config", metavar="PLACE",
        help="the model's config.json, its folder, or hf://ORGANISATION/NAME[@REVISION] to ask the hub (HF_ENDPOINT, "
        "HF_TOKEN); where the catalogue and this machine do not have it",
    )  # fmt: skip
    parser.add_argument(
        "--profiles", type=Path, metavar="FILE",
        help="the operator's settings, or values of the chart, with `profiles:` (default: the chart's)",
    )  # fmt: skip
    parser.add_argument("-o", "--output", choices=["json"], help="for other programs (default: tables)")


def run(args: argparse.Namespace) -> int:
    """0 where all fit that are checked; 1 where one does not; 2 for bad input, and where nothing can be known."""
    try:
        settings = read_settings(args.profiles)
        deployments = read_deployments(args.filename)
        given = None if args.config is None else read_config(args.config)
        if given is not None and len({each.spec.model.source for each in deployments}) > 1:
            raise UsageError("--config is of one model, and there are several", "check them one by one")
    except UsageError as error:
        tell(error)
        return _CANNOT_KNOW
    told: list[dict[str, Any]] = []
    worst = _FITS
    for deployment in deployments:
        if (server := deployment.spec.engine.type) is not EngineType.FAIRLEAD:
            sentence = f"engine.type is {server}, which lays out memory its own way; without it, our engine is checked"
            if args.output == "json":
                told.append(_identity(deployment) | {"fits": None, "verdict": "NotChecked", "message": sentence})
            else:
                console_for_words().print(f"{deployment.metadata.name}: not checked: {sentence}", markup=False)
            continue
        try:
            found, where = _checked(deployment, settings, given)
        except UsageError as error:
            tell(error)
            worst = _CANNOT_KNOW
            continue
        others = remedies(found, other_profiles(deployment, settings))
        worst = max(worst, _status(found))
        if args.output == "json":
            told.append(_as_json(deployment, found, others, where))
        else:
            _print(deployment, found, others, where)
    if args.output == "json":
        print(json.dumps(told, indent=2))
    return worst


def _status(found: Fit) -> int:
    if found.verdict is Verdict.MEMORY_UNKNOWN:
        return _CANNOT_KNOW
    return _FITS if found.verdict is Verdict.FITS else _DOES_NOT


def _checked(
    deployment: LLMDeployment, settings: OperatorSettings, given: tuple[object, str] | None
) -> tuple[Fit, str]:
    """And where the configuration is from. Raises UsageError, naming the field."""
    name = deployment.metadata.name
    if problem := unreckoned(deployment.spec.model.source):
        raise UsageError(f"{name}: model.source {problem}", _OF_GGUF)
    try:
        config, where = given or find_config(deployment.spec.model.source)
        shape = read_shape(config)
        choice, memory = EngineChoice.of(deployment.spec), replica_memory(deployment, settings)
        return check(shape, choice, memory, _draft(choice)), where
    except UsageError as error:
        raise UsageError(f"{name}: {error}", error.hint) from error
    except CannotBuild as error:
        raise UsageError(f"{name}: {error.message}", "--profiles names the operator's settings") from error
    except (ModelLoadError, ValueError) as error:
        raise UsageError(f"{name}: {error}", "nothing can be said of whether it fits") from error


def _draft(choice: EngineChoice) -> ModelConfig | None:
    """The shape of a speculative model; None = no such model, or no config.json at hand."""
    if choice.draft is None:
        return None
    try:
        return read_shape(find_config(choice.draft)[0])
    except UsageError:
        return None
    except ModelLoadError as error:
        raise UsageError(f"engine.speculative.source: {error}", "nothing can be said of whether it fits") from error


def _print(deployment: LLMDeployment, found: Fit, others: tuple[Remedy, ...], where: str) -> None:
    console = console_for_words()
    name, source = deployment.metadata.name, deployment.spec.model.source
    console.print(facts_table(f"{name}: {source}", _rows(found, where)))
    verdict = "fits" if found.verdict is Verdict.FITS else f"does not fit ({found.verdict})"
    if found.verdict is Verdict.MEMORY_UNKNOWN:
        verdict = "cannot be known"
    elif found.verdict is Verdict.FEWER_SEQUENCES:
        verdict = "fits in part (FewerSequences)"
    console.print(f"{name}: {verdict}: {found.message}", markup=False)
    if others:
        console.print("what would fit:", markup=False)
        for remedy in others:
            console.print(f"  spec.{remedy.told}", markup=False)
    for sentence in assumed(found):
        console.print(f"note: {sentence}", markup=False)


def _rows(found: Fit, where: str) -> list[tuple[str, str]]:
    shape, need, choice = found.shape, found.need, found.choice
    each = "" if choice.ranks == 1 else f", on each of {choice.ranks} ranks"
    memory = "not known" if found.memory.per_rank is None else size(found.memory.per_rank)
    rows = [
        ("model", f"{shape.architecture}, {_count(shape.num_parameters)} parameters (config: {where})"),
        ("download", size(shape.stored_bytes)),
        ("memory", f"{memory}, {found.memory.device} ({found.memory.name})"),
        ("weights", f"{size(need.weights)}{each}"),
        *((what, f"{size(number)}{each}") for what, number in extras(need)),
        ("cache of a token", f"{size(need.kv_token)}{each}"),
        ("cache wanted", f"{size(found.wanted_kv)}: {found.sequences} x {found.max_model_len} tokens"),
        ("work space", f"about {size(need.work_space + need.libraries)}"),
    ]
    if found.cache is not None:
        held = f"{found.held_tokens} tokens, {found.held_sequences} x {found.max_model_len}"
        rows.append(("cache there is room for", f"{size(max(0, found.cache))}: {held}"))
    return rows


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 1e9 else f"{number / 1e6:.1f} million"


def _identity(deployment: LLMDeployment) -> dict[str, Any]:
    return {"name": deployment.metadata.name, "source": deployment.spec.model.source}


def _as_json(deployment: LLMDeployment, found: Fit, others: tuple[Remedy, ...], where: str) -> dict[str, Any]:
    """Bytes are one rank's."""
    shape, need = found.shape, found.need
    return _identity(deployment) | {
        "config": where,
        "fits": None if found.verdict is Verdict.MEMORY_UNKNOWN else found.verdict is Verdict.FITS,
        "verdict": str(found.verdict),
        "certain": found.is_certain_no,
        "message": found.message,
        "architecture": shape.architecture,
        "parameters": shape.num_parameters,
        "downloadBytes": shape.stored_bytes,
        "device": str(found.memory.device),
        "memoryBytes": found.memory.per_rank,
        "tensorParallelSize": found.choice.ranks,
        "weightsBytes": need.weights,
        "draftBytes": need.draft,
        "adaptersBytes": need.adapters,
        "kvBytesPerToken": need.kv_token,
        "kvWantedBytes": found.wanted_kv,
        "workSpaceBytes": need.work_space + need.libraries,
        "kvRoomBytes": found.cache,
        "maxModelLen": found.max_model_len,
        "sequences": found.sequences,
        "heldSequences": found.held_sequences,
        "wouldFit": [
            {each.field: each.value for each in remedy.changes} for remedy in others
        ],
        "assumed": list(assumed(found)),
    }  # fmt: skip
