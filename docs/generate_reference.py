"""Writes `docs/reference/` from the code: flags, settings, fields, conditions, metrics and endpoints, as they are.

`make reference` calls it, and `tests/test_reference.py` compares. Every text has its one source beside what it
describes (a field's docstring, a metric's help); anything without a text is refused by name, so nothing can go
undocumented. This and `generate_openapi.py` are the only code that imports both the control plane and the engine.
"""

import argparse
import asyncio
import itertools
import json
import re
import textwrap
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import yaml
from aiohttp.web import AbstractResource
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fairlead.api import names
from fairlead.api.conditions import ConditionType, Reason
from fairlead.api.schema import JsonSchema, schema_of
from fairlead.controller.observe import Cluster
from fairlead.controller.operator_metrics import OperatorMetrics, health_app
from fairlead.controller.reconcile import ReconcileOutcome
from fairlead.controller.start_stages import StartStage
from fairlead.gateway.dispatch.admission import Shared
from fairlead.gateway.dispatch.pools import Pools
from fairlead.gateway.dispatch.refusals import QueueOutcome
from fairlead.gateway.gateway_command import add_arguments as add_gateway_arguments
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.observation import Observation
from fairlead.gateway.openai.document import PATH_DOCUMENT
from fairlead.gateway.openai.errors import RequestOutcome
from fairlead.gateway.openai.routes import CONTROL_PATHS, INFERENCE_PATHS, INJECT_PATH, MODELS_PATH, PROBES
from fairlead.gateway.openai.sse import Usage
from fairlead.gateway.prompts.reader import PromptReader, ReadPrompt
from fairlead.gateway.prompts.tokenizers import Tokenizers
from fairlead.gateway.telemetry.gateway_metrics import Metrics as GatewayMetrics
from fairlead.operator_settings import BUILT_IN_PROFILES, OperatorSettings, Profile
from fairlead.routing.datastore import Datastore
from fairlead.routing.queue import Ticket
from fairlead.routing.replica import Decision, Replica
from fairlead_engine.__main__ import build_parser
from fairlead_engine.config import CharacteriseConfig, EngineConfig, ServerConfig
from fairlead_engine.errors import ModelLoadReason
from fairlead_engine.front.front_config import FrontConfig
from fairlead_engine.parameters import By, Declared, declared
from fairlead_engine.server.app import build_app
from fairlead_engine.server.engine_stream import EngineStream
from fairlead_engine.server.lifecycle import Lifecycle
from fairlead_engine.server.metrics import OURS, VLLM
from fairlead_engine.server.metrics import Metrics as EngineMetrics
from fairlead_engine.server.refusals import Outcome
from fairlead_engine.server.schemas import ENDPOINTS
from fairlead_engine.server.service import Service
from fairlead_engine.types import NO_LOAD, FinishReason, SamplingParams
from fairlead_engine_testing.scripted_engine import ScriptedEngine
from fairlead_local.crd import object_schema
from fairlead_protocol.docstrings import docstrings
from fairlead_protocol.downloads import DownloadProgress, DownloadStage
from fairlead_protocol.http.client import HttpClient
from fairlead_protocol.lanes import Pacer
from fairlead_protocol.messages import StepCost
from fairlead_testing.gateways import make_pool
from fairlead_testing.static_fleet import StaticFleet

FOLDER = Path(__file__).parent / "reference"
TRIED = Path(__file__).parent / "families_tried.json"
CHART = Path(__file__).parent.parent / "charts" / "fairlead"
DURATIONS = "Durations are written as `500ms`, `30s`, `10m`; sizes as `512Mi`, `2Gi`."


