"""`/v1/models` in Anthropic's form: its pages, and who gets it."""

import json
from typing import Any

import pytest

from fairlead_common.openai.translate import translation_of
from fairlead_common.openai.translate.messages_models import VERSION_HEADER

MODELS = json.dumps(
    {"object": "list", "data": [{"id": name, "created": 1, "capabilities": ["tools"]} for name in "abcde"]}
).encode()


def answer(query: str, body: bytes = MODELS, status: int = 200) -> tuple[int, dict[str, Any]]:
    translation = translation_of("/v1/models", {VERSION_HEADER}, query.encode())
    assert translation is not None
    status, told = translation.answer(status, body, "r")
    return status, json.loads(told)


@pytest.mark.parametrize(
    ("query", "names", "has_more"),
    [
        ("", "abcde", False),
        ("limit=2", "ab", True),
        ("limit=2&after_id=b", "cd", True),
        ("limit=2&after_id=d", "e", False),
        ("after_id=e", "", False),  # clients that go on as long as there is a last_id end here
        ("limit=2&before_id=e", "cd", True),
        ("limit=2&before_id=c", "ab", False),
        ("before_id=a", "", False),
    ],
)
def test_pages(query: str, names: str, has_more: bool) -> None:
    status, page = answer(query)
    assert status == 200 and [each["id"] for each in page["data"]] == list(names)
    assert (page["first_id"], page["last_id"]) == ((names[0], names[-1]) if names else (None, None))
    assert page["has_more"] is has_more


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("after_id=z", "after_id"),
        ("before_id=z", "before_id"),
        ("after_id=a&before_id=e", "before_id"),
    ],
)
def test_pages_that_are_not_there_are_refused(query: str, field: str) -> None:
    status, told = answer(query)
    assert status == 400 and told["error"]["type"] == "invalid_request_error"
    assert told["error"]["message"].startswith(f"{field}: ")


def test_a_model_has_a_time_and_a_name() -> None:
    status, told = answer("", json.dumps({"id": "a", "created": 90, "max_model_len": 64}).encode())
    assert status == 200
    assert told == {
        "type": "model", "id": "a", "display_name": "a", "created_at": "1970-01-01T00:01:30Z", "lifecycle": "active",
        "max_input_tokens": 64, "max_tokens": 64, "capabilities": None,
    }  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/a", "/ns/name/v1/models"])
def test_only_who_sends_the_version_gets_it(path: str) -> None:
    assert translation_of(path, {VERSION_HEADER}) is not None
    assert translation_of(path, {b"authorization"}) is None
    assert translation_of("/v1/modelsandmore", {VERSION_HEADER}) is None
