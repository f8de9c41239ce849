"""Requests that schemathesis makes of `/openapi.json`, a few fields each, of a model that is served."""

import zlib
from collections.abc import Callable, Collection
from typing import Any

import hypothesis
import schemathesis

NEEDED = ("model", "messages", "prompt", "input", "tokens", "query", "documents", "text_1", "text_2")
MOST_TOKENS, MOST_OPTIONAL = 4, 3


def short_body(body: dict[str, Any], number: int) -> dict[str, Any]:
    """A few fields of what was made, or nearly every body would be refused for one of forty."""
    optional = sorted(set(body) - set(NEEDED), key=lambda name: zlib.crc32(f"{name}{number}".encode()))
    kept = [*NEEDED, *(optional if number % 8 == 0 else optional[:MOST_OPTIONAL])]
    made = {name: value for name, value in body.items() if name in kept}
    if "messages" in made and number % 2:
        made["messages"] = [{"role": "user", "content": str(made["messages"])[:20]}]
    if isinstance(made.get("input", made.get("prompt")), list) and number % 2:
        made["prompt" if "prompt" in made else "input"] = [1, 2, 3]
    return made


def send_generated(
    url: str,
    served: Callable[[dict[str, Any], dict[str, Any], int], None],
    *,
    most: int,
    untried: Collection[str] = (),
    check: Callable[[Any, Any], object] = lambda case, reply: None,
) -> tuple[list[int], list[Any]]:
    """Sends `most` requests to each operation but those of paths `untried`. `served`: has a short body, given what it
    was made of and its number, ask for something that is served. `check`: raises where a reply is not what the document
    says. The statuses, and what was wrong: failures, answers without an id, and what `check` raised."""
    statuses: list[int] = []
    found: list[Any] = []

    @hypothesis.settings(
        max_examples=most, derandomize=True, deadline=None, database=None,
        suppress_health_check=list(hypothesis.HealthCheck), phases=[hypothesis.Phase.generate],
    )  # fmt: skip
    @hypothesis.given(data=hypothesis.strategies.data())
    def send(operation: Any, data: Any) -> None:
        case = data.draw(operation.as_strategy())
        if isinstance(case.body, dict):
            body, number = case.body, len(statuses)
            case.body = short_body(body, number)
            served(case.body, body, number)
        reply = case.call(timeout=200)
        statuses.append(reply.status_code)
        sent = case.method, case.path, case.body, reply.status_code, reply.text[:300]
        try:
            check(case, reply)
        except Exception as error:
            found.append((*sent, str(error)[:600]))
        if reply.status_code >= 500 or not reply.headers.get("x-request-id"):
            found.append(sent)

    result: Any
    for result in schemathesis.openapi.from_url(f"{url}/openapi.json").get_all_operations():
        operation = result.ok()
        if operation.path not in untried:
            send(operation)
    return statuses, found