class Undocumented(Exception):
    """Something that people can see or set has no text."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes every page into the folder that the command line names. Raises SystemExit for help and wrong usage."""
    parser = argparse.ArgumentParser(description="Writes the reference pages from the code.", allow_abbrev=False)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER, help="default: docs/reference")
    folder: Path = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """File name → its text. Raises Undocumented."""
    chart = (CHART / "values.yaml").read_text(encoding="utf-8")
    subjects = {
        "llmdeployment.md": (
            "LLMDeployment",
            "every field, its default, and the rules between fields",
            llmdeployment(),
        ),
        "conditions.md": ("Conditions", "what `status.conditions` can say, and why", conditions()),
        "engine-flags.md": (
            "Engine flags",
            "`fairlead-engine serve` and `fairlead-engine characterise`",
            engine_flags(),
        ),
        "engine-commands.md": (
            "Commands of the engine",
            "flags of " + ", ".join(f"`{name}`" for name in commands_besides()),
            engine_commands(),
        ),
        "gateway-flags.md": ("Gateway flags", "`fairlead gateway`", gateway_flags()),
        "operator-settings.md": ("Operator settings", "the file of `fairlead operator --settings FILE`", settings()),
        "chart-values.md": ("Values of the chart", "what `helm install --set` can say", chart_values(chart)),
        "request-parameters.md": (
            "Request parameters",
            "every field of a request, its bounds and default, and who acts on it",
            request_parameters(),
        ),
        "families.md": ("Families", "what was tried of each family of models, and what is refused", families()),
        "metrics.md": ("Metrics", "of engine, gateway and operator", asyncio.run(metrics())),
        "http.md": ("HTTP endpoints", "of gateway, engine and operator, and how requests end", http_endpoints()),
    }
    note = "*Generated from the code by `make reference`; do not edit.*"
    index = "\n".join(f"- [{title}]({name}): {summary}" for name, (title, summary, _) in subjects.items())
    texts = {name: f"# {title}\n\n{note}\n\n{body}\n" for name, (title, _, body) in subjects.items()}
    return {
        name: _wrapped(text) for name, text in {"README.md": f"# Reference\n\n{note}\n\n{index}\n", **texts}.items()
    }


def _wrapped(text: str) -> str:
    """With prose of at most 120 columns; a row of a table has to be one line."""

    def lines(line: str) -> list[str]:
        return [line] if line.startswith("|") or not line else textwrap.wrap(line, 120, break_on_hyphens=False)

    return "\n".join(part for line in text.split("\n") for part in lines(line))


def llmdeployment() -> str:
    """The page of the API."""
    schema = object_schema()
    spec = ["Field", "Type", "Default", "Meaning"]
    rows = [[f"`{path}`", *_value(node), _default(node, required), _text(node, path)[0]]
            for path, node, required in _nodes(schema["properties"]["spec"], "spec")]  # fmt: skip
    status = [[f"`{path}`", *_value(node), _text(node, path)[0]]
              for path, node, _ in _nodes(schema["properties"]["status"], "status")]  # fmt: skip
    rules = [list(rule) for rule in _rules(schema, "")]
    return "\n\n".join((
        f"`{names.API_VERSION}`, kind `{names.KIND}`; `kubectl get {names.SHORT_NAME}`. {DURATIONS} "
        "Defaults are the operator's and are not written into objects.",
        "## spec", table(spec, rows),
        "## Rules", "An object that breaks one of these is refused with this sentence.",
        table(["On", "Sentence"], rules),
        "## status", table(["Field", "Type", "Meaning"], status),
    ))  # fmt: skip


def conditions() -> str:
    """The page of condition types and reasons."""
    return "\n\n".join((
        "Every condition is always present. Its `message` is a sentence that says what to do where something can be "
        "done; [the first-model guide](../guides/first-model.md) reads a few.",
        "## Types", members(ConditionType, "Type"),
        "## Reasons", members(Reason, "Reason"),
        "## Reasons of an engine that could not start",
        "The engine's own word and sentence, taken over as they are: "
        + ", ".join(f"`{reason}`" for reason in ModelLoadReason)
        + ", `NotEnoughMemory`, `InvalidConfig`, `AddressUnavailable`.",
    ))  # fmt: skip


