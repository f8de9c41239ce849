"""The page of HTTP endpoints, from the routes of the programs."""

from collections.abc import Iterator
from typing import Any

from aiohttp.web import AbstractResource
from generate_openapi import own_summary

from fairlead.controller.operator_metrics import OperatorMetrics, health_app
from fairlead.gateway.model_states import PATH_STATES
from fairlead.gateway.openai.errors import QueueOutcome, RequestOutcome
from fairlead.gateway.openai.routes import (
    CONTROL_PATHS,
    INFERENCE_PATHS,
    INJECT_PATH,
    PATH_DOCUMENT,
    PROBES,
)
from fairlead_common.openai.translate.messages_models import MODELS_PATH
from fairlead_common.openai.translate.ollama_models import MODEL_QUESTIONS
from fairlead_common.settings import docstrings
from fairlead_common.wire.own_paths import ALL_OWN_PATHS
from fairlead_engine.api.service import Service
from fairlead_engine.config import ServerConfig
from fairlead_engine.server.app import build_app
from fairlead_engine_testing.scripted_engine import ScriptedEngine
from reference_pages.tables import documented, table

_DOCS = "The same for browsers: a page that needs no key and shows the document to who has one."


def http_endpoints() -> str:
    """The page of endpoints."""
    engine = build_app(Service("model", ScriptedEngine(), ServerConfig())).openapi()["paths"]
    operations = [[f"`{method.upper()}`", f"`{path}`", _summary(operation, path)]
                  for path, methods in engine.items() for method, operation in methods.items()]  # fmt: skip
    operations += [["`GET`", f"`{PATH_DOCUMENT}`", "All of this as OpenAPI."], ["`GET`", "`/docs`", _DOCS]]
    summaries = {path: _summary(engine[path]["post"], path) for path in sorted({*INFERENCE_PATHS, INJECT_PATH})}
    gateway = [["`POST`", f"`{path}`", f"{text} Forwarded to an engine."] for path, text in summaries.items()]
    gateway += [["`POST`", f"`{path}`", f"{own_summary(path)}."] for path in ALL_OWN_PATHS]
    gateway += [[f"`{each.METHOD}`", f"`{path}`", f"{each.SUMMARY}."] for path, each in MODEL_QUESTIONS.items()]
    gateway += [["`GET`", f"`{MODELS_PATH}`", "The models that are served."],
                ["`GET`", f"`{MODELS_PATH}/{{name}}`", "The model of this name."],
                ["`GET`", f"`{PATH_STATES}`", "How every model stands, those at zero too: state, reason, replicas."],
                ["", "`/{namespace}/{name}` before any of these",
                 "The same for this LLMDeployment; `Host: {name}.{namespace}` says it, too."],
                ["`GET`", f"`{PATH_DOCUMENT}`", "All of this, with bodies and errors, as OpenAPI."],
                ["`GET`", "`/docs`", _DOCS],
                ["`GET`", "`/`", "A page for browsers: models' states, a chat, examples for programs."]]  # fmt: skip
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
