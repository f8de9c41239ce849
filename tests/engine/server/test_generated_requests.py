"""Requests that schemathesis makes of `/openapi.json`: none is answered 5xx, and the engine lives on."""

import zlib
from typing import Any

import hypothesis
import pytest
import schemathesis

UNTRIED = ("/fairlead/v1/drain", "/fairlead/v1/kv/events")
"""One ends the engine, one never ends."""
NEEDED = ("model", "messages", "prompt", "input", "tokens")
MOST_TOKENS, MOST_OPTIONAL = 4, 3


def served_body(body: Any, number: int) -> Any:
    """A few fields of what was made, or nearly every body would be refused for one of forty; a model that is served."""
    if not isinstance(body, dict):
        return body
    optional = sorted(set(body) - set(NEEDED), key=lambda name: zlib.crc32(f"{name}{number}".encode()))
    kept = [*NEEDED, *(optional if number % 8 == 0 else optional[:MOST_OPTIONAL])]
    made = {name: value for name, value in body.items() if name in kept}
    if "messages" in made and number % 2:
        made["messages"] = [{"role": "user", "content": str(made["messages"])[:20]}]
    if isinstance(made.get("input", made.get("prompt")), list) and number % 2:
        made["prompt" if "prompt" in made else "input"] = [1, 2, 3]
    if "model" in made:
        made["model"] = "tiny"
    if "stream" in body or isinstance(made.get("max_tokens"), int):  # of requests that generate
        made["max_tokens"] = min(made.get("max_tokens") or 1, MOST_TOKENS)
    for name in ("n", "best_of"):
        if isinstance(made.get(name), int):
            made[name] = min(made[name], 3)
    return made


@pytest.mark.long
def test_no_generated_request_is_answered_with_a_failure(served: Any) -> None:
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    found: list[Any] = []
    statuses: list[int] = []

    @hypothesis.settings(
        max_examples=40, derandomize=True, deadline=None, database=None,
        suppress_health_check=list(hypothesis.HealthCheck), phases=[hypothesis.Phase.generate],
    )  # fmt: skip
    @hypothesis.given(data=hypothesis.strategies.data())
    def send(operation: Any, data: Any) -> None:
        case = data.draw(operation.as_strategy())
        case.body = served_body(case.body, len(statuses))
        reply = case.call(timeout=200)
        statuses.append(reply.status_code)
        if reply.status_code >= 500 or not reply.headers.get("x-request-id"):
            found.append((case.method, case.path, case.body, reply.status_code, reply.text[:300]))

    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path not in UNTRIED:
            send(operation)
    assert not found, found[:5]
    assert statuses.count(200) > 40, {each: statuses.count(each) for each in set(statuses)}
    assert statuses.count(400) > 40
    assert served.status("/health") == 200