def engine_flags() -> str:
    """The page of the engine's flags."""
    parts = ["A setting is a flag (`--max-num-seqs 16`) or a line of the file that `--config` names "
             "(`max-num-seqs: 16`); flags win. Yes-or-no settings are `--name` and `--no-name` as flags. "
             "`serve` takes those of model and server, `characterise` those of the model and its own, `front` its own "
             "alone."]  # fmt: skip
    kinds = (("Model and scheduler", EngineConfig), ("Server", ServerConfig), ("characterise", CharacteriseConfig),
             ("front", FrontConfig))  # fmt: skip
    for title, kind in kinds:
        texts = docstrings(kind)
        rows = []
        for field in fields(kind):
            flag = f"--{field.name.replace('_', '-')}"
            rows.append([f"`{flag}`", *_with_default(texts.get(field.name), field.default, flag)])
        parts += [f"## {title}", table(["Flag", "Default", "Meaning"], rows)]
    return "\n\n".join(parts)


def commands_besides() -> dict[str, tuple[str, argparse.ArgumentParser]]:
    """By name, what `fairlead-engine` does besides what takes a model's settings: a line of it, and its flags."""
    [commands] = [each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction)]
    texts = {each.dest: each.help for each in commands._choices_actions}
    return {
        name: (documented(texts.get(name), name), parser)
        for name, parser in commands.choices.items()
        if name not in ("serve", "characterise")
    }


def engine_commands() -> str:
    """The page of the engine's other commands."""
    parts = ["All of them print `--help`, and end with status 1 where they could not do it, 2 where they were called "
             "wrongly."]  # fmt: skip
    for name, (text, parser) in commands_besides().items():
        actions = [each for each in parser._actions if not isinstance(each, argparse._HelpAction)]
        options, named = [each for each in actions if each.option_strings], [e for e in actions if not e.option_strings]
        usage = [f"fairlead-engine {name}"]
        usage += [f"[{each.metavar} …]" if each.nargs == "*" else str(each.metavar) for each in named]
        usage += [f"{each.option_strings[0]} {each.metavar}" for each in options if each.required]
        rows = [[f"`{_written(each)}`", *_row(each, name)] for each in (*named, *options)]
        parts += [f"## {name}", f"To {text}: `{' '.join(usage)}`. {documented(parser.description, name)}"]
        parts += [table(["Flag", "Default", "Meaning"], rows)]
    return "\n\n".join(parts)


def _written(action: argparse.Action) -> str:
    """As it stands on the command line."""
    return ", ".join(action.option_strings) or str(action.metavar)


def _row(action: argparse.Action, command: str) -> list[str]:
    """Default and meaning."""
    what, choices = f"{command} {_written(action)}", [str(each) for each in action.choices or ()]
    text = re.sub(r"\s*\(default: (.*)\)$", r" Default: \1", documented(action.help, what), flags=re.DOTALL)
    if choices and not all(each in text for each in choices):
        text = f"{text.rstrip('.')}: {', '.join(choices)}"
    is_told = isinstance(action.default, int | float | str) and action.default != argparse.SUPPRESS
    default = action.default if is_told else None
    found, meaning = _with_default(text, default, what)
    if action.required and action.nargs != "*":  # of which argparse says that it is required
        return ["*required*", meaning]
    return ["" if action.nargs == 0 else found, meaning]


def gateway_flags() -> str:
    """The page of the gateway's flags."""
    parser, texts = argparse.ArgumentParser(add_help=False), docstrings(GatewaySettings)
    add_gateway_arguments(parser)
    defaults = {field.name: field.default for field in fields(GatewaySettings)}
    rows = []
    for action in parser._actions:
        text = texts.get(action.dest) or re.sub(r" \(default: .*\)$", "", action.help or "")
        default = defaults.get(action.dest, action.default)
        rows.append([f"`{action.option_strings[0]}`", *_with_default(text, default, action.dest)])
    units = "Times are seconds (also as `500ms`, `3s`, `15m`), sizes bytes (also as `16Mi`)."
    return f"{units}\n\n" + table(["Flag", "Default", "Meaning"], rows)


def settings() -> str:
    """The page of the operator's settings."""
    parts = [f"A YAML file; unknown keys and bad values are refused by name. {DURATIONS}"]
    for title, kind in (("Settings", OperatorSettings), ("A profile", Profile)):
        schema = schema_of(kind)
        rows = [[f"`{key}`", *_value(node), _default(node, False), _text(node, key)[0]]
                for key, node in schema["properties"].items()]  # fmt: skip
        parts += [f"## {title}", table(["Key", "Type", "Default", "Meaning"], rows)]
    built_in = [[f"`{name}`", _quantities(profile.requests), _quantities(profile.limits)]
                for name, profile in BUILT_IN_PROFILES.items()]  # fmt: skip
    return "\n\n".join((*parts, "## Built-in profiles", table(["Profile", "Requests", "Limits"], built_in)))


