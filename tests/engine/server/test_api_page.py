"""`docs/api.md` is what the server does: every parameter is in its table, of the type and within the bounds it says."""

import json
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import pytest

from fairlead_engine.server.schemas import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from fairlead_protocol.messages import FIELD_TOKENS

PAGE = Path(__file__).parents[3] / "docs" / "api.md"
SCHEMAS: dict[str, type[msgspec.Struct]] = {
    "chat": ChatRequest,
    "completions": CompletionRequest,
    "tokenize": TokenizeRequest,
    "detokenize": DetokenizeRequest,
}
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "ahoy"}], "max_tokens": 2},
    "completions": {"prompt": "ahoy", "max_tokens": 2},
    "tokenize": {"messages": [{"role": "user", "content": "ahoy"}]},
    "detokenize": {"tokens": [1, 2]},
}
BESIDE: dict[str, dict[str, Any]] = {"top_logprobs": {"logprobs": True}, "tools": {"tool_choice": "none"}}
"""Parameter → what it needs to be taken at all."""
RANGE = re.compile(r"(above )?(-?\d+) … (-?\d+)?")
LENGTH = re.compile(r"at most (\d+) (characters|items|entries)$")
WORDS = {bool: "boolean", int: "integer", float: "number", str: "string", Any: "any"}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    of: tuple[str, ...]
    type: str
    accepted: str
    default: str
    by: str
    text: str


def rows() -> Iterator[Row]:
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            name, of, *rest = (cell.strip() for cell in line.strip("|").split("|"))
            yield Row(name.strip("`"), tuple(of.split(", ")), *rest)


TABLE = list(rows())


def worded(kind: Any) -> str:
    """A field's type as the page writes it; None says nothing, as everything optional may be null."""
    origin = get_origin(kind)
    if origin is Annotated:
        return worded(get_args(kind)[0])
    if origin in (Union, types.UnionType):
        return " or ".join(worded(each) for each in get_args(kind) if each is not type(None))
    if origin is list:
        of = worded(get_args(kind)[0])
        return "list" if of == "any" else f"list of {of}s"
    return WORDS.get(kind, "object")


def test_every_parameter_is_on_the_page_with_its_type() -> None:
    taken = {
        (endpoint, field.name): worded(field.type)
        for endpoint, schema in SCHEMAS.items()
        for field in msgspec.structs.fields(schema)
        if field.name != FIELD_TOKENS
    }
    assert {(endpoint, row.name): row.type for row in TABLE for endpoint in row.of} == taken
    assert len(taken) == sum(len(row.of) for row in TABLE), "each once"


def test_what_is_needed_and_only_that_is_said_to_be() -> None:
    needed = {
        (endpoint, field.name)
        for endpoint, schema in SCHEMAS.items()
        for field in msgspec.structs.fields(schema)
        if field.required
    }
    assert {(endpoint, row.name) for row in TABLE if row.default == "needed" for endpoint in row.of} == needed


def tried(row: Row) -> Iterator[tuple[Any, bool]]:
    """Values at the bounds that the page says, and whether they are taken."""
    if found := RANGE.match(row.accepted):
        least, most = int(found[2]), found[3] and int(found[3])
        yield least, not found[1]
        yield least - 1, False
        if most:
            yield most, True
            yield most + 1, False
    elif found := LENGTH.match(row.accepted):
        one = {"string": "x", "list of integers": [1], "list of objects": [{"role": "user", "content": ""}]}
        for length, is_taken in ((int(found[1]), True), (int(found[1]) + 1, False)):
            value = {str(each): 1 for each in range(length)} if row.type == "object" else one[row.type] * length
            yield value, is_taken
    elif row.by == "refused" and row.type in ("any", "string"):
        yield "other", False
        if row.accepted:
            yield json.loads(row.accepted.removeprefix("only ").strip("`")), True


BOUNDED = [(row, endpoint, value, is_taken) for row in TABLE for value, is_taken in tried(row) for endpoint in row.of]


@pytest.mark.parametrize(
    ("row", "endpoint", "value", "is_taken"),
    [case for case in BOUNDED if case[0].name != "model"],
    ids=lambda part: part.name if isinstance(part, Row) else str(part)[:20],
)
async def test_bounds_are_those_of_the_page(
    start_app: Any, row: Row, endpoint: str, value: Any, is_taken: bool
) -> None:
    body = {"model": "tiny"} | BODIES[endpoint] | (BESIDE.get(row.name, {}) if endpoint in PATHS else {})
    body |= {row.name: value}
    reply = await start_app().http.post(PATHS.get(endpoint, f"/{endpoint}"), json=body)
    if is_taken:
        is_long = row.name in ("messages", "tools") or (row.name.startswith("max_") and value > 256)
        wanted = 400 if is_long else 200  # too long for this model's context, which is all
        assert reply.status_code == wanted, reply.text
        assert wanted == 200 or reply.json()["error"]["code"] == "context_length_exceeded"
        return
    error = reply.json()["error"]
    assert (reply.status_code, error["param"].split(".")[0]) == (400, row.name)
    if row.by == "refused":
        advice = row.text.rpartition(": ")[2].rstrip(".")
        assert advice[1:] in error["message"], "the page has the server's own advice"


def test_the_bounds_that_are_tried_are_not_few() -> None:
    assert len(BOUNDED) > 100
    untried = {row.name for row in TABLE if row.accepted and not any(case[0] is row for case in BOUNDED)}
    assert untried == {"tokens", "stop", "logit_bias", "stream_options", "best_of"}, "they have tests of their own"


@pytest.mark.parametrize("row", [row for row in TABLE if row.by == "nobody"], ids=lambda row: row.name)
async def test_what_changes_nothing_reaches_no_engine(start_app: Any, row: Row) -> None:
    value: Any = {"string": "x", "object": {"a": "b"}, "boolean": True, "any": "x"}[row.type]
    for endpoint in row.of:
        app = start_app()
        for more in ({}, {row.name: value}):
            reply = await app.http.post(PATHS[endpoint], json={"model": "tiny", **BODIES[endpoint], **more})
            assert reply.status_code == 200
        without, with_it = (request.sampling for request in app.engine.requests)
        assert without == with_it
