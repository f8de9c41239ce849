"""Requests that schemathesis makes of `/openapi.json`: none is answered 5xx, and the engine lives on."""

from typing import Any

import pytest

from fairlead_testing.generated_requests import MOST_TOKENS, send_generated

UNTRIED = ("/fairlead/v1/drain", "/fairlead/v1/kv/events")
"""One ends the engine, one never ends."""


def served_body(made: dict[str, Any], body: dict[str, Any], number: int) -> None:
    if "model" in made:
        made["model"] = "tiny"
    if "stream" in body or isinstance(made.get("max_tokens"), int):  # of requests that generate
        made["max_tokens"] = min(made.get("max_tokens") or 1, MOST_TOKENS)
    for name in ("n", "best_of"):
        if isinstance(made.get(name), int):
            made[name] = min(made[name], 3)


@pytest.mark.long
def test_no_generated_request_is_answered_with_a_failure(served: Any) -> None:
    statuses, found = send_generated(served.url, served_body, most=40, untried=UNTRIED)
    assert not found, found[:5]
    assert statuses.count(200) > 40, {each: statuses.count(each) for each in set(statuses)}
    assert statuses.count(400) > 40
    assert served.status("/health") == 200