def chart_values(text: str) -> str:
    """The page of the Helm chart's values, from its values.yaml and the comments there."""
    sections: dict[str, list[list[str]]] = {}
    for path, comment, value in commented_values(text):
        sections.setdefault(path.split(".")[0] if "." in path else "", []).append(
            [f"`{path}`", _yaml_default(value), documented(comment, f"the chart's value {path}")]
        )
    values = yaml.safe_load(text)
    profiles = [[f"`{name}`", _quantities(profile.get("requests", {})), _quantities(profile.get("limits", {})),
                 _quantities(profile.get("nodeSelector", {})), profile.get("runtimeClassName", "")]
                for name, profile in values["profiles"].items()]  # fmt: skip
    head = ["Value", "Default", "Meaning"]
    parts = ["`charts/fairlead/values.yaml` has them all, `charts/fairlead/values.schema.json` refuses what is not "
             "here by name, and [the installation guide](../kubernetes.md) says which are worth changing."]  # fmt: skip
    for section, rows in sorted(sections.items()):
        parts += [f"## {section}" if section else "## General", table(head, rows)]
    profile_head = ["Profile", "Requests", "Limits", "Nodes", "RuntimeClass"]
    return "\n\n".join((*parts, "## The chart's profiles", table(profile_head, profiles)))


def request_parameters() -> str:
    """The page of what clients may send, from where each parameter is declared."""
    found: dict[tuple[str, ...], list[str]] = {}
    for endpoint, schema in ENDPOINTS.items():
        sampling = {each.name: each for each in declared(SamplingParams)}
        for each in declared(schema):
            default = sampling[each.name].default if each.name in sampling else each.default
            row = (each.name, worded(each.type), _accepted(each), _written_default(each, default),
                   str(each.parameter.by), each.parameter.text)  # fmt: skip
            if each.parameter.by is not By.NOBODY:
                documented(each.parameter.text, f"the parameter {each.name} of {endpoint}")
            found.setdefault(row, []).append(endpoint)
    rows = [[f"`{row[0]}`", ", ".join(of), *row[1:]] for row, of in found.items()]
    return "\n\n".join((
        "[The API](../api.md) has examples and the rules that hold for all of them. *By*: who acts on it. *gateway* = "
        "it decides about routing, waiting or tokenising, and the engine gets it too; *nobody* = it is taken because "
        "clients send it, and changes nothing; *refused* = answered 400 with what to do instead, but for the values "
        "that change nothing.",
        table(["Parameter", "Of", "Type", "Accepted", "Default", "By", "What it does"],
              sorted(rows, key=lambda row: (list(By).index(By(row[5])), row[4] != "needed"))),
        "Fields that begin with `fairlead_` are between gateways and engines; a gateway drops them when a client sends "
        "them.",
    ))  # fmt: skip


