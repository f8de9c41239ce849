"""SageMaker's `/invocations` at an engine."""

from typing import Any

import pytest


async def test_an_invocation_is_the_request_that_its_fields_say(start_app: Any) -> None:
    app = start_app()
    for fields, kind in (
        ({"messages": [{"role": "user", "content": "ahoy"}]}, "chat.completion"),
        ({"prompt": "ahoy"}, "text_completion"),
    ):
        reply = await app.http.post("/invocations", json={"model": "tiny", **fields})
        assert (reply.status_code, reply.json()["object"]) == (200, kind)
    reply = await app.http.post("/invocations", json={"model": "tiny", "prompt": "ahoy", "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream") and reply.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "tiny"}, "messages"),
        ({"model": "tiny", "messages": []}, "messages"),
        ({"model": "tiny", "prompt": "a", "temperature": "hot"}, "temperature"),
    ],
)
async def test_refusals_are_those_of_that_request(start_app: Any, body: dict[str, Any], param: str) -> None:
    reply = await start_app().http.post("/invocations", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
