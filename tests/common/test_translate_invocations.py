"""`/invocations`: the body's fields decide, and the body stays as it is."""

import json
from typing import Any

import pytest

from fairlead_common.openai.prompts import PromptError
from fairlead_common.openai.translate import TRANSLATED_PATHS, translation_of
from fairlead_common.openai.unknown_fields import UnknownFields

UNKNOWN = UnknownFields("refuse")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"messages": []}, "/v1/chat/completions"),
        ({"messages": [], "prompt": None}, "/v1/chat/completions"),
        ({"prompt": "a", "messages": None}, "/v1/completions"),
        ({"input": ["a"]}, "/v1/embeddings"),
        ({"query": "a", "documents": ["b"]}, "/v1/rerank"),
        ({"queries": "a", "documents": ["b"]}, "/v1/score"),
        ({"queries": "a", "items": ["b"]}, "/v1/score"),
        ({"text_1": "a", "text_2": ["b"]}, "/v1/score"),
        ({"data_1": "a", "data_2": ["b"]}, "/v1/score"),
    ],
)
def test_the_fields_decide(fields: dict[str, Any], path: str) -> None:
    assert "/invocations" in TRANSLATED_PATHS
    translation = translation_of("/default/m/invocations")
    assert translation is not None
    body = json.dumps(fields | {"colour": 1}).encode()
    assert translation.request(body, UNKNOWN) == (path, body)
    assert translation.answer(400, b"{", "r") == (400, b"{")
    assert translation.events(b"data: 1\n\n") == b"data: 1\n\n"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"query": "a"}', b'{"messages": null}', b"\xff", b"[" * 5000])
def test_what_says_nothing_is_refused(body: bytes) -> None:
    translation = translation_of("/invocations")
    assert translation is not None
    with pytest.raises(PromptError):
        translation.request(body, UNKNOWN)