def families() -> str:
    """The page of what families of models can do, from the record of what was tried."""
    record = json.loads(TRIED.read_text(encoding="utf-8"))
    columns = list(dict.fromkeys(column for each in record.values() for column in each["found"]))
    rows = []
    refused: dict[tuple[int, str], dict[str, list[str]]] = {}
    for each in record.values():
        name, cells = f"`{each['architecture']}`", ["not tried"] * len(columns)
        for column, found in each["found"].items():
            place = columns.index(column)
            cells[place] = ", ".join(way for way, refusal in found.items() if refusal is None) or "no"
            for way, refusal in found.items():
                if refusal is not None:
                    refused.setdefault((place, refusal), {}).setdefault(name, []).append(way)
        rows.append([f"{name} {each.get('stands_for', '')}".strip(), *cells])
    refusals = []
    for (place, sentence), of in sorted(refused.items(), key=lambda item: item[0][0]):
        by = "; ".join(f"{', '.join(names)}: {', '.join(ways)}" for ways, names in _by_ways(of))
        refusals.append([columns[place], by, sentence])
    return "\n\n".join((
        "Every cell was found by doing it, on a CPU, with a tiny model of random weights in Hugging Face's layout; "
        "tests do it again and compare. `make families` tries all of it and notes it in `docs/families_tried.json`.",
        "- *Number formats*: `float32` tells transformers' log-probabilities; in another format the mean error is at "
        "most twice the one that transformers has in it. `float16` is computed on GPUs alone.\n"
        "- *LoRA*: an adapter of those layers tells what a model tells that has it merged into its weights.\n"
        "- *Tools*: a call that is written as the chat templates of the family's models write it is told from the "
        "text, by the format of this name, which such a template selects. `--tool-call-parser` sets another.\n"
        "- *Speculative*: guesses by n-grams, a draft model, Medusa's heads and an EAGLE-3 head leave greedy answers "
        "as they are.\n"
        "- *Quantised*: formats that weights are rounded to while they are loaded; errors stay within bounds.",
        table(["Architecture", *columns], rows),
        "## What is refused", "Nothing of this is ignored in silence: it ends with this sentence.",
        table(["Of", "By", "What the engine says"], refusals),
        "The same architectures with a classifier (`…ForSequenceClassification`), stored quantised, or in GGUF files: "
        "[Serve your own model](../guides/first-model.md).",
    ))  # fmt: skip


def _by_ways(found: dict[str, list[str]]) -> Iterator[tuple[list[str], list[str]]]:
    """Ways, and those that have all of them."""
    by_ways: dict[tuple[str, ...], list[str]] = {}
    for name, ways in found.items():
        by_ways.setdefault(tuple(ways), []).append(name)
    yield from ((list(ways), names) for ways, names in by_ways.items())


def worded(kind: Any) -> str:
    """A parameter's type in a word or two; None says nothing, as everything optional may be null."""
    origin = get_origin(kind)
    if origin is Annotated:
        return worded(get_args(kind)[0])
    if origin in (Union, types.UnionType):
        return " or ".join(worded(each) for each in get_args(kind) if each is not type(None))
    if origin is list:
        of = worded(get_args(kind)[0])
        return "list" if of == "any" else f"list of {of}s"
    words = {bool: "boolean", int: "integer", float: "number", str: "string", Any: "any"}
    return words.get(kind, "object")


def _accepted(each: Declared) -> str:
    parameter = each.parameter
    bounds = f"{parameter.low:g} to {parameter.high:g} each" if worded(each.type) == "object" and parameter.low else ""
    if parameter.accepted:
        return parameter.accepted
    if parameter.one_of:
        return " or ".join(f'`"{value}"`' for value in parameter.one_of)
    if parameter.only is not None:
        return f"only `{parameter.only}`"
    if parameter.most is not None:
        longest = f"of at most {parameter.longest} characters each" if parameter.longest else ""
        unit = "items" if parameter.unit in ("ids", "texts") else parameter.unit
        return ", ".join(part for part in (f"at most {parameter.most} {unit}", longest, bounds) if part)
    if parameter.low is not None and parameter.high is not None:
        return f"{'above ' if parameter.above else ''}{_number(parameter.low)} … {_number(parameter.high)}"
    parts = (each.type, *(part for part in get_args(each.type) if get_origin(part) is Annotated))
    metas = [meta for part in parts for meta in get_args(part) if isinstance(meta, msgspec.Meta)]
    for meta in metas:
        if meta.max_length is not None:
            units = {"string": "characters", "object": "entries"}
            return f"at most {meta.max_length} {units.get(worded(each.type), 'items')}"
        if meta.ge is not None and meta.le is not None:
            return f"{_number(meta.ge)} … {_number(meta.le)}"
    return ""


def _number(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)


def _written_default(each: Declared, default: Any) -> str:
    if each.parameter.default or default is msgspec.NODEFAULT:
        return each.parameter.default or "needed"
    if isinstance(default, bool):
        return str(default).lower()
    return _number(default) if isinstance(default, int | float) else "–"


