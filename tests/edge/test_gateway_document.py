"""`/openapi.json` of a gateway: what it says is what clients meet, with an engine's own HTTP behind it."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.openapi.models import OpenAPI
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from fairlead.gateway.model_states import PATH_STATES
from fairlead.gateway.openai import errors
from fairlead.gateway.openai.errors import QueueOutcome
from fairlead.gateway.openai.routes import FILE, FORWARDED_PATHS, INJECT_PATH, PROBES
from fairlead.gateway.recent_requests import PATH_REQUESTS
from fairlead.routing.replica import Replica
from fairlead_common.openai.translate.ollama_models import MODEL_QUESTIONS
from fairlead_testing.gateways import make_pool, running_gateway
from fairlead_testing.generated_requests import MOST_TOKENS, send_generated

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance,
]  # fmt: skip


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for each in part.values():
            yield from references(each)
    elif isinstance(part, list):
        for each in part:
            yield from references(each)


async def test_the_document_is_served_valid_and_of_every_path() -> None:
    async with running_gateway(make_pool()) as (_, _, url), httpx.AsyncClient(base_url=url) as http:
        reply = await http.get("/openapi.json")
        assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")
        document = reply.json()
        assert (await http.head("/openapi.json")).headers["content-length"] == str(len(reply.content))
        assert (await http.post("/openapi.json")).status_code == 405
    OpenAPI.model_validate(document)
    assert document["openapi"].startswith("3.1")
    forwarded = {*FORWARDED_PATHS, INJECT_PATH}
    stored = {f"/v1/responses/{{id}}{action}" for action in ("", "/cancel", "/input_items")}
    stored |= {"/v1/files", "/v1/files/{id}", "/v1/files/{id}/content"}
    stored |= {"/v1/batches", "/v1/batches/{id}", "/v1/batches/{id}/cancel"}
    stored |= {f"/v1/messages/batches{place}" for place in ("", "/{id}", "/{id}/cancel", "/{id}/results")}
    answered = {*PROBES, *MODEL_QUESTIONS, "/v1/models", "/v1/models/{id}", PATH_STATES, "/openapi.json"}
    looked_up = {f"{PATH_STATES}/{{namespace}}/{{name}}", f"{PATH_REQUESTS}/{{id}}"}
    assert set(document["paths"]) == forwarded | stored | answered | looked_up
    for reference in references(document):
        _, *places = reference.split("/")
        found = document
        for place in places:
            found = found[place]
    operations = [each for methods in document["paths"].values() for each in methods.values()]
    assert len({each["operationId"] for each in operations}) == len(operations)


def test_every_error_that_the_gateway_makes_is_described() -> None:
    source = Path(errors.__file__).read_text(encoding="utf-8")
    made = {int(status) for status in re.findall(r"OpenAIError\((\d{3})", source)}
    made |= {outcome.http_status for outcome in QueueOutcome} | {502, 503}
    document = json.loads(FILE.read_text())
    for path in FORWARDED_PATHS:
        responses = document["paths"][path]["post"]["responses"]
        assert {str(status) for status in made} <= set(responses)
        assert "retry-after" in responses["429"]["headers"] and "retry-after" in responses["503"]["headers"]


def served_body(made: dict[str, Any], body: dict[str, Any], number: int) -> None:
    if number % 5:
        made["model"] = "fake"
    made.pop("use_beam_search", None)  # the scripted engine tells no log-probabilities, which beams go by
    for name in ("max_tokens", "max_completion_tokens"):
        if isinstance(made.get(name), int):
            made[name] = min(made[name], MOST_TOKENS)


def conforms(case: Any, reply: Any) -> None:
    case.validate_response(reply, checks=CHECKS)


@pytest.mark.long
async def test_generated_requests_are_answered_as_the_document_says(engine_port: int, tmp_path: Path) -> None:
    replica = Replica(uid="r", name="r", host="127.0.0.1", port=engine_port, limits=None, digest="")
    stores = {"response_store": f"sqlite:///{tmp_path}/store.db", "file_store": f"{tmp_path}/files"}
    async with running_gateway(make_pool([replica], max_queue_time=5.0), **stores) as (_, _, url):
        statuses, found = await asyncio.to_thread(send_generated, url, served_body, most=30, check=conforms)
        async with httpx.AsyncClient(base_url=url) as http:
            assert (await http.get("/ready")).status_code == 200
    assert not found, "\n\n".join(map(str, found[:5]))
    assert statuses.count(200) > 40, {each: statuses.count(each) for each in set(statuses)}
    assert statuses.count(400) > 40
