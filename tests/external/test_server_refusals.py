"""Refusals of foreign servers, as their clients get them."""

import json
from typing import Any

import msgspec
import pytest

from fairlead_engine.external.server_refusals import in_envelope, refused_wishes, with_errors_in_envelope

PATH = "/v1/chat/completions"
TOO_LARGE = "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is 4096"
MORE_THAN_IT_HAS = "However, you requested 32000 output tokens and your prompt contains at least 20 input tokens"
NO_BUDGET = "thinking_token_budget is set but reasoning_config is not configured. Please set --reasoning-config"
NO_EFFORT = "[{'type': 'literal_error', 'loc': ('body', 'reasoning_effort'), 'msg': \"Input should be 'low' …\"}]"


@pytest.mark.parametrize(
    ("status", "told", "message"),
    [
        (400, {"object": "error", "message": "no", "type": "BadRequestError", "param": None, "code": 400}, "no"),
        (400, {"message": "no"}, "no"),
        (400, {"error": "no"}, "no"),
        (404, {"detail": "Not Found"}, f"What serves this model has nothing at {PATH}."),
        (401, {"detail": "Unauthorized"}, "Unauthorized"),
        (422, {"detail": [{"loc": ["body", "n"], "msg": "none"}, {"loc": ["m"], "msg": "x"}]}, "body.n: none; m: x"),
        (400, {"detail": {"a": 1}}, '{"a":1}'),
    ],
)
def test_a_refusal_of_any_shape_has_a_message_where_openais_clients_look(status: int, told: Any, message: str) -> None:
    error = json.loads(in_envelope(json.dumps(told).encode(), status, PATH))["error"]
    assert error["message"] == message and {"type", "param", "code"} <= error.keys() and "object" not in error


@pytest.mark.parametrize("code", [400, None, "invalid_prompt"])
def test_a_code_is_a_text_or_null_as_typed_clients_read_it(code: int | str | None) -> None:
    told = json.dumps({"error": {"message": "no", "type": "BadRequestError", "param": "n", "code": code}}).encode()
    error = json.loads(in_envelope(told, 400, PATH))["error"]
    assert error == {"message": "no", "type": "BadRequestError", "param": "n", "code": code and str(code)}


@pytest.mark.parametrize("body", [b"", b"Internal Server Error", b"[1]", b'{"a": 1}', b'{"error": {"message": "no"}}'])
def test_what_has_the_shape_or_tells_nothing_stays_as_it_is(body: bytes) -> None:
    assert in_envelope(body, 500, PATH) == body


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n"])
def test_an_error_among_events_gets_the_shape_and_nothing_else_changes(end: str) -> None:
    said = 'data: {"choices":[{"delta":{"content":"{\\"object\\":\\"error\\"}"}}]}' + end
    flat = 'data: {"object": "error", "message": "it died", "type": "InternalServerError", "code": 500}' + end
    told = with_errors_in_envelope(f"{said}{flat}data: [DONE]{end}".encode(), PATH).decode()
    assert told.startswith(said) and told.endswith(f"\ndata: [DONE]{end}")
    [error] = [line for line in told.splitlines() if line.startswith('data: {"error"')]
    assert json.loads(error[6:])["error"] == {
        "message": "it died", "type": "InternalServerError", "param": None, "code": "500",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("refusal", "names"),
    [
        (TOO_LARGE, ["max_tokens"]),
        (MORE_THAN_IT_HAS, ["max_tokens"]),
        (NO_BUDGET, ["thinking_token_budget"]),
        ("body.prompt_cache_options: Extra inputs are not permitted", ["prompt_cache_options"]),
        (NO_EFFORT, ["reasoning_effort"]),
        ("the prompt is too long", []),
    ],
)
def test_only_what_a_refusal_names_is_left_out_and_only_where_it_may_be(refusal: str, names: list[str]) -> None:
    asked = {"max_tokens": 32000, "thinking_token_budget": 9, "reasoning_effort": "xhigh", "best_effort": True}
    asked["prompt_cache_options"] = {"ttl": "5m"}
    fields = msgspec.json.decode(json.dumps(asked), type=dict[str, msgspec.Raw])
    assert refused_wishes(fields, refusal.encode()) == names
    del fields["best_effort"]
    assert refused_wishes(fields, refusal.encode()) == []