def commented_values(text: str) -> Iterator[tuple[str, str, Any]]:
    """Path, comment and default of every value of a values.yaml.

    A comment stands above its key, as indented as it. A map without a comment inside is one value.
    """
    lines = text.splitlines()

    def comment(key: yaml.ScalarNode) -> str:
        found: list[str] = []
        before = reversed(lines[: key.start_mark.line])
        for line in itertools.takewhile(lambda line: line.startswith(" " * key.start_mark.column + "# "), before):
            found.insert(0, line.strip(" #"))
        return " ".join(found)

    def walk(node: yaml.MappingNode, path: str) -> Iterator[tuple[str, str, Any]]:
        for key, value in node.value:
            here = f"{path}{key.value}"
            if isinstance(value, yaml.MappingNode) and any(comment(child) for child, _ in value.value):
                yield from walk(value, f"{here}.")
            else:
                yield here, comment(key), yaml.SafeLoader("").construct_document(value)

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    yield from walk(root, "")


def _yaml_default(value: Any) -> str:
    """A default as it is written in YAML on one line; a long one has a table of its own."""
    written = yaml.safe_dump(value, default_flow_style=True, width=1000, sort_keys=False)
    written = written.removesuffix("\n...\n").strip()
    return f"`{written}`" if len(written) <= 100 else "below"


async def metrics() -> str:
    """The page of metrics: what scrapes of three busy programs show."""
    engine = _families(_engine_scrape())
    ours = [family for family in engine if not family[0].startswith(VLLM)]
    aliases = {family[0].removeprefix(VLLM) for family in engine} & {family[0].removeprefix(OURS) for family in ours}
    rows = [[*family, f"`{VLLM}{family[0].removeprefix(OURS)}`" if family[0].removeprefix(OURS) in aliases else ""]
            for family in ours]  # fmt: skip
    head = ["Metric", "Type", "Labels", "Meaning"]
    return "\n\n".join((
        "Prometheus' text format at `/metrics`: port 8000 of an engine, the control port of a gateway, the operator's "
        "port. Histograms have `_bucket`, `_sum` and `_count`. On Linux gateway and operator also tell what their "
        "processes cost, as `fairlead_gateway_process_…` and `fairlead_operator_process_…`: `cpu_seconds_total`, "
        "`resident_memory_bytes`, `open_fds` and what else Prometheus' clients tell of a process.",
        "## Engine", "The same figures under vLLM's names serve dashboards that know those.",
        table([*head, "vLLM's name"], [[f"`{row[0]}`", *row[1:]] for row in rows]),
        "## Gateway", table(head, [[f"`{name}`", *rest] for name, *rest in _families(_gateway_scrape())]),
        "## Operator", table(head, [[f"`{name}`", *rest] for name, *rest in _families(_operator_scrape())]),
    ))  # fmt: skip


def _engine_scrape() -> str:
    load = msgspec.structs.replace(NO_LOAD, step_cost=StepCost(base=0.001), num_accepted_per_position=(1,))
    engine = ScriptedEngine(load=load)
    seen = EngineMetrics("model")
    seen.watch(engine, EngineStream(engine, Lifecycle()), engine.info)
    seen.queued(0.0)
    seen.first_token(0.0)
    seen.tokens(1, 0.0)
    seen.finished(FinishReason.STOP, 0.0)
    seen.answered(Outcome.OK)
    return seen.render().decode()


def _gateway_scrape() -> str:
    limits = GatewaySettings()
    replica = Replica(uid="uid", name="replica", host="127.0.0.1", port=8000, digest="digest")
    datastore, tokenizers = Datastore(), Tokenizers()
    reader = PromptReader(tokenizers, Pacer())
    shared = Shared(limits, "gateway", datastore, tokenizers, reader)
    pools = Pools(lambda *_: StaticFleet([make_pool([replica])]), shared, HttpClient())
    seen = GatewayMetrics(pools, datastore, reader)
    request = Observation("id", "/v1/completions", observers=(seen,), client="client", stream=True, usage=Usage())
    decision = Decision(replica, "", cached_tokens=0, uncached_tokens=0, predicted_ttft_seconds=0.0)
    request.ticket = Ticket(1, 0)
    request.ticket.foresee(0.0, request.arrived)
    request.routed(decision, ReadPrompt())
    request.first_token()
    request.ended(200)
    seen.connections.labels("clients")
    seen.attempt_failed(request, "engine_full")
    seen.injected(200)
    return seen.exposition().decode()


