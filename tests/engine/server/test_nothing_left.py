"""Requests that leave no token to choose, over HTTP, on a real tiny model: the client's fault, and nobody's loss."""

import re
from typing import Any

import httpx
import pytest


def ask(served: Any, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": "The quick brown fox", "max_tokens": 4, "temperature": 0, **fields}
    return httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)


@pytest.mark.parametrize(
    ("fields", "param", "names"),
    [
        ({"allowed_token_ids": [66], "bad_words": ["c"]}, "allowed_token_ids", "allowed_token_ids and bad_words"),
        (
            {"allowed_token_ids": [66, 67], "stop_token_ids": [66, 67], "min_tokens": 1},
            "allowed_token_ids",
            "min_tokens",
        ),
        (
            {"stop_token_ids": list(range(256)), "allowed_token_ids": [5, 9], "min_tokens": 2},
            "allowed_token_ids",
            "min_",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_leaves_nothing_is_refused_before_it_runs(
    served: Any, fields: dict[str, Any], param: str, names: str, stream: bool
) -> None:
    steps = served.metric("fairlead_engine_generation_tokens_total")
    response = ask(served, **fields, stream=stream)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert names in error["message"]
    assert served.metric("fairlead_engine_generation_tokens_total") == steps


@pytest.mark.parametrize("stream", [False, True])
def test_what_shows_later_is_the_requests_fault_and_keeps_the_prefix(served: Any, stream: bool) -> None:
    prompt = list(range(40 + stream, 90 + stream))
    ask(served, prompt=prompt)
    fields = {"prompt": prompt, "allowed_token_ids": [64, 65], "guided_regex": "a[^ab]"}  # of "a" and "b"
    late = ask(served, **fields, stream=stream)
    assert late.status_code == 400, late.text
    error = late.json()["error"]
    assert error["param"] == "guided_regex"
    assert "behind 1 tokens" in error["message"]
    again = ask(served, prompt=prompt)
    assert int(again.headers["x-fairlead-cached-tokens"]) == 48


def test_a_stream_that_contradicts_nothing_has_its_whole_answer(served: Any) -> None:
    response = ask(served, guided_regex="a{3}", bad_words=["b"], stream=True)
    assert response.status_code == 200
    assert "".join(re.findall(r'"text":"([^"]*)"', response.text)) == "aaa"
    assert response.text.endswith("data: [DONE]\n\n")