def _operator_scrape() -> str:
    seen = OperatorMetrics()
    seen.observe(ReconcileOutcome(next(iter(ReconcileOutcome))), 0.0)
    seen.recommended("namespace/name", desired=1, wanted=1)
    seen.scaled("namespace/name", 0, 1)
    seen.watch_fleet(_cluster_of_one())
    return generate_latest(seen.registry).decode()


def _cluster_of_one() -> Cluster:
    """One LLMDeployment of which everything is known."""
    targets = {"queueDepth": 1, "timeToFirstToken": "1s"}
    body = {
        "metadata": {"name": "name", "namespace": "namespace", "uid": "uid", "generation": 1,
                     "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"model": {"source": "demo://dinghy"}, "autoscaling": {"maxReplicas": 1, "targets": targets}},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "ReplicasReady"}],
                   "startup": dict.fromkeys(StartStage, "1s"),
                   "scaling": {"signals": {"ttft": "1s"}, "coldStart": "1s"}},
    }  # fmt: skip
    pod = {"metadata": {"name": "pod", "uid": "pod"}}
    progress = DownloadProgress(source="hf://org/name", stage=DownloadStage.DOWNLOADING, bytes=1, total_bytes=2)
    cluster = Cluster(None, downloads=lambda: {"pod": progress})
    key = ("namespace", "name")
    cluster.bind({"llmdeployments": {key: [body]}, "children": {}, "pods": {key: [pod]}, "name_claims": {}})
    return cluster


def _families(scrape: str) -> list[list[str]]:
    """Name, type, labels and help of every metric of a scrape, by name."""
    found = []
    for family in sorted(text_string_to_metric_families(scrape), key=lambda family: family.name):
        if family.name.endswith("_created") or "_process_" in family.name:
            continue
        if not family.samples:
            raise Undocumented(f"{family.name} has no sample here, so its labels cannot be told")
        labels = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
        name = family.name + ("_total" if family.type == "counter" else "")
        text = documented(family.documentation, name)
        found.append([name, family.type, ", ".join(f"`{label}`" for label in labels), text.rstrip(".") + "."])
    return found


def http_endpoints() -> str:
    """The page of endpoints."""
    engine = build_app(Service("model", ScriptedEngine(), ServerConfig())).openapi()["paths"]
    operations = [[f"`{method.upper()}`", f"`{path}`", _summary(operation, path)]
                  for path, methods in engine.items() for method, operation in methods.items()]  # fmt: skip
    operations += [["`GET`", f"`{PATH_DOCUMENT}`", "All of this as OpenAPI."]]
    summaries = {path: _summary(engine[path]["post"], path) for path in sorted({*INFERENCE_PATHS, INJECT_PATH})}
    gateway = [["`POST`", f"`{path}`", f"{text} Forwarded to an engine."] for path, text in summaries.items()]
    gateway += [["`GET`", f"`{MODELS_PATH}`", "The models that are served."],
                ["`GET`", f"`{MODELS_PATH}/{{name}}`", "The model of this name."],
                ["", "`/{namespace}/{name}` before any of these",
                 "The same for this LLMDeployment; `Host: {name}.{namespace}` says it, too."],
                ["`GET`", f"`{PATH_DOCUMENT}`", "All of this, with bodies and errors, as OpenAPI."]]  # fmt: skip
    head = ["Method", "Path", "What it does"]
    outcomes = [[f"`{outcome.label}`", str(outcome.http_status), docstrings(QueueOutcome)[outcome.name]]
                for outcome in QueueOutcome]  # fmt: skip
    outcomes += [[f"`{outcome}`", "", docstrings(RequestOutcome)[outcome.name]] for outcome in RequestOutcome]
    return "\n\n".join((
        "## Gateway, for clients", table(head, gateway + _probes(PROBES)),
        "## Gateway, control port", table(head, _probes(CONTROL_PATHS)),
        "## Gateway: how requests end",
        "The outcomes in metrics and log lines; those of the queue are also the error's `code`, with this status. 429 "
        "means try later, 503 that nothing can serve this now; both come with `retry-after` where waiting helps.",
        table(["Outcome", "Status", "Meaning"], outcomes),
        "## Engine", "[The model-server protocol](../model-server-protocol.md) has the messages.",
        table(head, operations),
        "## Operator", table(head, list(_operator_endpoints())),
    ))  # fmt: skip


def _operator_endpoints() -> Iterator[list[str]]:
    for resource in health_app(OperatorMetrics()).router.resources():
        assert isinstance(resource, AbstractResource)
        handler = next(iter(resource)).handler
        yield ["`GET`", f"`{resource.canonical}`", documented(handler.__doc__, resource.canonical)]


def _probes(paths: Any) -> list[list[str]]:
    return [["`GET`", f"`{path}`", text] for path, text in paths.items()]


def _summary(operation: Any, path: str) -> str:
    text = documented(operation.get("description") or operation.get("summary"), path)
    return " ".join(text.split()).rstrip(".") + "."


def members(kind: Any, title: str) -> str:
    """The table of an enum's members."""
    texts = docstrings(kind)
    return table([title, "Meaning"], [[f"`{member}`", documented(texts.get(member.name), member)] for member in kind])


def _nodes(schema: JsonSchema, path: str) -> Iterator[tuple[str, JsonSchema, bool]]:
    """Every field below: path, schema, whether it is required."""
    for key, node in schema.get("properties", {}).items():
        yield f"{path}.{key}", node, key in schema.get("required", ())
        yield from _nodes(node, f"{path}.{key}")
        yield from _nodes(node.get("items", {}), f"{path}.{key}[]")


def _rules(schema: JsonSchema, path: str) -> Iterator[tuple[str, str]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield f"`{path}`" if path else "the object", rule["message"]
    for key, node in schema.get("properties", {}).items():
        here = f"{path}.{key}" if path else key
        yield from _rules(node, here)
        yield from _rules(node.get("items", {}), f"{here}[]")


def _value(node: JsonSchema) -> list[str]:
    """What may be written, in a word or two."""
    if "enum" in node:
        return [" · ".join(f"`{value}`" for value in node["enum"])]
    if "x-kubernetes-int-or-string" in node:
        return ["quantity"]
    if node.get("type") == "array":
        return [f"list of {_value(node['items'])[0]}s"]
    if "additionalProperties" in node:
        return [f"map to {_value(node['additionalProperties'])[0]}"]
    if node.get("type") == "string" and "ms" in node.get("pattern", ""):
        return ["duration"]
    least, most = node.get("minimum"), node.get("maximum")
    if least is None:
        return [node["type"]]
    return [f"{node['type']}, {least} or more" if most is None else f"{node['type']}, {least} to {most}"]


def _text(node: JsonSchema, what: str) -> tuple[str, str]:
    """What a description says: the meaning, and the default ("" = none)."""
    text = documented(node.get("description"), what)
    match = re.fullmatch(r"(.+?)[;.]?\s*(?:[Dd]efault: |None = )(.+?)\.?", text, re.DOTALL)
    meaning, default = (match[1], match[2]) if match else (text, "")
    return meaning[0].upper() + meaning[1:].rstrip(".") + ".", default


def _default(node: JsonSchema, required: bool) -> str:
    return "*required*" if required else _text({"description": "?"} | node, "")[1]


def _with_default(text: str | None, default: Any, what: str) -> list[str]:
    """Default and meaning of a flag: the value itself, or what its text says of None."""
    meaning, says = _text({"description": text}, what)
    if default is None or not isinstance(default, int | float | str):
        return [says or ("" if default is None else "*required*"), meaning]
    written = f"{default:g}" if isinstance(default, float) else str(default)
    written = written.lower() if isinstance(default, bool) else written
    return [f"`{written}`", meaning]


def _quantities(quantities: Any) -> str:
    return ", ".join(f"{name} {quantity}" for name, quantity in quantities.items())


def documented(text: str | None, what: Any) -> str:
    """The text. Raises Undocumented, naming what lacks one."""
    if not text or not text.strip():
        raise Undocumented(f"{what} has no description: write one beside it, in the code")
    return text


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )


if __name__ == "__main__":
    main()
